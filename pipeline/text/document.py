"""Turns one record into a ``Document``, or into a ``BadRecord`` that gives the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .formats import find_format

INVALID_UTF8 = "invalid UTF-8"
INVALID_JSON = "invalid JSON"
INVALID_CSV = "invalid CSV"
NOT_AN_OBJECT = "not a JSON object"
LONE_SURROGATE = "lone surrogate"
TEXT_KEY = "text_key (--text-key)"  # as errors name it
_MISSING = object()
_KINDS = (
    (bool, "a boolean"),
    (int | float, "a number"),
    (str, "text"),
    (list, "a list"),
    (dict, "an object"),
)


@dataclass(slots=True)
class Document:
    """One text of the input. ``line`` is where its record begins: 1-based line, element or row of ``file``.

    Where lines are not counted, as in a file that is read from any byte, ``line`` is 0 and ``byte`` the record's offset.
    """

    text: str
    id: str
    file: str
    line: int
    source: str = ""
    byte: int | None = None

    def where(self, start: int = 0) -> str:
        """Name the document for an error, by file, line and id; ``start`` is that of the span that it was read from."""
        return f"{place_of(self.file, self.line, start)}{f': document {self.id!r}' if self.id else ''}"


@dataclass(slots=True)
class BadRecord:
    """A record that gave no document. ``byte`` is its offset in the (decompressed) data, None where unknown.

    ``reason`` is one of a few constant phrases, to be counted; ``detail`` holds what is particular.
    """

    file: str
    line: int
    byte: int | None
    reason: str
    detail: str = ""
    source: str = ""


Record = Document | BadRecord


@dataclass(slots=True)
class Tally:
    """What has been read so far: ``lines`` (or rows, or elements), blank and bad ones included, and documents."""

    lines: int = 0
    documents: int = 0


@dataclass(slots=True)
class Fields:
    """Where text and id stand in a record, and what every document of the file shares.

    ``made_ids`` False leaves the id of a document without one empty, for a span whose line numbers are not known.
    """

    text_key: str
    id_key: str
    file: str
    source: str = ""
    made_ids: bool = True

    def document(self, text: str, id: str, line: int) -> Document:
        return Document(text, id or self.missing_id(line), self.file, line, self.source)

    def bad(self, line: int, byte: int | None, reason: str, detail: str = "") -> BadRecord:
        return BadRecord(self.file, line, byte, reason, detail, self.source)

    def missing_id(self, line: int) -> str:
        return made_id(self.file, line) if self.made_ids else ""

    def judge(self, value: Any, line: int, byte: int | None, respell: Callable[[], Any] | None = None) -> Record:
        """Make a document of one parsed JSON value. ``respell`` parses it again and keeps numbers as they are written."""
        if not isinstance(value, Mapping):
            return self.bad(line, byte, NOT_AN_OBJECT, f"it is {kind_of(value)}")
        text = look_up(value, self.text_key)
        if not isinstance(text, str):
            if text is _MISSING:
                there = ", ".join(map(repr, value))[:200] or "none"
                detail = f"there are {there}; {TEXT_KEY} names the one to read"
                return self.bad(line, byte, f"no field {self.text_key!r}", detail)
            return self.bad(line, byte, f"{self.text_key!r} is {kind_of(text)}, not text")
        id = look_up(value, self.id_key)
        if isinstance(id, float) and respell is not None:
            id = look_up(respell(), self.id_key)
        if isinstance(id, list | dict):
            return self.bad(line, byte, f"{self.id_key!r} is {kind_of(id)}, not a name or number")
        name = "" if id is _MISSING or id is None else scalar_name(id)
        for part in (text, name):
            if (place := surrogate_in(part)) is not None:
                return self.bad(line, byte, LONE_SURROGATE, f"character {place} cannot be written as UTF-8")
        return self.document(text, name, line)


def place_of(file: str, line: int, start: int = 0) -> str:
    """Return where a record lies: lines are counted from the start of a span, in bytes or row groups of its file.

    >>> place_of("a.jsonl", 7), place_of("a.jsonl", 7, 4096)
    ('a.jsonl: line 7', 'a.jsonl: line 7 after byte 4096')
    """
    known = find_format(file)
    return f"{file}: line {line}" + (f" after {known.span_unit if known else 'byte'} {start}" if start else "")


def made_id(file: str, line: int) -> str:
    """Return the id of a document that has none.

    >>> made_id("wiki/part-0.jsonl", 7)
    'wiki/part-0.jsonl:7'
    """
    return f"{file}:{line}"


def made_id_at(file: str, byte: int) -> str:
    """Return the id of a document that has none, and whose line is not known.

    >>> made_id_at("wiki/part-0.jsonl", 4096)
    'wiki/part-0.jsonl:byte 4096'
    """
    return f"{file}:byte {byte}"


def scalar_name(value: str | float | bool) -> str:
    """Return a scalar id as text, spelled as in JSON."""
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, bool) else str(value)


def look_up(record: Mapping[str, Any], key: str) -> Any:
    """Return the value under ``key``, or under the path that its dots spell if there is no such key."""
    if key in record:
        return record[key]
    head, dot, rest = key.partition(".")
    while dot:
        if isinstance(inner := record.get(head), Mapping) and (found := look_up(inner, rest)) is not _MISSING:
            return found
        more, dot, rest = rest.partition(".")
        head = f"{head}.{more}"
    return _MISSING


def surrogate_in(text: str) -> int | None:
    """Return the index of the first lone surrogate, which UTF-8 cannot hold, or None."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def kind_of(value: Any) -> str:
    """Return what a JSON value is, in words."""
    if value is None:
        return "null"
    return next((words for kind, words in _KINDS if isinstance(value, kind)), f"of type {type(value).__name__}")
