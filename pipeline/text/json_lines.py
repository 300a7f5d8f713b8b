"""JSON Lines, and files that hold one JSON array."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import orjson

from .blocks import Damage, Source
from .records import INVALID_JSON, INVALID_UTF8, Document, Fields, Record, Tally


def read_jsonl(source: Source, fields: Fields, tally: Tally) -> Iterator[Record]:
    """Yield a record for each line that is not blank; a line that cannot be used costs only itself."""
    loads, text_key, id_key, file, name = orjson.loads, fields.text_key, fields.id_key, fields.file, fields.source
    number = spent = 0  # lines before the one at hand; bytes before its batch, counted from the first line
    for lines in source.lines():
        first, lost = number, 0
        for line in lines:
            number += 1
            try:
                value = loads(line)
            except ValueError:
                byte = source.text_start + spent + _bytes(lines[: number - first - 1])
                record = _parse_slowly(line, fields, number, byte)
            else:
                if type(value) is dict:
                    text, id = value.get(text_key), value.get(id_key)
                    if type(text) is str and type(id) is str and id:
                        yield Document(text, id, file, number, name)
                        continue
                byte = source.text_start + spent + _bytes(lines[: number - first - 1])
                record = fields.judge(value, number, byte, partial(_respell, line))
            if isinstance(record, Document):
                yield record
                continue
            lost += 1
            if record is not None:
                yield record
        spent += _bytes(lines)
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


def _parse_slowly(line: bytes, fields: Fields, number: int, byte: int) -> Record | None:
    """Parse a line that orjson refuses: None if it is blank, else a document that Python's json grants, or why not."""
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
        detail = "a NUL byte" if "\0" in text else str(error)
        return fields.bad(number, byte, INVALID_JSON, detail)
    return fields.judge(value, number, byte, partial(_respell, line))


def _respell(line: bytes) -> Any:
    return json.loads(line, parse_float=str, parse_int=str)
