"""Rule files give rules, and rules say which documents are dropped and why."""

from __future__ import annotations

import inspect
import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from filters import bundled_rule_sets, cleaner_functions, measure_functions
from filters.compiled import SCANNED
from filters.rules.ruleset import Rule, RuleSet, Violation, load_rules
from pipeline.errors import ConfigError
from tests.helpers.builds import Built
from tests.helpers.rule_samples import PROSE, rule_file

NO, INF = -math.inf, math.inf
REPETITION = {
    "duplicate_paragraph_ratio": (NO, 0.3), "duplicate_paragraph_char_ratio": (NO, 0.2),
    "duplicate_line_ratio": (NO, 0.3), "duplicate_line_char_ratio": (NO, 0.2),
    "top_2_gram_ratio": (NO, 0.2), "top_3_gram_ratio": (NO, 0.18), "top_4_gram_ratio": (NO, 0.16),
    "duplicate_5_gram_ratio": (NO, 0.15), "duplicate_6_gram_ratio": (NO, 0.14), "duplicate_7_gram_ratio": (NO, 0.13),
    "duplicate_8_gram_ratio": (NO, 0.12), "duplicate_9_gram_ratio": (NO, 0.11), "duplicate_10_gram_ratio": (NO, 0.1),
}  # fmt: skip
QUALITY = {
    "words": (50, 100_000), "mean_word_length": (3, 10), "hash_ratio": (NO, 0.1), "ellipsis_ratio": (NO, 0.1),
    "bullet_line_ratio": (NO, 0.9), "ellipsis_line_ratio": (NO, 0.3), "alphabetic_ratio": (0.8, INF),
    "stop_words": (2, INF),
}  # fmt: skip
PRESETS: dict[str, dict[str, tuple[float, float]]] = {  # the limits of the papers
    "gopher": REPETITION | QUALITY,
    "gopher_repetition": REPETITION,
    "gopher_quality": QUALITY,
    "gopher_datatrove": REPETITION | QUALITY,
    "fineweb": {
        "terminal_line_ratio": (0.12, INF), "short_line_ratio": (NO, 0.67), "newline_ratio": (NO, 0.3),
        "fineweb_duplicate_line_char_ratio": (NO, 0.01),
    },
    "fineweb2": {
        "duplicate_line_char_ratio": (NO, 0.1), "words": (50, 100_000), "hash_ratio": (NO, 0.1),
        "ellipsis_ratio": (NO, 0.1), "bullet_line_ratio": (NO, 0.9), "ellipsis_line_ratio": (NO, 0.3),
    },
    "c4": {"sentences": (3, INF), "lorem_ipsum": (NO, 0), "curly_brackets": (NO, 0)},
    "code": {"code_line_ratio": (NO, 0.4), "code_symbol_ratio": (NO, 0.15)},
    "code_files": {
        "lines": (NO, 100_000), "longest_line": (NO, 100_000), "letter_ratio": (0.25, INF), "generated_marks": (NO, 0),
        "longest_code_line": (NO, 1_000), "mean_code_line": (NO, 100),
    },
    "profanity": {"profanity_ratio": (NO, 0.0045)},
    "html_remnants": {},
    "pii": {},
    "repeated_lines": {},
}  # fmt: skip


@pytest.mark.parametrize("name", bundled_rule_sets())
def test_a_bundled_set_has_its_papers_limits_and_keeps_values_on_them(name: str) -> None:
    rules = load_rules(name)
    assert {rule.name: (rule.min, rule.max) for rule in rules.rules} == PRESETS[name]
    json.dumps(rules.describe(), allow_nan=False)
    context = {"language": "en", "language_score": 1.0, "metadata": {"language": "Text"}}
    values = rules.measure(PROSE, context)
    assert tuple(values) == rules.measures
    assert all(type(value) is float for value in values.values())
    assert rules.judge(values) is None
    on = {rule.name: rule.min if math.isfinite(rule.min) else rule.max for rule in rules.rules}
    assert rules.judge(on) is None
    for rule in rules.rules:
        for limit, beyond, kind in ((rule.min, NO, "min"), (rule.max, INF, "max")):
            if math.isfinite(limit):
                assert rules.judge({**on, rule.name: limit}) is None
                violation = rules.judge({**on, rule.name: math.nextafter(limit, beyond)})
                assert violation is not None
                assert (violation.rule, violation.bound, violation.kind) == (rule.name, limit, kind)


