"""Shared by commands that read texts: flags of a build's settings, the list of rules, documents and bad records.

`pipeline.builder.recipe` declares the names, types, defaults and help of settings.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import filters
from filters.rules.rule import limits_text
from filters.rules.rule_files import made_for
from filters.rules.ruleset import RuleSet, load_rules
from pipeline.builder.recipe import Recipe, setting_types
from pipeline.builder.setting import flag_of, setting_of
from pipeline.text.fields import Field
from pipeline.text.readers.document_reader import BadRecord, Document, DocumentReader, InputFile, field_finder

WIDTH = 118  # columns of the lists of rules and measures
_FIELDS = {item.name: item for item in fields(Recipe)}


def _count(value: str) -> int:
    """Parse a whole number; 64_000_000 and 64e6 are valid, too."""
    try:
        return int(value)
    except ValueError:
        if not float(value).is_integer():
            raise
        return int(float(value))


_count.__name__ = "whole number"  # argparse shows this name in errors


def _count_or_share(value: str) -> int | float:
    """Parse a whole number, or a share between 0 and 1, as 0.01 or 1%."""
    share = float(value[:-1]) / 100 if value.endswith("%") else float(value)
    return share if 0 < share < 1 else _count(value)


_count_or_share.__name__ = "whole number or share"


def parser_of(types: frozenset[type]) -> Callable[[str], object]:
    """Return the function that parses the flag of a setting with these types."""
    if int in types:
        return _count_or_share if float in types else _count
    return float if float in types else str


def add_setting(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the flag of a setting, to its group if there is one. Without the flag, the value is None: see ``--config``."""
    item = _FIELDS[name]
    setting, types, default = setting_of(item.metadata), setting_types()[name], item.default
    place = next((group for group in parser._action_groups if group.title == setting.group), parser)
    if bool in types:
        action = "store_false" if default else "store_true"
        place.add_argument(flag_of(item), dest=name, action=action, default=None, help=setting.help)
        return
    shown = ",".join(default) if isinstance(default, tuple) else "" if default is None else str(default)
    help = setting.help if "(default" in setting.help or not shown else f"{setting.help} (default: {shown})"
    place.add_argument(flag_of(item), type=parser_of(types), choices=setting.choices or None, help=help)


def rule_list() -> str:
    """Return a list of all bundled rule sets, measures and cleaners, with a line for each.

    >>> "50 to 100,000" in rule_list()
    True
    """
    lines = ["Rule sets: --rules NAME, or several joined by commas", ""]
    for name, path in filters.bundled_rule_sets().items():
        language = f"  (made for {made_for(name)})" if made_for(name) else ""
        lines += [f"{name}{language}", *_comment(path), *_rules(load_rules(name)), ""]
    lines += ["Measures, for rule files: NAME = { min = ..., max = ... }", "", *_functions(filters.measure_functions())]
    lines += ["", "Cleaners, for rule files: under [cut], NAME = {}", "", *_functions(filters.cleaner_functions())]
    return "\n".join(lines)


def measure_names() -> str:
    """Return the names of all measures, for a help text."""
    names = f"measures (--list-rules explains them): {', '.join(sorted(filters.measure_functions()))}"
    return textwrap.fill(names, WIDTH, break_on_hyphens=False)


def _comment(path: Path) -> list[str]:
    """Return the first sentence of the comment at the top of a rule file, without urls."""
    text = path.read_text(encoding="utf-8")
    words = " ".join(line.lstrip("# ") for line in text.split("\n\n")[0].splitlines() if line.startswith("#"))
    sentence = re.split(r"(?<!\bal)\. ", re.sub(r", https://[^\s),]*[^\s),.]", "", words))[0].rstrip(".")
    return textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _rules(rules: RuleSet) -> list[str]:
    return [f"  {rule.name:<34}{limits_text(rule.min, rule.max)}" for rule in rules.rules] + [
        f"  {cleaner.name:<34}cleaner" for cleaner in rules.cleaners
    ]


def _functions(functions: dict[str, Callable[..., Any]]) -> list[str]:
    wrap = textwrap.TextWrapper(WIDTH, subsequent_indent=" " * 34, break_on_hyphens=False)
    return [wrap.fill(f"  {name:<32}{filters.summary(function)}") for name, function in sorted(functions.items())]


class CountingReader:
    """Reads and counts documents. Counts bad records, and prints the reason of the first."""

    def __init__(self) -> None:
        self.read = 0
        self._count = 0
        self._known: dict[str, bool] = {}  # whether a file may have a field
        self._first: BadRecord | None = None

    def documents(
        self,
        file: InputFile,
        recipe: Recipe,
        keep: Sequence[Field] = (),
        advance: Callable[[int], object] = lambda amount: None,
        files: Sequence[InputFile] = (),
    ) -> Iterator[Document]:
        """Yield the documents of one of the ``files``, read as a recipe says, with the fields ``keep`` of their records.

        ``advance`` is called with the number of bytes read since the last call.
        """
        keys: dict[str, Any] = {"text_key": recipe.text_key, "id_key": recipe.id_key}
        keys["elsewhere"] = field_finder(partial(iter, files), self._known)
        reader = DocumentReader(file, **keys, where=recipe.condition, keep=keep, extract=recipe.extract)
        for record in reader.records(advance):
            if isinstance(record, Document):
                self.read += 1
                yield record
            elif isinstance(record, BadRecord):
                self._count += record.count
                self._first = self._first or record

    def print(self) -> None:
        if (first := self._first) is not None:
            reason = f"{first.reason}{': ' * bool(first.detail)}{first.detail}"
            print(f"{self._count:,} bad records; the first, {first.file}, line {first.line}: {reason}", file=sys.stderr)
