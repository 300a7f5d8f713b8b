"""JSON Lines: each line is one JSON object."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from functools import partial
from typing import Any

import orjson

from ..document import INVALID_JSON, INVALID_UTF8, Document, Record, RecordKeys, Tally
from .byte_stream import ByteStream
from .format_reader import FormatReader, line_cuts


def read_jsonl(stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a record for each line that is not blank. A line that cannot be used is a ``BadRecord``."""
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
            record = _judge(line, value, keys, number, byte)
            if record is not None:
                records.append(record)
            lost += not isinstance(record, Document)
        tally.lines = number
        tally.documents += len(lines) - lost
        yield records


def _judge(line: bytes, value: Any, keys: RecordKeys, number: int, byte: int) -> Record | None:
    """Return the record of a line that the fast path does not handle, None if it is blank.

    ``value`` is None if orjson refused the line.
    """
    if value is not None:
        return keys.judge(value, number, byte, partial(_respell, line))
    line = line.removeprefix(BOM_UTF8)  # joined files have such marks
    if not line.strip():
        return None
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return keys.bad(number, byte, INVALID_UTF8, f"byte {error.start} of the line: {error.reason}")
    try:
        # `json` also reads NaN and Infinity, which Python writes, and lone surrogates, which `judge` refuses by name.
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return keys.bad(number, byte, INVALID_JSON, "a NUL byte" if "\0" in text else str(error))
    return keys.judge(value, number, byte, partial(_respell, line))


def _respell(line: bytes) -> Any:
    return json.loads(line, parse_float=str, parse_int=str)


READER = FormatReader(read_jsonl, cuts=line_cuts)