def test_a_build_keeps_documents_on_limits_and_drops_those_beyond(tmp_path: Path) -> None:
    rules = rule_file(tmp_path, "words = { min = 5, max = 7 }\nlongest_word = { max = 40 }\n")
    texts = [" ".join(f"word{k}" for k in range(count)) for count in range(3, 10)]
    texts += [f"{texts[2][:-5]}{'x' * length}" for length in (40, 41)]  # five words, the last one long
    counts = Built.of(tmp_path, texts, rules=rules, dedup=False).counts
    assert (counts["kept"], counts["dropped"]) == (4, {"words": 4, "longest_word": 1})


@pytest.mark.parametrize(
    ("value", "bound", "kind", "reason"),
    [
        (1.7, 3.0, "min", "x 1.7 < 3"),
        (0.30000000000000004, 0.3, "max", "x 0.30000000000000004 > 0.3"),
        (99_999.6, 100_000.0, "min", "x 99999.6 < 100000"),
        (123456.0, 100_000.0, "max", "x 1.235e+05 > 100000"),
        (0.0, 0.12, "min", "x 0 < 0.12"),
    ],
)
def test_the_reason_shows_a_comparison_that_fails(value: float, bound: float, kind: str, reason: str) -> None:
    assert Violation("s", "x", value, bound, kind).reason == reason


def test_the_first_rule_that_fails_speaks_for_its_set() -> None:
    rules = load_rules("gopher,fineweb")
    violation = rules.judge(rules.measure("short"))
    assert violation is not None
    assert (violation.rule_set, violation.reason) == ("gopher_quality", "words 1 < 50")
    values = rules.measure("It rained.\nIt rained.\nIt stopped.\n" + PROSE)
    assert values["duplicate_line_char_ratio"] == values["fineweb_duplicate_line_char_ratio"] > 0.01
    copy = pickle.loads(pickle.dumps(rules))
    assert (copy.describe(), copy.measure(PROSE)) == (rules.describe(), rules.measure(PROSE))


def test_documents_are_measured_and_judged_together_as_alone(tmp_path: Path) -> None:
    (tmp_path / "deu_Latn.yml").write_text("dup_line_frac: 0.2\nmax_avg_word_length: 14\n")
    rules = load_rules(["gopher,c4,profanity", tmp_path / "deu_Latn.yml"])
    texts = ["", "short", PROSE, PROSE + "\n" + PROSE, "# # # { shit }\n" * 60, "汉字" * 80, PROSE]
    contexts = [{"language": "de" if k % 2 else "en", "language_score": 0.9} for k in range(len(texts))]
    measured = rules.measure_all(texts, contexts)
    violations = rules.judge_all(measured)
    assert len({violation and violation.rule for violation in violations}) > 3
    for row, (text, context) in enumerate(zip(texts, contexts, strict=True)):
        alone = rules.measure(text, context)
        held = [name for name, holds in zip(rules.measures, measured.holds[row], strict=True) if holds]
        assert list(alone) == held
        assert list(alone.values()) == measured.values[row][measured.holds[row]].tolist()
        assert rules.judge(alone) == violations[row]
    assert rules.judge_all(rules.measure_all([])) == []


def test_a_nan_is_judged_broken_and_no_rules_break_nothing() -> None:
    rules = load_rules("gopher_quality")
    measured = rules.measure_all([PROSE])
    measured.values[0, 3] = math.nan
    [violation] = rules.judge_all(measured)
    assert violation is not None
    assert violation.rule == rules.measures[3]
    assert load_rules("none").judge_all(load_rules("none").measure_all([PROSE])) == [None]
    broken = Rule("x", "x", "s", max=1.0).judge(math.nan)
    assert broken is not None
    assert broken.reason == "x is not a number, max 1"
    assert Rule("x", "x", "s").judge(math.nan) is not None
    with pytest.raises(KeyError):  # a missing value is never a pass
        rules.judge({"words": 100})


def test_other_limits_need_no_measuring() -> None:
    rules = load_rules("gopher")
    values = rules.measure("one of the few words")
    assert rules.judge(values) is not None
    assert rules.with_limit("words", "min", 3).judge(values) is None
    limited = [rules.with_limit("words", "min", 3).with_limit("words", "max", most) for most in (4, 5)]
    assert [each.judge(values) is None for each in limited] == [False, True]
    with pytest.raises(ConfigError, match="did you mean 'words'"):
        rules.with_limit("word", "min", 3)


