"""Files named ``.json``: one JSON array, objects over several lines, or JSON Lines."""

from __future__ import annotations

import functools
import io
import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any

import orjson

from ..document import Document, Record, RecordKeys, Tally
from ..storage.input_file import InputFile
from ..storage.open_input import open_input
from .byte_stream import PEEKED, ByteStream, UnreadableFileError
from .format_reader import FormatReader, line_cuts
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
    if (data := text if is_array else _as_array(text)) is None:
        lines = ByteStream(io.BytesIO(BOM_UTF8[: stream.text_start] + text))
        yield from read_jsonl(lines, keys, tally)
        return
    try:
        values = orjson.loads(data)
    except ValueError:
        try:
            values = json.loads(data)
        except ValueError as error:
            raise UnreadableFileError(f"not a whole JSON array ({error})") from None
        except RecursionError:
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


def _as_array(data: bytes) -> bytes | None:
    """Return objects that follow one another as a JSON array, or None if a part is no JSON."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    found = list(objects_in(text))
    is_whole = not any(isinstance(value, Exception) for *_, value in found)
    return f"[{','.join(text[begin:end] for begin, end, _ in found)}]".encode() if is_whole else None


def _holds_lines(stream: ByteStream) -> bool:
    """Whether the first line that is not blank holds whole objects, and no array begins there. For a stream not yet read."""
    if stream.starts_with(b"["):
        return False
    peek = ByteStream(stream.file, block=PEEKED)
    line = next((line for lines in peek.lines() for line in lines if line.strip()), b"")
    return not any(isinstance(value, Exception) for *_, value in objects_in(line.decode("utf-8", "surrogateescape")))


def json_cuts(file: InputFile, unit_bytes: int) -> list[int]:
    """Return where to cut a file of lines. Any other file is not cut."""
    with open_input(file, in_order=False) as opened:
        return line_cuts(file, unit_bytes) if _holds_lines(ByteStream(opened)) else []


READER = FormatReader(read_json, cuts=json_cuts)
