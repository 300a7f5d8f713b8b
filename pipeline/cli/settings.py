"""Flags of the settings of a build, which other commands have too: their names, types, defaults and help are declared once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from pipeline.builder.recipe import Recipe
from pipeline.builder.setting import flag_of, setting_of

_FIELDS = {item.name: item for item in fields(Recipe)}


def _count(value: str) -> int:
    """Return a whole number that may be written as 64_000_000 or 64e6."""
    try:
        return int(value)
    except ValueError:
        if not float(value).is_integer():
            raise
        return int(float(value))


_count.__name__ = "whole number"  # argparse's name for it in errors


def _count_or_share(value: str) -> int | float:
    """Return a whole number, or a share between 0 and 1 written as 0.01 or 1%."""
    share = float(value[:-1]) / 100 if value.endswith("%") else float(value)
    return share if 0 < share < 1 else _count(value)


_count_or_share.__name__ = "whole number or share"


_PARSERS: Mapping[str, Callable[[str], object]] = {
    "int": _count,
    "int | None": _count,
    "int | float": _count_or_share,
    "float": float,
}
"""How flags are read, by the annotation of their settings; others take text as it is."""


def add_setting(parser: argparse._ActionsContainer, name: str) -> None:
    """Add the flag of a setting. Where it is not given, its value is None: a config file or the default decides."""
    item = _FIELDS[name]
    setting, kind, default = setting_of(item.metadata), str(item.type), item.default
    if kind == "bool":
        action = "store_false" if default else "store_true"
        parser.add_argument(flag_of(item), dest=name, action=action, default=None, help=setting.help)
        return
    shown = ",".join(default) if isinstance(default, tuple) else "" if default is None else str(default)
    help = setting.help if "(default" in setting.help or not shown else f"{setting.help} (default: {shown})"
    parser.add_argument(flag_of(item), type=_PARSERS.get(kind, str), choices=setting.choices or None, help=help)


def recipe_of(options: argparse.Namespace, names: tuple[str, ...], **settings: Any) -> Recipe:
    """Return the recipe with the settings of these names as the flags state them, and with others."""
    values = {name: getattr(options, name) for name in names}
    return Recipe.from_json({name: value for name, value in values.items() if value is not None} | settings)
