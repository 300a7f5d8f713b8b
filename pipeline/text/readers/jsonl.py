"""JSON Lines: each line is one JSON object. A line of several objects, or of an array of them, is read, too: each object
counts as a line."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import orjson

from ..document import INVALID_JSON, INVALID_UTF8, Document, Record, RecordKeys, Tally
from .byte_stream import ByteStream, UnreadableFileError
from .format_reader import FormatReader, line_borders

# Between objects are line ends of old Macs, separators of RFC 7464, commas, brackets of arrays, and marks of joined files.
_OTHER = re.compile(r"[^ \t\r\n\v\f\x1e,\[\]\xef\xbb\xbf]")
_BEGINNING = re.compile("(?:(?<=[}\r\n\x1e])|(?<=[}\r\n\x1e] )){")
_NEXT_ELEMENT = re.compile("(?:(?<=[}\r\n\x1e])|(?<=[}\r\n\x1e] )|(?<=},)|(?<=}, )){")
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


def objects_in(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each object of a line or file with its offset, and each stretch that is none. A damaged one costs itself alone.

    >>> list(objects_in(b'{"a": 1}{"a": 2},{"a" {"a": 3}'))
    [(0, b'{"a": 1}'), (8, b'{"a": 2}'), (17, b'{"a" {"a": 3}')]
    """
    text, at = data.decode("latin-1"), 0  # a character is a byte
    while found := _OTHER.search(text, at):
        begin = at = found.start()
        with suppress(ValueError, RecursionError):
            at = _DECODER.raw_decode(text, begin)[1] if found[0] == "{" else begin
        if at == begin:
            listed = text[max(0, begin - 2) : begin].rstrip()[-1:] in (",", "[")
            beginning = (_NEXT_ELEMENT if listed else _BEGINNING).search(text, begin + 1)
            at = beginning.start() if beginning else len(text)
        yield begin, data[begin:at]


def _judge(line: bytes, value: Any, keys: RecordKeys, number: int, byte: int) -> list[Record]:
    """Return the records of a line that the fast path does not handle: none if it is blank, one for each object it holds.

    ``value`` is None if orjson refused the line.
    """
    if value is not None and not (type(value) is list and any(type(each) is dict for each in value)):
        return [keys.judge(value, number, byte, partial(_respell, line))]
    if byte <= len(BOM_UTF8) and line.strip() in (b"{", b"["):
        raise UnreadableFileError("JSON over several lines is read if it is whole and the file is named .json")
    parts = list(objects_in(line)) or [(0, line)] * (b"[" in line)  # brackets alone are no blank line
    return [
        _judge_part(part, keys, number + at * (not keys.by_byte), byte + begin)
        for at, (begin, part) in enumerate(parts)
    ]


def _judge_part(part: bytes, keys: RecordKeys, number: int, byte: int) -> Record:
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        return keys.bad(number, byte, INVALID_UTF8, f"byte {error.start} of the object: {error.reason}")
    try:
        # `json` also reads NaN and Infinity, which Python writes, and lone surrogates, which `judge` refuses by name.
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return keys.bad(number, byte, INVALID_JSON, "a NUL byte" if "\0" in text else str(error))
    return keys.judge(value, number, byte, partial(_respell, part))


def _respell(line: bytes) -> Any:
    return json.loads(line, parse_float=str, parse_int=str)


READER = FormatReader(read_jsonl, borders=line_borders)
