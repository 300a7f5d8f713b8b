"""Rule files give rules, and rules say which documents are dropped and why."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from filters import bundled_rule_sets
from filters.compiled import SCANNED
from filters.rules.ruleset import Rule, RuleSet, Violation, load_rules
from pipeline.errors import BuildError, ConfigError

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}

PROSE = (
    "We had been walking for most of the day and the light was going when Anna saw the house. It stood apart from the "
    "others, behind a row of poplars, with a lamp in one window. Nobody answered when she knocked, so that we sat down "
    "on the step to wait. An hour later an old man came up the road, nodded, and opened the door without a word."
)


def rule_file(folder: Path, text: str, name: str = "own.toml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize("name", sorted(bundled_rule_sets()))
def test_every_bundled_set_loads_measures_and_describes_itself(name: str) -> None:
    rules = load_rules(name)
    values = rules.measure(PROSE, {"language": "en", "language_score": 1.0})
    assert tuple(values) == rules.measures
    assert all(type(value) is float for value in values.values())
    json.dumps(rules.describe(), allow_nan=False)


@pytest.mark.parametrize("name", ["gopher", "fineweb", "code", "profanity", "gopher,fineweb,code,profanity"])
def test_prose_passes(name: str) -> None:
    rules = load_rules(name)
    assert rules.judge(rules.measure(PROSE)) is None


def test_gopher_is_the_whole_table_of_its_paper() -> None:
    limits = {rule.name: (rule.min, rule.max) for rule in load_rules("gopher").rules}
    no, inf = -math.inf, math.inf
    assert limits == {
        "duplicate_paragraph_ratio": (no, 0.3),
        "duplicate_paragraph_char_ratio": (no, 0.2),
        "duplicate_line_ratio": (no, 0.3),
        "duplicate_line_char_ratio": (no, 0.2),
        "top_2_gram_ratio": (no, 0.2),
        "top_3_gram_ratio": (no, 0.18),
        "top_4_gram_ratio": (no, 0.16),
        "duplicate_5_gram_ratio": (no, 0.15),
        "duplicate_6_gram_ratio": (no, 0.14),
        "duplicate_7_gram_ratio": (no, 0.13),
        "duplicate_8_gram_ratio": (no, 0.12),
        "duplicate_9_gram_ratio": (no, 0.11),
        "duplicate_10_gram_ratio": (no, 0.1),
        "words": (50, 100_000),
        "mean_word_length": (3, 10),
        "hash_ratio": (no, 0.1),
        "ellipsis_ratio": (no, 0.1),
        "bullet_line_ratio": (no, 0.9),
        "ellipsis_line_ratio": (no, 0.3),
        "alphabetic_ratio": (0.8, inf),
        "stop_words": (2, inf),
    }


@pytest.mark.parametrize("name", ["gopher", "fineweb", "c4"])
def test_values_exactly_on_every_threshold_are_kept(name: str) -> None:
    rules = load_rules(name)
    on = {rule.name: rule.min if math.isfinite(rule.min) else rule.max for rule in rules.rules}
    assert rules.judge(on) is None
    for rule in rules.rules:
        for limit, beyond, kind in ((rule.min, -math.inf, "min"), (rule.max, math.inf, "max")):
            if math.isfinite(limit):
                assert rules.judge({**on, rule.name: limit}) is None
                violation = rules.judge({**on, rule.name: math.nextafter(limit, beyond)})
                assert violation is not None
                assert (violation.measure, violation.bound, violation.kind) == (rule.name, limit, kind)


def test_a_nan_drops() -> None:
    violation = Rule("x", "x", "s", max=1.0).judge(math.nan)
    assert violation is not None
    assert violation.reason == "x is not a number, max 1"
    assert Rule("x", "x", "s").judge(math.nan) is not None


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


def test_a_value_that_is_missing_is_an_error_not_a_pass() -> None:
    with pytest.raises(KeyError):
        load_rules("gopher").judge({"words": 100})


def test_documents_are_measured_and_judged_together_as_alone(tmp_path: Path) -> None:
    (tmp_path / "deu_Latn.yml").write_text("dup_line_frac: 0.2\nmax_avg_word_length: 14\n")
    rules = load_rules(["gopher,c4,profanity", tmp_path / "deu_Latn.yml"])
    texts = ["", "short", PROSE, PROSE + "\n" + PROSE, "# # # { shit }\n" * 60, "汉字" * 80, PROSE]
    contexts = [{"language": "de" if k % 2 else "en", "language_score": 0.9} for k in range(len(texts))]
    measured = rules.measure_all(texts, contexts)
    violations = rules.judge_all(measured)
    assert len({violation and violation.measure for violation in violations}) > 3
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
    assert violation.measure == rules.measures[3]
    assert load_rules("none").judge_all(load_rules("none").measure_all([PROSE])) == [None]


def test_other_limits_need_no_measuring() -> None:
    rules = load_rules("gopher")
    values = rules.measure("one of the few words")
    assert rules.judge(values) is not None
    assert rules.with_limit("words", "min", 3).judge(values) is None
    with pytest.raises(ConfigError, match="did you mean 'words'"):
        rules.with_limit("word", "min", 3)


def test_later_sets_replace_limits_and_extend(tmp_path: Path) -> None:
    path = rule_file(
        tmp_path,
        """
        extends = ["gopher"]
        words = { min = 20 }
        bullet_line_ratio = false
        stop_words = { words = ["der", "die"] }
        longest_word = { max = 40 }
        """,
    )
    rules = {rule.name: rule for rule in load_rules(path).rules}
    assert (rules["words"].min, rules["words"].max, rules["words"].rule_set) == (20, 100_000, "own")
    assert "bullet_line_ratio" not in rules
    assert (rules["stop_words"].min, rules["stop_words"].parameters) == (2, {"words": ["der", "die"]})
    assert list(rules)[-1] == "longest_word"
    assert load_rules(["gopher", path]).describe() == load_rules(path).describe()


def test_one_measure_can_be_limited_under_several_names() -> None:
    rules = load_rules("gopher,fineweb")
    values = rules.measure("It rained.\nIt rained.\nIt stopped.\n" + PROSE)
    assert values["duplicate_line_char_ratio"] == values["fineweb_duplicate_line_char_ratio"] > 0.01


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
        ("words = { min = '5' }", "min must be a number, not '5'"),
        ("words = { min = nan }", "min must be a number"),
        ("words = { min = true }", "min must be a number"),
        ("words = 5", "must be a table"),
        ("stop_words = { min = 2 }", "needs words"),
        ("extends = ['gophr']", "did you mean 'gopher'"),
        ("extends = ['own.toml']", "extends itself"),
        ("words = ", "is not TOML"),
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


def test_unknown_rule_sets_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'fineweb'"):
        load_rules("gopher,finweb")
    with pytest.raises(ConfigError, match=r"none\.toml' does not exist; bundled rule sets: c4, code"):
        load_rules(str(tmp_path / "none.toml"))


def test_a_measure_of_ones_own_is_five_lines(tmp_path: Path) -> None:
    (tmp_path / "rules_test_measures.py").write_text(
        "def exclamation_ratio(page, *, mark='!'):\n    return page.text.count(mark) / max(len(page.text), 1)\n"
    )
    path = rule_file(
        tmp_path,
        """
        "rules_test_measures:exclamation_ratio" = { max = 0.25 }
        questions = { measure = "rules_test_measures:exclamation_ratio", mark = "?", max = 0 }
        """,
    )
    rules = load_rules(path)
    values = rules.measure("a!!?")
    assert values == {"rules_test_measures:exclamation_ratio": 0.5, "questions": 0.25}
    violation = rules.judge(values)
    assert violation is not None
    assert violation.reason == "rules_test_measures:exclamation_ratio 0.5 > 0.25"
    before = rules.describe()
    with open(tmp_path / "rules_test_measures.py", "a") as file:
        file.write("# edited\n")
    assert load_rules(path).describe() != before  # an edited measure is another recipe


def own_measures(folder: Path, source: str, rules: str, name: str = "own_measures") -> RuleSet:
    """Rules of a rule file in a folder of its own, with a module beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(source)
    return load_rules(rule_file(folder, rules))


