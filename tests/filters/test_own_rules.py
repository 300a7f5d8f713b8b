"""Rule files name measures, cleaners and word lists of one's own, which are part of the recipe."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from filters.rules.ruleset import RuleSet, load_rules
from pipeline.errors import BuildError, ConfigError
from tests.helpers.rule_samples import rule_file

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


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
    entries = '"own_measures:words_per_line" = { max = 9 }\nwords = { min = 1 }\nsentences = { min = 0 }'
    rules = own_measures(tmp_path, source, entries)
    rules.prepare()
    assert rules.measure("one two\nthree")["own_measures:words_per_line"] == 1.5


def test_an_exception_of_a_measure_names_document_measure_and_cause(tmp_path: Path) -> None:
    source = "def f(page):\n    return 1 / page.text.count('a')\n"
    rules = own_measures(tmp_path, source, 'ratio = { measure = "own_measures:f", max = 9 }')
    said = r"^in: line 7: measure 'own_measures:f' \(rule 'ratio'\) of .*'own'.*ZeroDivision"
    with pytest.raises(BuildError, match=said) as found:
        rules.measure_all(["a", "b"], location=[lambda: "in: line 3", lambda: "in: line 7"])
    assert isinstance(found.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("value", "shown"), [("None", "None of type NoneType"), ("'3'", "'3' of type str"), ("1j", "1j")]
)
def test_a_measure_that_returns_no_number_is_refused(tmp_path: Path, value: str, shown: str) -> None:
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
    "own_package/four.py": "FOUR = 4\n",
    "own_package/ten.py": "TEN = 10\n",
    "own_package/deep.py": "from . import four, ten\n\n\ndef two():\n    return 2 * ten.TEN + four.FOUR\n",
    "own_unused.py": "raise SystemExit\n",
}


@pytest.mark.parametrize("edited", sorted(set(HELPERS) - {"own_unused.py"}))
def test_modules_imported_from_the_same_folder_are_part_of_the_recipe(tmp_path: Path, edited: str) -> None:
    for name, source in HELPERS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    path = rule_file(tmp_path, '"own_measures:f" = { max = 999 }')
    before = load_rules(path)
    assert before.measure("x") == {"own_measures:f": 135}
    (tmp_path / "own_unused.py").write_text("# edited\n")
    assert load_rules(path).describe() == before.describe()
    with open(tmp_path / edited, "a") as file:
        file.write("# edited\n")
    assert load_rules(path).describe() != before.describe()
    assert not [name for name in sys.modules if name.startswith("own_")]


def test_resolved_rules_measure_elsewhere_without_their_files(tmp_path: Path) -> None:
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


def test_a_file_that_changed_since_rules_were_resolved_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rude.txt").write_text("rutabaga\n")
    resolved = load_rules(rule_file(tmp_path, 'profanity_ratio = { max = 0.1, word_list = "rude.txt" }')).to_json()
    (tmp_path / "rude.txt").write_text("rutabaga\n")  # only its time differs
    os.utime(tmp_path / "rude.txt", (1, 1))
    assert RuleSet.from_json(resolved).measure("a rutabaga") == {"profanity_ratio": 0.5}
    (tmp_path / "rude.txt").write_text("turnip\n")
    with pytest.raises(BuildError, match=r"rude\.txt: it changed .* was \w{64}, now it is \w{64}"):
        RuleSet.from_json(resolved)
    (tmp_path / "rude.txt").unlink()
    with pytest.raises(BuildError, match=r"rude\.txt: cannot be read.*No such file.*restore it"):
        RuleSet.from_json(resolved)


def test_an_installed_module_is_part_of_the_recipe_by_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "rules_installed.py").write_text("def f(page):\n    return 1\n")
    (tmp_path / "site" / "rules_unmet.py").write_text("import rules_nowhere\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    rules = load_rules(rule_file(tmp_path, '"rules_installed:f" = { max = 9 }'))
    resolved = rules.to_json()
    assert RuleSet.from_json(resolved).describe() == rules.describe()
    sha256 = hashlib.sha256((tmp_path / "site" / "rules_installed.py").read_bytes()).hexdigest()
    assert f"rules_installed:f@{sha256[:16]}" in json.dumps(rules.describe())
    other = json.loads(json.dumps(resolved).replace(sha256, "0" * 64))
    said = rf"module 'rules_installed' .*rules_installed\.py.: its sha256 was 0{{64}}, here it is {sha256}; install the same"
    with pytest.raises(ConfigError, match=said):
        RuleSet.from_json(other)
    with pytest.raises(ConfigError, match=r"cannot be imported: ModuleNotFoundError: .*'rules_nowhere'"):
        load_rules(rule_file(tmp_path, '"rules_unmet:f" = { max = 9 }'))
    with pytest.raises(ConfigError, match=r"own_measures\.py cannot be read: SyntaxError: "):
        own_measures(tmp_path, "def f(page:\n", '"own_measures:f" = { max = 9 }')


def test_a_cleaner_of_ones_own_counts_what_it_cuts(tmp_path: Path) -> None:
    (tmp_path / "rules_test_cleaners.py").write_text(
        "def shout(text, *, mark):\n    return text.replace(mark, ''), {'marks': text.count(mark)}\n"
    )
    rules = load_rules(rule_file(tmp_path, '[cut]\n"rules_test_cleaners:shout" = { mark = "!" }\nduplicate_lines = {}'))
    counts = {"rules_test_cleaners:shout.marks": 1, "duplicate_lines.duplicate": 1}
    assert rules.cut("a!\na\nb") == ("a\nb", counts)
