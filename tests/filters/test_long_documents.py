"""Every built-in rule judges a long document of any kind within the time limit of a test.

Work that grows with the square of the length takes minutes here.
"""

from __future__ import annotations

import inspect

import pytest

import filters
from filters import Page
from filters.language.language import LanguageIdentifier, bundled_model
from filters.measures.profanity import DEFAULT_LIST
from filters.measures.sentences import sentences
from filters.rules.ruleset import RuleSet, load_rules
from pipeline.text.normalize import normalize
from tests.helpers.rule_samples import rule_file

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
    "url_blocked": f"words = '{DEFAULT_LIST}'",
    "fasttext_score": f"model = '{bundled_model()}', label = '__label__en'",
}


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> RuleSet:
    """Every measure, by each of the ways to count that are built in."""
    lines = []
    for name, function in filters.measure_functions().items():
        entry = ", ".join(["max = 9e9", *([PARAMETERS[name]] if name in PARAMETERS else [])])
        lines.append(f"{name} = {{ {entry} }}")
        if "by" in inspect.signature(function).parameters:
            lines.append(f'by_{name} = {{ measure = "{name}", by = "pieces", {entry} }}')
    return load_rules(rule_file(tmp_path_factory.mktemp("rules"), "\n".join(lines)))


@pytest.mark.parametrize("kind", TEXTS)
def test_a_long_document_of_one_kind_is_judged_within_the_time_limit(kind: str, rules: RuleSet) -> None:
    size = 1 << 18
    text = normalize((TEXTS[kind] * size)[:size] + "z")
    LanguageIdentifier().identify(text)
    for cleaner in filters.cleaner_functions().values():
        cleaner(text)
    rules.measure(text, {"metadata": {"score": 1}, "language_score": 1.0})
    sentences(Page(text))  # the definition of a compiled measure, by an expression