def test_a_measure_is_not_tried_on_a_text_of_no_document(tmp_path: Path) -> None:
    source = "def words_per_line(page):\n    return len(page.words) / len(page.lines)\n"
    rules = own_measures(
        tmp_path, source, '"own_measures:words_per_line" = { max = 9 }\nwords = { min = 1 }\nsentences = { min = 0 }'
    )
    rules.prepare()
    assert rules.measure("one two\nthree")["own_measures:words_per_line"] == 1.5


def test_an_exception_of_a_measure_names_document_measure_and_cause(tmp_path: Path) -> None:
    source = "def f(page):\n    return 1 / page.text.count('a')\n"
    rules = own_measures(tmp_path, source, 'ratio = { measure = "own_measures:f", max = 9 }')
    with pytest.raises(
        BuildError, match=r"^in: line 7: measure 'own_measures:f' \(rule 'ratio'\) of .*'own'.*ZeroDivision"
    ) as found:
        rules.measure_all(["a", "b"], where=[lambda: "in: line 3", lambda: "in: line 7"])
    assert isinstance(found.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("value", "shown"), [("None", "None of type NoneType"), ("'3'", "'3' of type str"), ("1j", "1j")]
)
def test_a_measure_that_returns_no_number_is_refused_with_what_it_returned(
    tmp_path: Path, value: str, shown: str
) -> None:
    rules = own_measures(tmp_path, f"def f(page):\n    return {value}\n", '"own_measures:f" = { max = 9 }')
    with pytest.raises(BuildError, match=f"measure 'own_measures:f' of rule set 'own' returned {shown}"):
        rules.measure("x")


