"""Files named ``.json``: one JSON array, or JSON Lines if the text does not begin with an array."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import orjson

from ..document import Document, Record, RecordKeys, Tally
from ..storage.input_file import InputFile
from ..storage.open_input import open_input
from .byte_stream import ByteStream, UnreadableFileError
from .format_reader import FormatReader, line_cuts
from .jsonl import read_jsonl

_BEGINNING = 4096  # bytes that show whether it is an array or lines


def read_json(stream: ByteStream, keys: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a record for each element of the file's array, or for each line if the file is JSON Lines.

    An array is parsed as a whole and takes a few times its size in memory. JSON Lines take the memory of a few lines.
    """
    if not stream.starts_with(b"["):
        yield from read_jsonl(stream, keys, tally)
        return
    data = b"".join(stream.text())
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


def json_cuts(file: InputFile, unit_bytes: int) -> list[int]:
    """Return where to cut a file of lines. An array is not cut."""
    with open_input(file, in_order=False) as opened:
        return [] if ByteStream(opened, block=_BEGINNING).starts_with(b"[") else line_cuts(file, unit_bytes)


READER = FormatReader(read_json, cuts=json_cuts)
