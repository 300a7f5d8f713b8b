"""Conditions on fields, as in ``int_score >= 3 and language in ["en", "de"]``: parsed here, never evaluated as code.

    condition   comparison, or conditions joined by and, or, not and parentheses
    comparison  FIELD OP VALUE with < <= > >= == !=, FIELD in [VALUE, ...], FIELD is null, FIELD is not null
    FIELD       a name, dots lead into nested fields; any other name in `backquotes`
    VALUE       a number, "text" or 'text', true, false

A comparison with a missing value does not hold. The values give each field its type.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import ConfigError
from .fields import Field, merge_fields

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])"
    r"|(?P<text>\"[^\"]*\"|'[^']*')|(?P<quoted>`[^`]+`)|(?P<name>[^\W\d][\w.]*)|(?P<sign><=|>=|==|!=|[<>()\[\],]))"
)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_KEYWORDS = {"and", "or", "not", "in", "is", "null", "true", "false"}


class Range(NamedTuple):
    """What is known of the values of a field in a part of a file: bounds, which NaN may be outside of where ``nan``."""

    low: Any
    high: Any
    nulls: bool
    nan: bool = False


Ranges = Mapping[str, Range]


class Condition:
    """A condition on the fields of a record."""

    def holds(self, record: Mapping[str, Any]) -> bool:
        """Whether it holds for a record."""
        raise NotImplementedError

    def may_hold(self, ranges: Ranges) -> bool:
        """Whether it may hold for a record with values in the ranges; fields that are not among them may have any."""
        raise NotImplementedError

    def must_hold(self, ranges: Ranges) -> bool:
        """Whether it holds for every record with values in the ranges."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Compare(Condition):
    field: str
    sign: str
    value: Any

    def holds(self, record: Mapping[str, Any]) -> bool:
        found = record.get(self.field)
        return found is not None and _COMPARE[self.sign](found, self.value)

    def may_hold(self, ranges: Ranges) -> bool:
        known, value = ranges.get(self.field), self.value
        if known is None:
            return True
        if self.sign == "==":
            return bool(known.low <= value <= known.high)
        if self.sign == "!=":
            return known.nan or not known.low == value == known.high
        return _COMPARE[self.sign](known.low if self.sign[0] == "<" else known.high, value)

    def must_hold(self, ranges: Ranges) -> bool:
        known, value = ranges.get(self.field), self.value
        if known is None or known.nulls or known.nan:
            return False
        if self.sign == "==":
            return bool(known.low == value == known.high)
        if self.sign == "!=":
            return not known.low <= value <= known.high
        return _COMPARE[self.sign](known.high if self.sign[0] == "<" else known.low, value)


@dataclass(frozen=True, slots=True)
class _Null(Condition):
    field: str

    def holds(self, record: Mapping[str, Any]) -> bool:
        return record.get(self.field) is None

    def may_hold(self, ranges: Ranges) -> bool:
        return self.field not in ranges or ranges[self.field].nulls

    def must_hold(self, ranges: Ranges) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class _Not(Condition):
    of: Condition

    def holds(self, record: Mapping[str, Any]) -> bool:
        return not self.of.holds(record)

    def may_hold(self, ranges: Ranges) -> bool:
        return not self.of.must_hold(ranges)

    def must_hold(self, ranges: Ranges) -> bool:
        return not self.of.may_hold(ranges)


@dataclass(frozen=True, slots=True)
class _Several(Condition):
    join: Callable[[Iterator[bool]], bool]  # all or any
    of: tuple[Condition, ...]

    def holds(self, record: Mapping[str, Any]) -> bool:
        return self.join(each.holds(record) for each in self.of)

    def may_hold(self, ranges: Ranges) -> bool:
        return self.join(each.may_hold(ranges) for each in self.of)

    def must_hold(self, ranges: Ranges) -> bool:
        return self.join(each.must_hold(ranges) for each in self.of)


