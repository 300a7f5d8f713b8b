"""``--list-rules``: the rule sets with their limits, and the measures with what they count."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import filters
from filters.rules.rule import limits_said
from filters.rules.ruleset import RuleSet, load_rules

WIDTH = 118


class ListRules(argparse.Action):
    """A flag that prints the list and ends the command, as ``--help`` does."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *arguments: object) -> NoReturn:
        print(rule_list())
        parser.exit()


def rule_list() -> str:
    """Return every bundled rule set, every measure and every cleaner, with a line for each.

    >>> "50 to 100,000" in rule_list()
    True
    """
    lines = ["Rule sets: --rules NAME, or several joined by commas", ""]
    for name, path in filters.bundled_rule_sets().items():
        lines += [name, *_comment(path), *_rules(load_rules(name)), ""]
    lines += ["Measures, for rule files: NAME = { min = ..., max = ... }", "", *_functions(filters.measure_functions())]
    lines += ["", "Cleaners, for rule files: under [cut], NAME = {}", "", *_functions(filters.cleaner_functions())]
    return "\n".join(lines)


def measure_names() -> str:
    """Return the names of all measures, for a help text."""
    names = f"measures (--list-rules explains them): {', '.join(sorted(filters.measure_functions()))}"
    return textwrap.fill(names, WIDTH, break_on_hyphens=False)


def _comment(path: Path) -> list[str]:
    """Return the first sentence of the comment that begins a rule file, without addresses."""
    text = path.read_text(encoding="utf-8")
    words = " ".join(line.lstrip("# ") for line in text.split("\n\n")[0].splitlines() if line.startswith("#"))
    sentence = re.split(r"(?<!\bal)\. ", re.sub(r", https://[^\s),]*[^\s),.]", "", words))[0].rstrip(".")
    return textwrap.wrap(sentence, WIDTH, initial_indent="  ", subsequent_indent="  ")


def _rules(rules: RuleSet) -> list[str]:
    return [f"  {rule.name:<34}{limits_said(rule.min, rule.max)}" for rule in rules.rules] + [
        f"  {cleaner.name:<34}cleaner" for cleaner in rules.cleaners
    ]


def _functions(functions: dict[str, Callable[..., Any]]) -> list[str]:
    wrap = textwrap.TextWrapper(WIDTH, subsequent_indent=" " * 34, break_on_hyphens=False)
    return [wrap.fill(f"  {name:<32}{filters.summary(function)}") for name, function in sorted(functions.items())]
