"""Measures, one idea a file, and the rule sets that judge them.

A measure is a plain function from a `Page` (a document and its words, lines and paragraphs) to a number:

    def exclamation_ratio(page):
        return page.text.count("!") / max(len(page.text), 1)

Limits stand in rule files: `gopher.toml` here, or ``exclamation_ratio = { max = 0.05 }`` in one of your own, where
``"my_measures:exclamation_ratio" = { max = 0.05 }`` names a function in a module of your own.

    text_view.py        a document's words, marks, lines and paragraphs: the definitions
    unicode_classes.py  which kind of character is which
    measures/           the measures: length, words, lines, repetition, sentences, code, profanity
    cleaners/           what is cut from a document before it is measured
    language/           which language and script a document is in
    compiled/           the same measures for many documents at once, in compiled passes
    rules/              rule files -> limits on measures -> verdicts; modules of the user
    presets/            rule files: Gopher, C4, FineWeb, FineWeb2, code, profanity

Nothing here imports the pipeline, but its errors and its compiler; compiled code and models are loaded when first used.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filters.text_view import Page, share

__all__ = [
    "MEASURE_MODULES",
    "SCANNED",
    "SCREENED",
    "Measure",
    "Page",
    "bundled_rule_sets",
    "cleaner_functions",
    "measure_functions",
    "share",
]

Measure = Callable[..., float]

MEASURE_MODULES = (
    "measures.length", "measures.words", "measures.lines", "measures.repetition", "measures.sentences", "measures.code",
    "measures.profanity", "language.language",
)  # fmt: skip


SCANNED = (
    "characters", "words", "lines", "paragraphs", "longest_word", "mean_word_length", "alphabetic_ratio", "hash_ratio",
    "ellipsis_ratio", "stop_words", "bullet_line_ratio", "ellipsis_line_ratio", "terminal_line_ratio",
    "short_line_ratio", "newline_ratio", "duplicate_line_ratio", "duplicate_line_char_ratio",
    "duplicate_paragraph_ratio", "duplicate_paragraph_char_ratio", "top_2_gram_ratio", "top_3_gram_ratio",
    "top_4_gram_ratio", "duplicate_5_gram_ratio", "duplicate_6_gram_ratio", "duplicate_7_gram_ratio",
    "duplicate_8_gram_ratio", "duplicate_9_gram_ratio", "duplicate_10_gram_ratio",
)  # fmt: skip
"""The measures that `filters.compiled.scan` takes of a document in one compiled pass, with default parameters, in its order."""


SCREENED = ("sentences", "code_line_ratio", "code_symbol_ratio", "profanity_ratio")
"""The measures that `filters.compiled.screens` takes of many documents at once, by functions of the same names."""


@functools.cache
def _functions(module_name: str, first: str) -> dict[str, Callable[..., Any]]:
    """Return the public functions of a module whose first parameter is `first` and that need no other."""
    module = importlib.import_module(f"filters.{module_name}")
    found: dict[str, Callable[..., Any]] = {}
    for name, function in inspect.getmembers(module, inspect.isfunction):
        own = function.__module__ == module.__name__ and not name.startswith("_")
        parameters = list(inspect.signature(function).parameters.values())
        alone = all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters[1:])
        if own and alone and parameters and parameters[0].name == first:
            found[name] = function
    return found


def measure_functions() -> dict[str, Measure]:
    """Return every measure of this package by name: its public functions of a `page` and keywords.

    >>> sorted(name for name in measure_functions() if "bullet" in name)
    ['bullet_line_ratio']
    """
    return {name: function for module in MEASURE_MODULES for name, function in _functions(module, "page").items()}


def cleaner_functions() -> dict[str, Callable[..., tuple[str, dict[str, int]]]]:
    """Return every cutter by name: functions from a `text` to what is left of it and counts of what was cut."""
    return _functions("cleaners.cleaners", "text")


def bundled_rule_sets() -> dict[str, Path]:
    """Return the rule files of this package by name.

    >>> sorted(bundled_rule_sets())[:2]
    ['c4', 'code']
    """
    return {path.stem: path for path in sorted((Path(__file__).parent / "presets").glob("*.toml"))}