@pytest.mark.parametrize(
    ("value", "number"), [("True", 1.0), ("3", 3.0), ("__import__('fractions').Fraction(1, 2)", 0.5)]
)
def test_a_measure_may_return_any_kind_of_number(tmp_path: Path, value: str, number: float) -> None:
    rules = own_measures(tmp_path, f"def f(page):\n    return {value}\n", '"own_measures:f" = { max = 9 }')
    assert rules.measure("x") == {"own_measures:f": number}


@pytest.mark.parametrize(
    ("value", "said"), [("None", "returned None"), ("text", "returned 'a'"), ("1 / 0", "raised ZeroDiv")]
)
def test_a_cleaner_that_fails_or_returns_something_else_is_named(tmp_path: Path, value: str, said: str) -> None:
    rules = own_measures(tmp_path, f"def f(text):\n    return {value}\n", '[cut]\n"own_measures:f" = {}')
    with pytest.raises(BuildError, match=f"in: line 3: cleaner 'own_measures:f' {said}"):
        rules.cut("a", lambda: "in: line 3")


def test_two_modules_of_one_name_are_two_modules(tmp_path: Path) -> None:
    both = [
        own_measures(tmp_path / name, f"def f(page):\n    return {number}\n", '"own_measures:f" = { max = 9 }')
        for name, number in (("one", 1), ("two", 2))
    ]
    assert [rules.measure("x")["own_measures:f"] for rules in both] == [1, 2]
    assert both[0].describe() != both[1].describe()


def test_a_module_that_was_edited_runs_as_edited(tmp_path: Path) -> None:
    for number in (1, 2):
        rules = own_measures(tmp_path, f"def f(page):\n    return {number}\n", '"own_measures:f" = { max = 9 }')
        assert rules.measure("x") == {"own_measures:f": number}


HELPERS = {
    "own_measures.py": "import own_helper\nimport own_package.deep as deep\n\n\ndef f(page):\n"
    "    from own_late import late\n\n    return own_helper.ONE + deep.two() + late + own_package.TEN\n\n\nimport own_package\n",
    "own_helper.py": "import string\n\nONE = 1\n",
    "own_late.py": "late = 100\n",
    "own_package/__init__.py": "from .ten import TEN\n",
    "own_package/ten.py": "TEN = 10\n",
    "own_package/deep.py": "from . import ten\n\n\ndef two():\n    return 2 * ten.TEN\n",
    "own_unused.py": "raise SystemExit\n",
}


@pytest.mark.parametrize("edited", sorted(set(HELPERS) - {"own_unused.py"}))
def test_modules_that_a_module_imports_from_its_folder_are_part_of_the_recipe(tmp_path: Path, edited: str) -> None:
    for name, source in HELPERS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    path = rule_file(tmp_path, '"own_measures:f" = { max = 999 }')
    before = load_rules(path)
    assert before.measure("x") == {"own_measures:f": 131}
    (tmp_path / "own_unused.py").write_text("# edited\n")
    assert load_rules(path).describe() == before.describe()
    with open(tmp_path / edited, "a") as file:
        file.write("# edited\n")
    assert load_rules(path).describe() != before.describe()
    assert not [name for name in sys.modules if name.startswith("own_")]


