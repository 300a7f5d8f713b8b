"""JSON Lines, and files that hold one JSON array."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

import orjson

from ..document import INVALID_JSON, INVALID_UTF8, Document, Fields, Record, Tally
from .byte_stream import Damage, Source


class Lines(Protocol):
    """Lines in batches, of which the first begins at byte ``text_start`` of the data."""

    text_start: int

    def lines(self) -> Iterator[list[bytes]]: ...


def read_jsonl(source: Lines, fields: Fields, tally: Tally) -> Iterator[Record]:
    """Yield a record for each line that is not blank; a line that cannot be used costs only itself.

    Lines are counted on from ``tally.lines``.
    """
    loads, text_key, id_key, file, name = orjson.loads, fields.text_key, fields.id_key, fields.file, fields.source
    flat = "." not in id_key  # else a missing id may be found inside another field
    number = tally.lines
    byte = 0  # of ``lines[counted]``, from the first line on; brought up only where it is asked for
    for lines in source.lines():
        first, counted, lost = number, 0, 0
        for line in lines:
            number += 1
            value = None
            try:
                value = loads(line)
                if type(value) is dict:
                    text, id = value.get(text_key), value.get(id_key)
                    if type(text) is str:
                        if type(id) is int:
                            id = str(id)
                        elif id is None and flat:
                            id = fields.missing_id(number)
                        if type(id) is str and (id or not fields.made_ids):
                            yield Document(text, id, file, number, name)
                            continue
            except ValueError:
                pass
            index = number - first - 1
            byte += _bytes(lines[counted:index])
            counted = index
            record = _judge(line, value, fields, number, source.text_start + byte)
            lost += not isinstance(record, Document)
            if record is not None:
                yield record
        byte += _bytes(lines[counted:])
        tally.lines = number
        tally.documents += len(lines) - lost


def read_json(source: Source, fields: Fields, tally: Tally) -> Iterator[Record]:
    """Yield a record for each element of the one array that the file holds, or for each line if it holds none.

    An array is parsed whole: it takes a few times its size in memory. JSON Lines take a few lines'.
    """
    if not source.starts_with(b"["):
        yield from read_jsonl(source, fields, tally)
        return
    data = b"".join(source.text())
    try:
        values = orjson.loads(data)
    except ValueError:
        try:
            values = json.loads(data)
        except ValueError as error:
            raise Damage(f"not a whole JSON array ({error})") from None
    for tally.lines, value in enumerate(values, 1):
        record = fields.judge(value, tally.lines, None)
        tally.documents += isinstance(record, Document)
        yield record


def _bytes(lines: list[bytes]) -> int:
    return sum(map(len, lines)) + len(lines)


def _judge(line: bytes, value: Any, fields: Fields, number: int, byte: int) -> Record | None:
    """Judge a line that gave no document at once; ``value`` None: orjson refused it. A blank line gives None."""
    if value is not None:
        return fields.judge(value, number, byte, partial(_respell, line))
    if not line.strip():
        return None
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return fields.bad(number, byte, INVALID_UTF8, f"byte {error.start} of the line: {error.reason}")
    try:
        # It also takes NaN and Infinity, which Python writes, and lone surrogates, which the judge refuses by name.
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return fields.bad(number, byte, INVALID_JSON, "a NUL byte" if "\0" in text else str(error))
    return fields.judge(value, number, byte, partial(_respell, line))


def _respell(line: bytes) -> Any:
    return json.loads(line, parse_float=str, parse_int=str)