def test_zero_is_a_limit_and_false_alone_switches_a_rule_off(tmp_path: Path) -> None:
    for limit, judged in (("max = 0", {0.0: True, 1.0: False}), ("min = 0", {-1.0: False, 0.0: True})):
        (rule,) = load_rules(rule_file(tmp_path, f"words = {{ {limit} }}")).rules
        assert {value: rule.judge(value) is None for value in judged} == judged
    parent = rule_file(tmp_path, "words = { min = 5, max = 7 }", "parent.toml")
    (rule,) = load_rules([parent, rule_file(tmp_path, "words = { min = 0 }")]).rules
    assert (rule.min, rule.max) == (0, 7)
    assert not load_rules([parent, rule_file(tmp_path, "words = false")])


def test_later_sets_replace_limits_and_extend(tmp_path: Path) -> None:
    text = 'extends = ["gopher"]\nwords = { min = 20 }\nbullet_line_ratio = false\nstop_words = { words = ["der", "die"] }\n'
    path = rule_file(tmp_path, text + "longest_word = { max = 40 }\n")
    rules = {rule.name: rule for rule in load_rules(path).rules}
    assert (rules["words"].min, rules["words"].max, rules["words"].rule_set) == (20, 100_000, "own")
    assert "bullet_line_ratio" not in rules
    assert (rules["stop_words"].min, rules["stop_words"].parameters) == (2, {"words": ["der", "die"]})
    assert list(rules)[-1] == "longest_word"
    assert load_rules(["gopher", path]).describe() == load_rules(path).describe()
    off = rule_file(tmp_path, 'extends = ["c4"]\n[cut]\nc4_lines = false\nunknown = false\n')
    gone = [cleaner.name for cleaner in load_rules("c4").cleaners if cleaner not in load_rules(off).cleaners]
    assert gone == ["c4_lines"]


@pytest.mark.parametrize("specs", [None, "", "none", [], ["none"]])
def test_no_rules_keep_everything(specs: str | list[str] | None) -> None:
    rules = load_rules(specs)
    assert not rules
    assert (rules.measure(""), rules.judge({}), rules.cut("x")) == ({}, None, ("x", {}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mean_wordlength = { min = 3 }", "did you mean 'mean_word_length'"),
        ("words = { minimum = 3 }", "did you mean 'min'"),
        ("words = { }", "has no limit"),
        ("words = { min = 5, max = 4 }", "keeps nothing: min 5 > max 4"),
        ("words = { min = '5' }", "min must be a number from .*, got '5'"),
        ("words = { min = nan }", "min must be a number"),
        ("words = 5", r"own\.toml: words must be a table"),
        ("words = 0", r"own\.toml: words must be a table like { min = 3 }, or false, not 0"),  # zero is not off
        ("words = ''", r"own\.toml: words must be a table like { min = 3 }, or false, not ''"),
        ("stop_words = { min = 2 }", "needs words"),
        ("extends = ['gophr']", "did you mean 'gopher'"),
        ("extends = ['own.toml']", r"extends itself: .*own\.toml -> .*own\.toml"),
        ("words = ", "is not TOML"),
        ("language = 3", "language must be a code such as de or deu_Latn, not 3"),
        ("extends = 3", "extends must be a list of rule sets, not 3"),
        ("x = { measure = 3, max = 1 }", "measure must be text, not 3"),
        ("x = { measure = 'column:a', in = [1, 'b'] }", r"texts or of numbers.*not \[1, 'b'\]"),
        (f"words = {{ min = {10**400} }}", "min must be a number"),
        ("'column:' = { min = 1 }", "name a field after column:"),
        ("duplicate_ngram_ratio = { max = 1, n = 0 }", "n must be a whole number of at least 1, not 0"),
        ("top_ngram_ratio = { max = 1, n = '2' }", "n must be a whole number of at least 1, not '2'"),
        ("stop_words = { min = 1, words = 'the' }", "words must be a list of one or more .*, each text, not 'the'"),
        ("stop_words = { min = 1, words = [] }", "words must be a list of one or more entries"),
        ("stop_words = { min = 1, words = ['a'], any_case = 1 }", "any_case must be true or false, not 1"),
        ("short_line_ratio = { max = 1, longest = -1 }", "longest must be a whole number of at least 0, not -1"),
        ("words = { min = 1, by = 'piece' }", "not 'piece' .did you mean 'pieces'"),
        ("words = { min = 1, by = ['spaces'] }", "by must be one of spaces, pieces, tokens"),
        ("profanity_ratio = { max = 1, word_list = 3 }", "word_list '3' does not exist"),
        ("[cut]\nc4_lines = { max_word_length = 0 }", "max_word_length must be a whole number of at least 1, not 0"),
        ("[cut]\nc4_lines = { terminal_punctuation = 'no' }", "terminal_punctuation must be true or false"),
        ("[cut]\nc4_line = {}", "did you mean 'c4_lines'"),
        ("[cut]\nc4_lines = { min_word = 3 }", "did you mean 'min_words'"),
        ("cut = 3", r"\[cut\] must be a table"),
        ("'nowhere_at_all:f' = { max = 1 }", "no module 'nowhere_at_all'"),
        ("'math:sqrrt' = { max = 1 }", "no function 'sqrrt'"),
    ],
)
def test_mistakes_in_rule_files_are_refused_with_the_nearest_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_rules(rule_file(tmp_path, text))
    with pytest.raises(ConfigError, match="did you mean 'fineweb'"):
        load_rules("gopher,finweb")
    with pytest.raises(ConfigError, match=r"none\.toml' does not exist; .*: c4, code"):
        load_rules(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("function", [*measure_functions().values(), *cleaner_functions().values()])
def test_every_parameter_of_a_built_in_rule_says_what_it_takes(function: Callable[..., object]) -> None:
    hints = get_type_hints(function, include_extras=True)
    for name in list(inspect.signature(function).parameters)[1:]:
        assert hints[name] is not int, f"{function.__name__}: {name}: is it a Count or a Positive?"
        assert hints[name] not in (object, Any, float, list)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("top_n_grams: 3", "top_n_grams must be a list of pairs like"),
        ("dup_n_grams: [[5]]", "dup_n_grams must be a list of pairs like"),
        ("stopwords: der", "stopwords must be a list of words, not 'der'"),
        ("dup_line_frac: x", "max must be a number from .*, got 'x'"),
        ("dup_line_fraction: 1", "did you mean 'dup_line_frac'"),
        ("- a", "no keys"),
        ("dup_line_frac: 2020-13-45", "is not YAML: month must be in 1..12"),
        ("[1", "is not YAML: while parsing a flow sequence"),
    ],
)
def test_mistakes_in_profiles_are_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load_rules(rule_file(tmp_path, text, "deu_Latn.yml"))
    assert "\n" not in str(error.value)


