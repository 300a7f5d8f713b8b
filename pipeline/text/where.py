"""Conditions on fields, as in ``int_score >= 3 and language in ["en", "de"]``. They are parsed, never run as code.

    condition   comparison, or conditions joined by and, or, not and parentheses
    comparison  FIELD OP VALUE with < <= > >= == !=, FIELD in [VALUE, ...], FIELD is null, FIELD is not null
    FIELD       a name, dots lead into nested fields; any other name in `backquotes`
    VALUE       a number, "text" or 'text', true, false

For a missing field, null and NaN the comparisons <, <=, >, >=, == and `in` are false; so !=, `not in`, and `not` before
any of the others are true. The value that a field is compared with gives the field its type.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import ConfigError
from .fields import Field, merge_fields

_WORDS = re.compile(
    r"(?P<text>\"[^\"]*\"|'[^']*')|(?P<field>`[^`]+`|[^\W\d][\w.]*)|(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])"
    r"|(?P<sign>[<>=!]=|[<>()\[\],])|(?P<blank>\s)|(?P<other>.)"
)
_OPERATORS = ("and", "or", "not", "in", "is")
_CONSTANTS = {"null": None, "true": True, "false": False}
_SIGNS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.eq,
}  # fmt: skip


class Range(NamedTuple):
    """Bounds of the values of a field in some records. ``low`` is None if all values are missing.

    ``nulls`` says that some may be missing, ``nan`` that some may be NaN, which is outside the bounds.
    """

    low: Any
    high: Any
    nulls: bool
    nan: bool = False


Ranges = Mapping[str, Range]
Condition = Callable[[Ranges], tuple[bool, bool]]
"""Returns whether a condition may hold for some record with values in the ranges, and whether it holds for every one."""


@dataclass(frozen=True, slots=True)
class Where:
    """A condition as the user wrote it, and the fields that it reads.

    >>> where = Where.parse('int_score >= 3 and not language in ["de"]')
    >>> where.holds({"int_score": 4, "language": "en"}), [str(field) for field in where.fields]
    (True, ['int_score:float', 'language:str'])
    """

    text: str
    fields: tuple[Field, ...]
    condition: Condition

    @classmethod
    def parse(cls, text: str) -> Where:
        """Parse a condition. Raises ``ConfigError`` with the character if it is not valid."""
        if not isinstance(text, str):
            raise ConfigError(f"where must be a condition as text, as in 'int_score >= 3', got {text!r}")
        parser = _Parser(text)
        return cls(text, merge_fields([parser.fields]), parser.condition)

    def __reduce__(self) -> tuple[Any, ...]:
        return Where.parse, (self.text,)

    def holds(self, record: Mapping[str, Any]) -> bool:
        """Whether the condition holds for a record. The range of each field is its one value."""
        values = ((field.name, record.get(field.name)) for field in self.fields)
        return self.condition({name: Range(value, value, value is None) for name, value in values})[1]

    def may_hold(self, ranges: Ranges) -> bool:
        """Whether the condition may hold for a record with values in the ranges; a field without a range may have any value."""
        return self.condition(ranges)[0]


def _compare(field: str, compare: Callable[[Any, Any], bool], value: Any) -> Condition:
    def condition(ranges: Ranges) -> tuple[bool, bool]:
        if field not in ranges:
            return True, False
        low, high, nulls, nan = ranges[field]
        if low is None:
            return False, False
        if compare is operator.eq:
            some, every = low <= value <= high, low == value == high
        else:
            least, most = (low, high) if compare in (operator.lt, operator.le) else (high, low)
            some, every = compare(least, value), compare(most, value)
        return some, every and not (nulls or nan)

    return condition


def _is_null(field: str) -> Condition:
    return lambda ranges: (ranges[field].nulls, ranges[field].low is None) if field in ranges else (True, False)


def _negated(inner: Condition) -> Condition:
    def condition(ranges: Ranges) -> tuple[bool, bool]:
        some, every = inner(ranges)
        return not every, not some

    return condition


def _joined(join: Callable[[Iterable[bool]], bool], parts: list[Condition]) -> Condition:
    """Join conditions by ``all`` or ``any``."""

    def condition(ranges: Ranges) -> tuple[bool, bool]:
        some, every = zip(*(part(ranges) for part in parts), strict=True)
        return join(some), join(every)

    return condition


class _Parser:
    """Parses a condition with Python's parser, and accepts only comparisons, and, or, not and lists.

    First a name padded with blanks replaces each field and value. So a field may have any name, texts have no escapes,
    and positions in errors are those of the user's text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._words: dict[int, re.Match[str]] = {}  # fields and values by the index of their first character
        self.fields: list[Field] = []
        python = _WORDS.sub(self._placeholder, text)
        self._begin = len(python) - len(python.lstrip())
        try:
            tree = ast.parse(python[self._begin :], mode="eval").body
        except SyntaxError as error:
            if not error.offset or error.offset > len(python):
                raise self._error(len(text), "it ends before it is whole") from None
            raise self._error(self._begin + error.offset - 1, error.msg) from None
        except (RecursionError, MemoryError):
            raise self._error(0, "it is nested too deeply") from None
        self.condition = self._condition(tree)

    def _placeholder(self, word: re.Match[str]) -> str:
        if word["other"]:
            raise self._error(word.start(), "no part of a condition")
        if word["sign"] or word[0] in _OPERATORS:
            return word[0]
        if word["blank"]:
            return " "
        self._words[word.start()] = word
        return "x".ljust(len(word[0]))

    def _condition(self, node: ast.expr) -> Condition:
        match node:
            case ast.BoolOp():
                return _joined(all if isinstance(node.op, ast.And) else any, list(map(self._condition, node.values)))
            case ast.UnaryOp():  # only `not` remains, as `_WORDS` refuses the others
                return _negated(self._condition(node.operand))
            case ast.Compare(ops=[sign]):
                return self._comparison(node.left, sign, node.comparators[0])
        raise self._refused(node, "a comparison belongs here")

    def _comparison(self, left: ast.expr, sign: ast.cmpop, right: ast.expr) -> Condition:
        word = self._word(left)
        if word is None or not word["field"] or word[0] in _CONSTANTS:
            raise self._refused(left, "a field belongs here")
        field = word[0].strip("`")
        if isinstance(sign, ast.Is | ast.IsNot):
            if (null := self._word(right)) is None or null[0] != "null":
                raise self._refused(right, "null belongs here")
            self.fields.append(Field(field))
            condition = _is_null(field)
        elif isinstance(sign, ast.In | ast.NotIn):
            if not isinstance(right, ast.List) or not right.elts:
                raise self._refused(right, "a list of values in [ ] belongs here")
            condition = _joined(any, [_compare(field, operator.eq, self._value(field, item)) for item in right.elts])
        else:
            condition = _compare(field, _SIGNS[type(sign)], self._value(field, right))
        return _negated(condition) if isinstance(sign, ast.NotEq | ast.IsNot | ast.NotIn) else condition

    def _value(self, field: str, node: ast.expr) -> Any:
        word = self._word(node)
        if word is not None and word["text"]:
            value: Any = word[0][1:-1]
        elif word is not None and word["number"]:
            value = int(word[0]) if re.fullmatch(r"[+-]?\d{1,400}", word[0]) else float(word[0])
        elif (value := _CONSTANTS.get(word[0]) if word else None) is None:
            raise self._refused(node, 'a number, "text", true or false belongs here')
        self.fields.append(Field(field, "float" if type(value) is int else type(value).__name__))
        return value

    def _word(self, node: ast.expr) -> re.Match[str] | None:
        return self._words[self._begin + node.col_offset] if isinstance(node, ast.Name) else None

    def _refused(self, node: ast.expr, reason: str) -> ConfigError:
        return self._error(self._begin + node.col_offset, reason)

    def _error(self, at: int, reason: str) -> ConfigError:
        return ConfigError(
            f"where {self._text!r}, character {at + 1}: {reason}; write it as in 'int_score >= 3 and lang == \"en\"'"
        )
