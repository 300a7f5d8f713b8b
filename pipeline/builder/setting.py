"""The metadata of a recipe's setting, declared at its field: group, help, flag and bounds.

The command line makes a flag from it. `Recipe` checks every value by it, from a flag, a config file or Python.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ..errors import ConfigError, did_you_mean
from ..integers import as_integer

GROUPS = ("reading", "filters", "duplicates", "tokens and shards")
"""The groups of settings in the help of the command line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The metadata of a field of `Recipe`. Its name in the metadata is "setting"."""

    default: Any
    group: str
    help: str
    flag: str = ""  # by default, the name with dashes; if the setting is true by default, the flag turns it off
    choices: tuple[str, ...] = ()
    least: int | None = None  # a whole number of at least this
    share: str = ""  # "<": a number from 0 to below 1; "<=": from 0 to 1
    numbers: bool = False  # the entries of the list may be whole numbers
    named: bool = False  # names files or datasets: the manifest has them without folders
    optional: bool = False  # the manifest leaves it out at its default: set it for every new setting

    def fit(self, name: str, value: Any, types: frozenset[type]) -> Any:
        """Return a value as one of the ``types`` of its field: a path as text, the entries of a list as a tuple of texts.

        Raises ``ConfigError`` if the value has the wrong type.
        """
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if tuple in types:
            return self._entries(name, value)
        if value is None and NoneType in types:
            return None
        if self.choices:
            if value not in self.choices:
                near = did_you_mean(str(value), self.choices, else_known=False)
                raise ConfigError(f"{name} must be one of {', '.join(self.choices)}, got {value!r}{near}")
        elif bool in types:
            if not isinstance(value, bool):
                raise ConfigError(f"{name} must be true or false, got {value!r}")
        elif self.share:
            if not _is_number(value) or not 0 <= value <= 1 or (value == 1 and self.share == "<"):
                raise ConfigError(f"{name} must be 0 <= value {self.share} 1, got {value!r}")
            return float(value)  # 0 and 0.0 are one recipe
        elif int in types:
            if not (float in types and isinstance(value, float) and 0 < value < 1):
                value = check_whole(name, value, self.least, " or a share between 0 and 1" if float in types else "")
        elif float in types:
            if not _is_number(value) or not math.isfinite(value):
                raise ConfigError(f"{name} must be a number, got {value!r}")
            return float(value)
        elif not (isinstance(value, str) and (value or value == self.default)):
            raise ConfigError(f"{name} must be text, got {value!r} ({self.help})")
        return value

    def _entries(self, name: str, value: Any) -> tuple[str, ...]:
        """Return the entries of a list, or of text that joins them by commas."""
        whole = (int,) if self.numbers else ()
        if isinstance(value, str):
            value = value.split(",")
        elif value is None and not self.default:  # where a list has entries by default, None would be ambiguous
            value = ()
        elif isinstance(value, whole) and not isinstance(value, bool):
            value = [value]
        if not isinstance(value, list | tuple):
            raise ConfigError(
                f"{name} must be a list, or text that joins its entries by commas, got {value!r} ({self.help})"
            )
        for entry in value:
            if isinstance(entry, bool) or not isinstance(entry, (str, os.PathLike, *whole)):
                quoted = "; YAML reads some words as other values: quote them" if isinstance(entry, bool) else ""
                raise ConfigError(f"{name} must be a list of texts, got {entry!r} among them ({self.help}){quoted}")
        return tuple(text for text in (str(entry).strip() for entry in value) if text)


def types_of(hint: Any) -> frozenset[type]:
    """Return the plain types of an annotation; for a ``Literal``, the types of its values.

    >>> sorted(each.__name__ for each in types_of(float | None)), types_of(tuple[str, ...])
    (['NoneType', 'float'], frozenset({<class 'tuple'>}))
    """
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return frozenset().union(*map(types_of, get_args(hint)))
    return frozenset(map(type, get_args(hint))) if origin is Literal else frozenset({origin or hint})


def setting(default: Any, help: str, **details: Any) -> Any:
    """Return a field of `Recipe`; ``details`` are the other fields of `Setting`."""
    return field(default=default, metadata={"setting": Setting(default=default, help=help, **details)})


# A field of each group.
reading, filtering, deduplicating, sharding = (functools.partial(setting, group=group) for group in GROUPS)


def setting_of(metadata: Mapping[str, Any]) -> Setting:
    """Return the setting in the metadata of a field."""
    details: Setting = metadata["setting"]
    return details


def flag_of(item: Field[Any]) -> str:
    """Return the flag of a field of `Recipe` on the command line."""
    return setting_of(item.metadata).flag or f"--{item.name.replace('_', '-')}"


def check_whole(name: str, value: object, least: int | None, other: str = "") -> int:
    """Return a whole number as an int, also one of NumPy; ``ConfigError`` unless it is at least ``least``."""
    number = as_integer(value)
    if number is None or (least is not None and number < least):
        floor = "" if least is None else f" of at least {least}"
        raise ConfigError(f"{name} must be a whole number{floor}{other}, got {value!r}")
    return number


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