def test_parameters_of_ones_own_measures_are_checked_by_their_annotations(tmp_path: Path) -> None:
    (tmp_path / "own_checked.py").write_text(
        "def f(page, *, least: int | None = None, share: float = 0, names: list[str] = (), more=None):\n    return 1\n"
    )
    for given, message in {
        "least = 'a'": "least must be a whole number, not 'a'",
        "share = true": "share must be a number, not True",
        "names = [1]": "names must be a list of one or more entries, each text",
    }.items():
        with pytest.raises(ConfigError, match=message):
            load_rules(rule_file(tmp_path, f"'own_checked:f' = {{ max = 1, {given} }}"))
    good = "'own_checked:f' = { max = 1, least = -1, share = 2, names = ['x'], more = [[1]] }"
    assert load_rules(rule_file(tmp_path, good)).measure("x") == {"own_checked:f": 1}


def test_the_compiled_scan_and_the_plain_measures_give_one_set_of_values() -> None:
    rules = load_rules("gopher,fineweb")
    plain = RuleSet([*rules.rules, Rule("lines_of_29", "short_line_ratio", "s", max=1, parameters={"longest": 29})])
    values = plain.measure("- one\n" * 5 + PROSE)
    assert values["lines_of_29"] == values["short_line_ratio"]
    assert set(rules.measures) - {"fineweb_duplicate_line_char_ratio"} <= set(SCANNED)


def test_loading_rules_loads_no_compiler_and_no_model() -> None:
    code = (
        "import sys; from filters.rules.ruleset import load_rules; load_rules('gopher,c4,code,profanity').describe();"
        "print(sorted({'numba', 'fasttext', 'torch', 'pyarrow', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "[]", done.stderr


def test_a_limit_beside_rule_sets_replaces_that_of_all_sets_wherever_it_stands() -> None:
    plain = load_rules("gopher_quality").rules[1:]
    for spec in ("gopher_quality,words.min=3,words.max=9e6", ["words.max=9e6", "words.min=3", "gopher_quality"]):
        changed, *others = load_rules(spec).rules
        assert (changed.name, changed.min, changed.max) == ("words", 3, 9e6)
        assert [rule.describe() for rule in others] == [rule.describe() for rule in plain]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gopher,word.min=3", "did you mean 'words'"),
        ("gopher,words=3", "RULE.min=NUMBER"),
        ("gopher,words.min", "RULE.min=NUMBER"),
        ("gopher,words.min=nan", "RULE.min=NUMBER"),
        ("words.min=3", "as in gopher,words.min=20"),
        ("gopher,words.min=9e9", "keeps nothing: min 9e"),
    ],
)
def test_a_limit_that_changes_no_rule_is_an_error(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_rules(spec)
