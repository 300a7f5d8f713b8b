"""Files named ``.json``: one JSON array, objects over several lines, or JSON Lines."""

from __future__ import annotations

import functools
import io
import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ...shards.index import parse_json
from ..document import Document, Record, RecordKeys, Tally
from ..storage.input_file import InputFile
from ..storage.open_input import open_input
from .byte_stream import PEEKED, ByteStream, UnreadableFileError
from .format_reader import FormatReader, line_borders
from .jsonl import objects_in, read_jsonl


def read_json(stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a record for each element of the file's array, for each object over several lines, or for each line.

    Only lines take the memory of a few lines. An array or such objects are parsed whole and take a few times their size.
    """
    if stream.start or stream.stop is not None or _holds_lines(stream):
        yield from read_jsonl(stream, keys, tally)
        return
    is_array = stream.starts_with(b"[")
    text = b"".join(stream.text())
    data = text if is_array else b"[%b]" % b",".join(part for _, part in objects_in(text))
    try:
        values = parse_json(data)
    except (ValueError, RecursionError) as error:
        if not is_array:
            yield from read_jsonl(ByteStream(io.BytesIO(BOM_UTF8[: stream.text_start] + text)), keys, tally)
            return
        if isinstance(error, ValueError):
            raise UnreadableFileError(f"not a whole JSON array ({error})") from None
        raise UnreadableFileError(
            "lists or objects are nested too deeply; write it as JSON Lines, so that only such lines are lost"
        ) from None

    @functools.cache
    def respelled() -> list[Any]:
        return list(json.loads(data, parse_float=str, parse_int=str))

    def respell(at: int) -> Any:
        return respelled()[at]

    records = [keys.judge(value, at + 1, None, functools.partial(respell, at)) for at, value in enumerate(values)]
    tally.lines = len(records)
    tally.documents = sum(isinstance(record, Document) for record in records)
    yield records


def _holds_lines(stream: ByteStream) -> bool:
    """Whether the first line that is not blank holds whole objects, and no array begins there. For a stream not yet read."""
    if stream.starts_with(b"["):
        return False
    peek = ByteStream(stream.file, block=PEEKED)
    line = next((line for lines in peek.lines() for line in lines if line.strip()), b"")
    with suppress(ValueError, RecursionError):
        return bool([parse_json(part) for _, part in objects_in(line)]) or not line
    return False


def json_borders(file: InputFile, unit_bytes: int) -> list[int]:
    """Return where to cut a file of lines. Any other file is not cut."""
    with open_input(file, in_order=False) as opened:
        return line_borders(file, unit_bytes) if _holds_lines(ByteStream(opened)) else []


READER = FormatReader(read_json, borders=json_borders)
