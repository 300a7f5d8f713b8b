"""The time of every built-in rule grows with the length of a document, and not with its square, whatever the document is."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import filters
from filters import Page
from filters.language.language import LanguageIdentifier, bundled_model
from filters.rules.ruleset import RuleSet, load_rules
from pipeline.text.normalize import normalize
from tests.cost import is_linear
from tests.rule_samples import rule_file

SMALL, LARGE = 1 << 16, 1 << 20
TEXTS = {
    "one character": "a",
    "blanks": " ",
    "one line": "some words of a line that never ends, ",
    "angle brackets": "<",
    "digits": "7",
    "newlines": "\n",
    "full stops": ".",
    "initials": "a.",
    "combining marks": "e\u0301",
    "ideographs": "汉，",
    "syllables": "กเ",
}
REMNANTS = {
    "opened tags": "<a b='c\" ",
    "comments": "<!-- <",
    "tags and blanks": "<br> \n ",
    "ampersands": "&amp",
    "brackets": "[1",
}
PARAMETERS = {
    "stop_words": "words = ['the', 'of']",
    "top_ngram_ratio": "n = 7",
    "duplicate_ngram_ratio": "n = 7",
    "column_value": "column = 'score'",
    "column_in": "column = 'score', values = [1]",
    "fasttext_score": f"model = '{bundled_model()}', label = '__label__en'",
}
PRESETS = sorted(set(filters.bundled_rule_sets()) - {"gopher_datatrove"})


def assert_linear(rules: RuleSet, kind: str) -> None:
    def run(size: int) -> None:
        text = ((TEXTS | REMNANTS)[kind] * size)[:size] + "z"
        rules.measure(rules.cut(text)[0], {"metadata": {"score": 1}, "language_score": 1.0})

    assert is_linear(run, SMALL, LARGE)


@pytest.mark.parametrize("kind", TEXTS)
def test_all_measures_together_are_linear(tmp_path: Path, kind: str) -> None:
    lines = []
    for name, function in filters.measure_functions().items():
        entry = ", ".join(["max = 9e9", *([PARAMETERS[name]] if name in PARAMETERS else [])])
        lines.append(f"{name} = {{ {entry} }}")
        if "by" in inspect.signature(function).parameters:
            lines.append(f'by_{name} = {{ measure = "{name}", by = "pieces", {entry} }}')
    assert_linear(load_rules(rule_file(tmp_path, "\n".join(lines))), kind)


@pytest.mark.parametrize("kind", TEXTS | REMNANTS)
def test_every_cleaner_is_linear(tmp_path: Path, kind: str) -> None:
    for name in filters.cleaner_functions():
        assert_linear(load_rules(rule_file(tmp_path, f"[cut]\n{name} = {{}}", f"{name}.toml")), kind)


@pytest.mark.parametrize("kind", TEXTS)
def test_every_preset_is_linear(kind: str) -> None:
    for name in PRESETS:
        assert_linear(load_rules(name), kind)


@pytest.mark.parametrize("kind", TEXTS)
def test_normalising_and_identifying_the_language_are_linear(kind: str) -> None:
    identifier = LanguageIdentifier()

    def run(size: int) -> None:
        identifier.identify_all([normalize((TEXTS[kind] * size)[:size])])

    assert is_linear(run, SMALL, LARGE)


@pytest.mark.parametrize("name", ["sentences", "code_line_ratio", "profanity_ratio"])
@pytest.mark.parametrize("kind", TEXTS)
def test_definitions_of_compiled_measures_are_linear_too(name: str, kind: str) -> None:
    assert is_linear(
        lambda size: filters.measure_functions()[name](Page((TEXTS[kind] * size)[:size] + "z")), SMALL // 4, LARGE // 4
    )
