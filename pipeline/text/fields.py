"""The fields of a record that a document keeps next to its text and id, with their types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any

from ..errors import ConfigError, did_you_mean

KINDS = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "": "any value"}
_NUMBERS = {"int": int, "float": float}
_TRUTHS = {"true": True, "false": False, "1": True, "0": False}
_LEAST, _BEYOND = -(1 << 63), 1 << 64
MISFIT = object()
"""The result of `Field.fit` and `Field.parse` for a value that does not fit the type of the field."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field or column by name; dots lead into nested ones. ``kind`` is "str", "int", "float", "bool", or "" for any.

    >>> Field("score", "float").fit(3), Field("score", "float").fit(None), Field("score", "float").fit("3") is MISFIT
    (3, None, True)
    """

    name: str
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.kind}" if self.kind else self.name

    def fit(self, value: Any) -> Any:
        """Return the value as the field's type, None if it is missing, or ``MISFIT``."""
        kind = type(value)
        if value is None:
            return value
        if (kind is int or kind is float) and self.kind == "float":
            return float(value) if unwritable(value) else value
        if unwritable(value):
            return MISFIT
        if not self.kind:
            return value
        if kind is bool or kind is str:
            return value if self.kind == kind.__name__ else MISFIT
        if self.kind == "int" and (kind is int or kind is float) and is_whole(value):
            return int(value)
        return MISFIT

    def parse(self, text: str) -> Any:
        """Return the value of a field of CSV. '' is a missing value, except for text."""
        if self.kind == "str":
            return text
        if not text:
            return None
        if not self.kind:
            return text
        if self.kind == "bool":
            return _TRUTHS.get(text.lower(), MISFIT)
        if "_" in text or not text.isascii():  # Python alone reads 1_000 and digits of other scripts as numbers
            return MISFIT
        try:
            value = _NUMBERS[self.kind](text)
        except ValueError:
            return MISFIT
        return MISFIT if self.kind == "int" and unwritable(value) else value

    def misfit(self, value: Any) -> str:
        """Return why a value does not fit, without the value, so that equal reasons can be counted."""
        if reason := unwritable(value):
            cure = "" if isinstance(value, str) else f"; {self.name}:float keeps it rounded"
            return f"{self.name!r} {reason}{cure}"
        return f"{self.name!r} is of type {type(value).__name__}, not {KINDS[self.kind]}"


def unwritable(value: Any) -> str:
    """Return why a scalar cannot be kept as JSON, or '' if it can.

    Parsers read a whole number beyond 64 bits as a float and lose its last digits. So such a float is refused, too.

    >>> unwritable(2**64), unwritable("a\\ud800"), unwritable(2**64 - 1)
    ('is a whole number beyond 64 bits', 'holds a lone surrogate', '')
    """
    kind = type(value)
    if kind is str:
        return "" if surrogate_in(value) is None else "holds a lone surrogate"
    if kind is int or kind is float:
        return "" if _LEAST <= value < _BEYOND or not is_whole(value) else "is a whole number beyond 64 bits"
    return ""


def as_json(value: Any) -> str | float | None:
    """Return a time, a duration or a decimal as a value of JSON. Raises ``TypeError`` if it is none of these.

    >>> as_json(date(2024, 1, 2)), as_json(timedelta(minutes=2)), as_json(Decimal("1.50")), as_json(Decimal(3))
    ('2024-01-02', 120.0, 1.5, 3)
    """
    match value:
        case Decimal():
            exponent = value.as_tuple().exponent
            return float(value) if not isinstance(exponent, int) or exponent < 0 else int(value)
        case timedelta():
            return value.total_seconds()
        case date() | time():
            return value.isoformat() if value == value else None  # None for pandas' NaT
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def is_whole(value: float) -> bool:
    """Whether a number has no fraction; infinity and NaN are not whole."""
    return isinstance(value, int) or value.is_integer()


def surrogate_in(text: str) -> int | None:
    """Return the index of the first lone surrogate, which UTF-8 cannot encode, or None."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def shown(value: Any) -> str:
    """Return the beginning of any value, for an error."""
    try:
        return ascii(str(value)[:60]) if unwritable(value) else repr(str(value)[:60])
    except RecursionError:
        return "nested too deeply to be shown"


def parse_fields(specs: Iterable[str]) -> tuple[Field, ...]:
    """Return the fields of specs as ``name`` or ``name:type``. Raises ``ConfigError`` if a type is unknown.

    >>> [str(field) for field in parse_fields(["url:str", "meta.score:float", "tags"])]
    ['url:str', 'meta.score:float', 'tags']
    """
    fields = []
    try:
        named: list[Any] = [None] if isinstance(specs, Mapping) else list(specs)
    except TypeError:
        named = [None]
    if not all(isinstance(spec, str) for spec in named):
        raise ConfigError(
            f"fields must be names of fields, as in 'url:str,score:float' or a list of these, got {specs!r}"
        )
    for spec in named:
        name, separator, kind = spec.strip().rpartition(":")
        if not separator:
            name, kind = kind, ""
        if not name or (separator and not kind) or kind not in KINDS:
            raise ConfigError(
                f"field {spec!r}: no type {kind!r}{did_you_mean(kind, [k for k in KINDS if k])}; as in score:float"
            )
        fields.append(Field(name, kind))
    return tuple(fields)


def merge_fields(groups: Iterable[Iterable[Field]]) -> tuple[Field, ...]:
    """Merge fields of equal names, sorted by name. Raises ``ConfigError`` if their types differ.

    A field without a type takes the other's type; int and float merge to int.

    >>> [str(field) for field in merge_fields([parse_fields(["a:float", "b"]), parse_fields(["b:str", "a:int"])])]
    ['a:int', 'b:str']
    """
    kinds_by_name: dict[str, str] = {}
    for field in (field for group in groups for field in group):
        kinds = {kinds_by_name.get(field.name, ""), field.kind} - {""}
        if len(kinds) > 1 and kinds != {"int", "float"}:
            raise ConfigError(
                f"field {field.name!r} is asked for as {' and as '.join(sorted(kinds))}; give it one type"
            )
        kinds_by_name[field.name] = "int" if kinds == {"int", "float"} else min(kinds, default="")
    return tuple(Field(name, kind) for name, kind in sorted(kinds_by_name.items()))
