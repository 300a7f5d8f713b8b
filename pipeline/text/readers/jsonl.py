"""JSON Lines: each line is one JSON object. A line of several objects is read, too: each of them counts as a line."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from functools import partial
from typing import Any

import orjson

from ..document import INVALID_JSON, INVALID_UTF8, Document, Record, RecordKeys, Tally
from .byte_stream import ByteStream, UnreadableFileError
from .format_reader import FormatReader, line_cuts

# Between objects: line ends of old Macs, separators of RFC 7464, marks of joined files, commas of an array.
_BETWEEN = " \t\r\n\v\f\x1e\ufeff,"
_BEGINNING = re.compile(r"(?:(?<=[}\r\n\x1e])|(?<=[}\r\n\x1e] ))\{")
_DECODER = json.JSONDecoder()


def read_jsonl(stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a record for each line that is not blank, or each object of it. What cannot be used is a ``BadRecord``."""
    loads, text_key, id_key, file, name = orjson.loads, keys.text_key, keys.id_key, keys.file, keys.source
    start, keeps, counts = keys.start, bool(keys.kept), not keys.by_byte
    flat = "." not in id_key  # otherwise the id may be inside another field
    kind = str if keys.vocabulary is None else None  # lists of ids go to `_judge`, as does anything unusual
    number, following = tally.lines, -1
    for lines in stream.lines():
        if following < 0:
            following = stream.text_start
        records: list[Record] = []
        lost = 0
        for line in lines:
            number += counts
            byte, following = following, following + len(line) + 1
            value = None
            try:
                value = loads(line)
                if type(value) is dict:
                    text, id = value.get(text_key), value.get(id_key)
                    if type(text) is kind:
                        if type(id) is int:
                            id = str(id)
                        elif id is None and flat:
                            id = ""
                        if type(id) is str:
                            id = id or keys.missing_id(number, byte)
                            if not keeps:
                                records.append(Document(text, id, file, number, name, start, byte))
                                continue
                            metadata = keys.metadata(value)
                            if metadata is not None:
                                records.append(Document(text, id, file, number, name, start, byte, metadata))
                                continue
            except ValueError:
                pass
            found = _judge(line, value, keys, number, byte)
            records += found
            number += counts * max(0, len(found) - 1)
            lost += 1 - sum(isinstance(record, Document) for record in found)
        tally.lines = number
        tally.documents += len(lines) - lost
        yield records


def objects_in(text: str) -> Iterator[tuple[int, int, Any]]:
    """Yield begin, end and value of each object in a text, and of each stretch that is none: its value, or the error.

    >>> list(objects_in('{"a": 1}{"a": 2},\\r"b"'))
    [(0, 8, {'a': 1}), (8, 16, {'a': 2}), (18, 21, 'b')]
    """
    at = len(text) - len(text.lstrip(_BETWEEN))
    while at < len(text):
        begin = at
        try:
            if text[begin] == "{":
                value, at = _DECODER.raw_decode(text, begin)
            else:
                at = _beginning(text, begin)
                value = json.loads(text[begin:at])
        except (ValueError, RecursionError) as error:
            value, at = error, _beginning(text, begin)
        yield begin, at, value
        while at < len(text) and text[at] in _BETWEEN:
            at += 1


def _beginning(text: str, after: int) -> int:
    """Return where the next object may begin, so that one that is damaged costs itself alone."""
    found = _BEGINNING.search(text, after + 1)
    return found.start() if found else len(text)


def _judge(line: bytes, value: Any, keys: RecordKeys, number: int, byte: int) -> list[Record]:
    """Return the records of a line that the fast path does not handle: none if it is blank, one for each object it holds.

    ``value`` is None if orjson refused the line.
    """
    if value is not None:
        return [keys.judge(value, number, byte, partial(_respell, line))]
    if byte <= len(BOM_UTF8) and line.strip() in (b"{", b"["):
        raise UnreadableFileError("JSON over several lines is read if it is whole and the file is named .json")
    text, records, read, at = line.decode("utf-8", "surrogateescape"), list[Record](), 0, 0
    # `json` also reads NaN and Infinity, which Python writes, and lone surrogates, which `judge` refuses by name.
    for begin, end, value in objects_in(text):
        at, read = at + len(_encoded(text[read:begin])), end
        raw = _encoded(text[begin:end])
        place = number + len(records) * (not keys.by_byte), byte + at
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            where = f"byte {at + error.start} of the line: {error.reason}"
            records.append(keys.bad(*place, INVALID_UTF8, where))
        else:
            if isinstance(value, Exception):
                records.append(keys.bad(*place, INVALID_JSON, "a NUL byte" if b"\0" in raw else str(value)))
            else:
                records.append(keys.judge(value, *place, partial(_respell, raw)))
        at += len(raw)
    return records


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _respell(line: bytes) -> Any:
    return json.loads(line, parse_float=str, parse_int=str)


READER = FormatReader(read_jsonl, cuts=line_cuts)
