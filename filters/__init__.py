"""Measures, one idea a file, and the rule sets that judge them.

A measure is a plain function from a `Page` (a document and its words, lines and paragraphs) to a number:

    def exclamation_ratio(page):
        return page.text.count("!") / max(len(page.text), 1)

Limits stand in rule files: `gopher.toml` here, or ``exclamation_ratio = { max = 0.05 }`` in one of your own, where
``"my_measures:exclamation_ratio" = { max = 0.05 }`` names a function in a module of your own.

    characters.py   which kind of character is which
    page.py         a document's words, marks, lines and paragraphs: the definitions
    length.py       how long it is
    wording.py      whether it is worded like prose
    lines.py        what its lines look like
    repetition.py   how much of it repeats itself
    sentences.py    sentences and tell-tale phrases, as C4 has them
    code.py         how much of it is source code or markup
    profanity.py    how much of it is on a list of words
    cutting.py      cutters: what may be cut from a document before it is measured
    language.py     which language it is in; by a fastText model (model_file.py), of the usual kind by compiled loops
                    (fasttext.py)
    scripts.py      which script it is written in, for languages that are written in several
    scan.py         those of the measures above that builds need most, for many documents in one compiled pass
    screens.py      others of them for many documents, each in a pass of its own

Nothing here imports the pipeline, but its errors and its compiler; compiled code and models are loaded when first used.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filters.page import Page, share

__all__ = [
    "MEASURE_MODULES",
    "SCANNED",
    "SCREENED",
    "Measure",
    "Page",
    "bundled_rule_sets",
    "cutters",
    "measures",
    "share",
]

Measure = Callable[..., float]

MEASURE_MODULES = ("length", "wording", "lines", "repetition", "sentences", "code", "profanity", "language")


SCANNED = (
    "characters", "words", "lines", "paragraphs", "longest_word", "mean_word_length", "alphabetic_ratio", "hash_ratio",
    "ellipsis_ratio", "stop_words", "bullet_line_ratio", "ellipsis_line_ratio", "terminal_line_ratio",
    "short_line_ratio", "newline_ratio", "duplicate_line_ratio", "duplicate_line_char_ratio",
    "duplicate_paragraph_ratio", "duplicate_paragraph_char_ratio", "top_2_gram_ratio", "top_3_gram_ratio",
    "top_4_gram_ratio", "duplicate_5_gram_ratio", "duplicate_6_gram_ratio", "duplicate_7_gram_ratio",
    "duplicate_8_gram_ratio", "duplicate_9_gram_ratio", "duplicate_10_gram_ratio",
)  # fmt: skip
"""The measures that `filters.scan` takes of a document in one compiled pass, with default parameters, in its order."""


SCREENED = ("sentences", "code_line_ratio", "code_symbol_ratio", "profanity_ratio")
"""The measures that `filters.screens` takes of many documents at once, by functions of the same names."""


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


def measures() -> dict[str, Measure]:
    """Return every measure of this package by name: its public functions of a `page` and keywords.

    >>> sorted(name for name in measures() if "bullet" in name)
    ['bullet_line_ratio']
    """
    return {name: function for module in MEASURE_MODULES for name, function in _functions(module, "page").items()}


def cutters() -> dict[str, Callable[..., tuple[str, dict[str, int]]]]:
    """Return every cutter by name: functions from a `text` to what is left of it and counts of what was cut."""
    return _functions("cutting", "text")


def bundled_rule_sets() -> dict[str, Path]:
    """Return the rule files of this package by name.

    >>> sorted(bundled_rule_sets())[:2]
    ['c4', 'code']
    """
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