@dataclass(frozen=True, slots=True)
class Where:
    """A condition as it was written, and the fields that it reads.

    >>> where = Where.parse('int_score >= 3 and not language in ["de"]')
    >>> where.condition.holds({"int_score": 4, "language": "en"}), [str(field) for field in where.fields]
    (True, ['int_score:float', 'language:str'])
    """

    text: str
    condition: Condition
    fields: tuple[Field, ...]

    @classmethod
    def parse(cls, text: str) -> Where:
        """Parse a condition. Raises ``ConfigError``, naming the character, for what is none."""
        if not isinstance(text, str):
            raise ConfigError(f"where must be a condition as text, as in 'int_score >= 3', got {text!r}")
        parser = _Parser(text)
        condition = parser.any()
        parser.end()
        return cls(text, condition, merge_fields([parser.fields]))


class _Parser:
    """Reads a condition from left to right; each method reads what its name says."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []  # kind, what it is, where
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                raise self._error(at + len(text[at:]) - len(text[at:].lstrip()), "no part of a condition")
            self._tokens.append((found.lastgroup, found[found.lastgroup], found.start(found.lastgroup)))
            at = found.end()
        self._at = 0
        self.fields: list[Field] = []

    def any(self) -> Condition:
        return self._joined("or", any, lambda: self._joined("and", all, self._term))

    def _joined(self, word: str, join: Callable[[Iterator[bool]], bool], read: Callable[[], Condition]) -> Condition:
        found = [read()]
        while self._take(word):
            found.append(read())
        return found[0] if len(found) == 1 else _Several(join, tuple(found))

    def _term(self) -> Condition:
        if self._take("not"):
            return _Not(self._term())
        if self._take("("):
            inside = self.any()
            self._expect(")")
            return inside
        return self._comparison()

    def _comparison(self) -> Condition:
        kind, name, at = self._next("a field")
        if kind == "quoted":
            name = name[1:-1]
        elif kind != "name" or name in _KEYWORDS:
            raise self._error(at, "a field belongs here")
        if self._take("is"):
            negated = self._take("not")
            self._expect("null")
            self.fields.append(Field(name))
            return _Not(_Null(name)) if negated else _Null(name)
        negated = self._take("not")
        if negated or self._peek() == "in":
            self._expect("in")
            found = _Several(any, tuple(_Compare(name, "==", value) for value in self._list(name)))
            return _Not(found) if negated else found
        _, sign, at = self._next("a comparison")
        if sign not in _COMPARE:
            raise self._error(at, f"one of {' '.join(_COMPARE)} in is belongs here")
        return _Compare(name, sign, self._value(name))

    def _list(self, field: str) -> Sequence[Any]:
        self._expect("[")
        values = [self._value(field)]
        while self._take(","):
            values.append(self._value(field))
        self._expect("]")
        return values

    def _value(self, field: str) -> Any:
        kind, word, at = self._next("a value")
        if kind == "number":
            self.fields.append(Field(field, "float"))
            return int(word) if re.fullmatch(r"[+-]?\d+", word) else float(word)
        if kind == "text":
            self.fields.append(Field(field, "str"))
            return word[1:-1]
        if word in ("true", "false"):
            self.fields.append(Field(field, "bool"))
            return word == "true"
        raise self._error(at, 'a number, "text", true or false belongs here')

    def _peek(self) -> str:
        if self._at == len(self._tokens):
            return ""
        kind, word, _ = self._tokens[self._at]
        return word if kind in ("name", "sign") else ""

    def _take(self, word: str) -> bool:
        found = self._peek() == word
        self._at += found
        return found

    def _expect(self, word: str) -> None:
        if not self._take(word):
            _, _, at = self._tokens[self._at] if self._at < len(self._tokens) else ("", "", len(self._text))
            raise self._error(at, f"{word!r} belongs here")

    def _next(self, what: str) -> tuple[str, str, int]:
        if self._at == len(self._tokens):
            raise self._error(len(self._text), f"{what} is missing")
        self._at += 1
        return self._tokens[self._at - 1]

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self._error(self._tokens[self._at][2], "'and' or 'or' belongs here")

    def _error(self, at: int, said: str) -> ConfigError:
        return ConfigError(
            f"where {self._text!r}, character {at + 1}: {said}; write it as in 'int_score >= 3 and lang == \"en\"'"
        )
