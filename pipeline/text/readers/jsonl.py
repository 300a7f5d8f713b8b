"""JSON Lines: each line is one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import orjson

from ..document import INVALID_JSON, INVALID_UTF8, Document, Record, RecordKeys, Tally
from .format_reader import FormatReader, Lines, bytes_of, line_cuts


def read_jsonl(source: Lines, fields: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a record for each line that is not blank; a line that cannot be used costs only itself.

    Lines are counted on from ``tally.lines``.
    """
    loads, text_key, id_key, file, name = orjson.loads, fields.text_key, fields.id_key, fields.file, fields.source
    start, keeps = fields.start, bool(fields.kept)
    flat = "." not in id_key  # else a missing id may be found inside another field
    number = tally.lines
    byte = 0  # of ``lines[counted]``, from the first line on; brought up only where it is asked for
    for lines in source.lines():
        first, counted, lost = number, 0, 0
        records: list[Record] = []
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
                            if not keeps:
                                records.append(Document(text, id, file, number, name, start))
                                continue
                            metadata = fields.metadata(value)
                            if metadata is not None:
                                records.append(Document(text, id, file, number, name, start, metadata))
                                continue
            except ValueError:
                pass
            index = number - first - 1
            byte += bytes_of(lines[counted:index])
            counted = index
            record = _judge(line, value, fields, number, source.text_start + byte)
            lost += not isinstance(record, Document)
            if record is not None:
                records.append(record)
        byte += bytes_of(lines[counted:])
        tally.lines = number
        tally.documents += len(lines) - lost
        yield records


def _judge(line: bytes, value: Any, fields: RecordKeys, number: int, byte: int) -> Record | None:
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


READER = FormatReader(read_jsonl, cuts=line_cuts, gradual=True, read_lines=read_jsonl)