def test_resolved_rules_measure_in_another_process_and_folder_without_the_files(tmp_path: Path) -> None:
    source = "from own_helper import VALUE\n\n\ndef f(page):\n    return VALUE\n"
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "own_helper.py").write_text("VALUE = 5\n")
    rules = own_measures(tmp_path / "there", source, '"own_measures:f" = { max = 9 }\nextends = ["gopher"]')
    (tmp_path / "rules.json").write_text(json.dumps(rules.to_json()))
    shutil.rmtree(tmp_path / "there")
    (tmp_path / "own_measures.py").write_text("def f(page):\n    return 7\n")
    code = (
        "import json; from filters.rules.ruleset import RuleSet; rules = RuleSet.from_json(json.load(open('rules.json')));"
        "print(json.dumps([rules.measure('some text'), rules.describe()]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT)
    assert json.loads(done.stdout or "[]") == [rules.measure("some text"), rules.describe()], done.stderr


def test_files_that_rules_name_lie_beside_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "rude.txt").write_text("rutabaga\n")
    rule_file(tmp_path / "base", 'profanity_ratio = { max = 0.1, word_list = "rude.txt" }', "base.toml")
    path = rule_file(tmp_path, 'extends = ["base/base.toml"]\nprofanity_ratio = { max = 0.2 }')
    assert load_rules(path).measure("a rutabaga") == {"profanity_ratio": 0.5}


def test_a_file_that_changed_since_the_rules_were_resolved_is_refused_with_both_hashes(tmp_path: Path) -> None:
    (tmp_path / "rude.txt").write_text("rutabaga\n")
    resolved = load_rules(rule_file(tmp_path, 'profanity_ratio = { max = 0.1, word_list = "rude.txt" }')).to_json()
    (tmp_path / "rude.txt").write_text("rutabaga\n")  # only its time differs
    os.utime(tmp_path / "rude.txt", (1, 1))
    assert RuleSet.from_json(resolved).measure("a rutabaga") == {"profanity_ratio": 0.5}
    (tmp_path / "rude.txt").write_text("turnip\n")
    with pytest.raises(
        BuildError, match=r"rude\.txt: it changed during the build: its sha256 was \w{64}, now it is \w{64}"
    ):
        RuleSet.from_json(resolved)


def test_a_cleaner_of_ones_own_counts_what_it_cuts(tmp_path: Path) -> None:
    (tmp_path / "rules_test_cleaners.py").write_text(
        "def shout(text, *, mark):\n    return text.replace(mark, ''), {'marks': text.count(mark)}\n"
    )
    rules = load_rules(rule_file(tmp_path, '[cut]\n"rules_test_cleaners:shout" = { mark = "!" }\nduplicate_lines = {}'))
    assert rules.cut("a!\na\nb") == (
        "a\nb",
        {"rules_test_cleaners:shout.marks": 1, "duplicate_lines.duplicate": 1},
    )


def test_rules_cross_to_worker_processes_whole(tmp_path: Path) -> None:
    rules = load_rules("gopher,fineweb,c4")
    copy = pickle.loads(pickle.dumps(rules))
    assert copy.describe() == rules.describe()
    assert copy.measure(PROSE) == rules.measure(PROSE)


def test_the_compiled_scan_and_the_plain_measures_give_one_set_of_values() -> None:
    rules = load_rules("gopher,fineweb")
    plain = RuleSet([*rules.rules, Rule("lines_of_29", "short_line_ratio", "s", max=1, parameters={"longest": 29})])
    values = plain.measure("- one\n" * 5 + PROSE)
    assert values["lines_of_29"] == values["short_line_ratio"]
    assert set(rules.measures) - {"fineweb_duplicate_line_char_ratio"} <= set(SCANNED)


PROFILE = """\
dup_line_frac: 0.263
dup_n_grams:
- - 5
  - 0.141
- - 10
  - 0.098
language_score: 0.821
line_punct_thr: 0.0
max_avg_word_length: 15
max_non_alpha_words_ratio: 0.774
min_avg_word_length: 0
new_line_ratio: 0.152
stopwords:
- der
- und
- no
- "f\\xFCr"
top_n_grams:
- - 2
  - 0.169
"""


