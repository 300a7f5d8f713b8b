"""Measures, one idea per file, and the rule sets that limit them.

A measure is a plain function from a `Page` (a document, with its words, lines and paragraphs) to a number:

    def exclamation_ratio(page):
        return page.text.count("!") / max(len(page.text), 1)

Its first parameter is named `page`. All others are keywords, which a rule sets. The first paragraph of its docstring begins
with "Return": ``--list-rules`` shows the rest of that paragraph. A build's histogram ends at 1 if the name of the measure
contains ``ratio`` or ``score``, else at twice the largest limit. In `measures/`, every public function that returns a number is
a measure, and no two have the same name.

Rule files set the limits: a preset such as ``presets/gopher.toml``, or a file of your own with
``exclamation_ratio = { max = 0.05 }``. ``"my_measures:exclamation_ratio" = { max = 0.05 }`` names a function in your own module.

    text_view.py        the definitions of words, marks, lines and paragraphs
    words.py            the words by which texts are compared
    spacy_tokens.py     a text split by spaCy's English tokenizer, to decide as datatrove does (an extra)
    unicode_classes.py  kinds of characters
    measures/           the measures: length, words, lines, repetition, sentences, code, source files, profanity, urls
    cleaners/           functions that cut parts of a document before it is measured
    language/           the language and the script of a document
    compiled/           the usual measures of many documents at once, in compiled passes, which save time
    rules/              rule files -> limits on measures, and the limit that a document violates; modules of the user
    presets/            rule files: Gopher, C4, FineWeb, FineWeb2, code, files of code, profanity, HTML remnants, addresses

This room imports no other room of the pipeline, only small modules such as errors and notices. Compiled code and models are
loaded when first used.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import filters.measures
from filters.text_view import Page, share
from pipeline.errors import ConfigError

__all__ = ["Measure", "Page", "bundled_rule_sets", "cleaner_functions", "measure_functions", "share", "summary"]

Measure = Callable[..., float]


def _public_functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions that a module defines, by name, except those that begin with an underscore."""
    functions = inspect.getmembers(module, inspect.isfunction)
    return {
        name: function
        for name, function in functions
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


def _takes(function: Callable[..., Any], first: str) -> bool:
    """Whether the first parameter of a function is named `first` and all others are keywords."""
    parameters = list(inspect.signature(function).parameters.values())
    alone = all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters[1:])
    return alone and bool(parameters) and parameters[0].name == first


def find_measures(modules: Iterable[ModuleType]) -> dict[str, Measure]:
    """Return the measures of modules by name: their public functions that return a number or have no return annotation.

    Raises ``ConfigError`` if a function does not have the parameters of a measure, or two have one name.
    """
    measures: dict[str, Measure] = {}
    for module in modules:
        for name, function in _public_functions(module).items():
            if function.__annotations__.get("return", float) not in (int, float, "int", "float"):
                continue
            if not _takes(function, "page"):
                raise ConfigError(
                    f"{_place(function)}: {name}{inspect.signature(function)} is no measure: its first parameter must be "
                    "named page and all others be keywords (after *); begin the name of a helper with an underscore"
                )
            if name in measures:
                raise ConfigError(
                    f"{_place(function)}: {_place(measures[name])} has a measure {name!r} too; rename one"
                )
            measures[name] = function
    return measures


def _place(function: Callable[..., Any]) -> str:
    code = inspect.unwrap(function).__code__
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"


@functools.cache
def _measures() -> Mapping[str, Measure]:
    measures = filters.measures
    return find_measures(
        import_module(f"{measures.__name__}.{m.name}") for m in pkgutil.iter_modules(measures.__path__)
    )


def measure_functions() -> dict[str, Measure]:
    """Return every measure of this package by name: to add one, write a function in `measures/`.

    >>> sorted(name for name in measure_functions() if "bullet" in name)
    ['bullet_line_ratio']
    """
    return dict(_measures())


def cleaner_functions() -> dict[str, Callable[..., tuple[str, dict[str, int]]]]:
    """Return every cleaner by name: a function from a `text` to the remaining text and the counts of cuts."""
    modules = ("filters.cleaners.cleaners", "filters.cleaners.pii")
    functions = {name: each for module in modules for name, each in _public_functions(import_module(module)).items()}
    return {name: function for name, function in functions.items() if _takes(function, "text")}


def summary(function: Callable[..., Any]) -> str:
    """Return the first paragraph of a measure's or cleaner's docstring, without markup and "Return".

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
