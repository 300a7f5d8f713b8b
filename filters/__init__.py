"""Measures, one idea a file, and the rule sets that judge them.

A measure is a plain function from a `Page` (a document, with its words, lines and paragraphs) to a number:

    def exclamation_ratio(page):
        return page.text.count("!") / max(len(page.text), 1)

Limits stand in rule files: ``presets/gopher.toml``, or ``exclamation_ratio = { max = 0.05 }`` in one of your own, where
``"my_measures:exclamation_ratio" = { max = 0.05 }`` names a function in a module of your own.

    text_view.py        a document's words, marks, lines and paragraphs: the definitions
    spacy_tokens.py     a text as spaCy's English tokenizer splits it, to decide as datatrove does
    unicode_classes.py  which kind of character is which
    measures/           the measures: length, words, lines, repetition, sentences, code, profanity
    cleaners/           cut parts of a document before it is measured
    language/           which language and script a document is in
    compiled/           the same measures for many documents at once, in compiled passes
    rules/              rule files -> limits on measures, and which of them a document violates; modules of the user
    presets/            rule files: Gopher, C4, FineWeb, FineWeb2, code, profanity, HTML remnants

Nothing here imports the pipeline, but its errors and its compiler; compiled code and models are loaded when first used.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filters.measures
from filters.text_view import Page, share

__all__ = [
    "Measure",
    "Page",
    "bundled_rule_sets",
    "cleaner_functions",
    "measure_functions",
    "share",
    "summary",
]

Measure = Callable[..., float]


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
    """Return every measure of this package by name: the public functions of a `page` and keywords in `measures/`.

    To add a measure, write such a function there.

    >>> sorted(name for name in measure_functions() if "bullet" in name)
    ['bullet_line_ratio']
    """
    modules = [f"measures.{found.name}" for found in pkgutil.iter_modules(filters.measures.__path__)]
    modules.append("language.language")
    return {name: function for module in modules for name, function in _functions(module, "page").items()}


def cleaner_functions() -> dict[str, Callable[..., tuple[str, dict[str, int]]]]:
    """Return every cleaner by name: functions from a `text` to the text that is left and counts of what was cut."""
    return _functions("cleaners.cleaners", "text")


def summary(function: Callable[..., Any]) -> str:
    """Return what a measure or cleaner does: the first sentence of its docstring, without markup.

    >>> summary(measure_functions()["bullet_line_ratio"])
    'the share of lines that begin with a bullet point or a hyphen'
    """
    first = (inspect.getdoc(function) or "").partition("\n\n")[0]
    return " ".join(first.split()).removeprefix("Return ").rstrip(".").replace("`", "")


def bundled_rule_sets() -> dict[str, Path]:
    """Return the rule files of this package by name.

    >>> sorted(bundled_rule_sets())[:2]
    ['c4', 'code']
    """
    return {path.stem: path for path in sorted((Path(__file__).parent / "presets").glob("*.toml"))}