def test_profiles_of_fineweb2_load_unchanged(tmp_path: Path) -> None:
    rules = load_rules(rule_file(tmp_path, PROFILE, "deu_Latn.yml"))
    limits = {rule.name: (rule.min, rule.max) for rule in rules.rules if rule.language == "de"}
    no, inf = -math.inf, math.inf
    assert limits == {
        "deu_Latn.duplicate_line_ratio": (no, 0.263),
        "deu_Latn.duplicate_5_gram_ratio": (no, 0.141),
        "deu_Latn.duplicate_10_gram_ratio": (no, 0.098),
        "deu_Latn.language_score": (0.821, inf),
        "deu_Latn.terminal_line_ratio": (0, inf),
        "deu_Latn.mean_word_length": (0, 15),
        "deu_Latn.alphabetic_ratio": (0.774, inf),
        "deu_Latn.newline_ratio": (no, 0.152),
        "deu_Latn.stop_words": (2, inf),
        "deu_Latn.top_2_gram_ratio": (no, 0.169),
    }
    stop_words = next(rule for rule in rules.rules if rule.name == "deu_Latn.stop_words")
    assert stop_words.parameters["words"] == ["der", "und", "no", "für"]
    general = {rule.name: rule.max for rule in rules.rules if not rule.language}
    assert general["duplicate_line_char_ratio"] == 0.1  # FineWeb2's, for all languages


def test_a_profile_holds_for_its_language_alone(tmp_path: Path) -> None:
    german = rule_file(tmp_path, PROFILE, "deu_Latn.yml")
    french = rule_file(tmp_path, "stopwords: [le, la]\n", "fra_Latn.yml")
    rules = load_rules([german, french])
    text = "Der Hund und die Katze lagen für sich. " * 9 + "Nur eins ist neu."
    values = rules.measure(text, {"language": "de", "language_score": 0.5})
    assert values["deu_Latn.stop_words"] == 3
    assert "fra_Latn.stop_words" not in values
    violation = rules.with_limit("deu_Latn.top_2_gram_ratio", "max", 1).judge(values)
    assert violation is not None
    assert violation.measure.startswith("deu_Latn.") or violation.measure == "duplicate_line_char_ratio"
    assert not [name for name in rules.measure(text, {"language": "en"}) if "_Latn" in name]
    assert rules.measure(text, {"language": "fr"})["fra_Latn.stop_words"] == 0


def test_profiles_of_two_scripts_of_one_language_hold_for_texts_in_their_own(tmp_path: Path) -> None:
    latin = rule_file(tmp_path, "stopwords: [je, na]\n", "srp_Latn.yml")
    cyrillic = rule_file(tmp_path, "stopwords: [је, на]\n", "srp_Cyrl.yml")
    rules = load_rules([latin, cyrillic])
    texts = ["Grad je na reci.", "Град је на реци.", "Grad je na reci.", "Град је на реци."]
    labels = ["sr", "sr", "srp_Cyrl", "srp_Latn"]  # a model's label, where it names a script, is believed
    contexts = [{"language": "sr", "language_label": label} for label in labels]
    held = [
        {name.partition(".")[0]: value for name, value in values.items() if name.endswith("stop_words")}
        for values in rules.named(rules.measure_all(texts, contexts))
    ]
    assert held == [{"srp_Latn": 2}, {"srp_Cyrl": 2}, {"srp_Cyrl": 0}, {"srp_Latn": 0}]
    assert len({json.dumps(each.describe()) for each in map(load_rules, (latin, cyrillic))}) == 2


@pytest.mark.parametrize("label", ["ja", "jpn_Jpan"])
def test_a_profile_of_a_script_that_mixes_others_holds_for_them(tmp_path: Path, label: str) -> None:
    rules = load_rules(rule_file(tmp_path, "new_line_ratio: 0.3\n", "jpn_Jpan.yml"))
    for text in ("東京都庁舎", "ひらがな", "カタカナ"):
        assert "jpn_Jpan.newline_ratio" in rules.measure(text, {"language": "ja", "language_label": label})


@pytest.mark.parametrize("language", ["de", "deu", "deu_Latn"])
def test_the_language_of_a_rule_file_is_a_code_or_a_label(tmp_path: Path, language: str) -> None:
    rules = load_rules(rule_file(tmp_path, f'language = "{language}"\nwords = {{ min = 3 }}'))
    assert rules.measure("ein Wort", {"language": "de", "language_label": "de"}) == {"own.words": 2}
    assert rules.measure("one word", {"language": "en", "language_label": "en"}) == {}


@pytest.mark.parametrize(
    ("text", "message"), [("dup_line_fraction: 1", "did you mean 'dup_line_frac'"), ("- a", "no keys")]
)
def test_profiles_with_other_keys_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_rules(rule_file(tmp_path, text, "deu_Latn.yml"))


def test_loading_rules_loads_no_compiler_and_no_model() -> None:
    code = (
        "import sys; from filters.rules.ruleset import load_rules; load_rules('gopher,c4,code,profanity').describe();"
        "print(sorted({'numba', 'fasttext', 'torch', 'pyarrow', 'yaml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.stdout.strip() == "[]", done.stderr
