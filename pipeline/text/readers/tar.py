"""Text in webdataset tars: each ``.txt`` member is a document, each ``.json`` member a record."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO

import orjson

from ...errors import ShardError
from ...shards.tar import iter_members, members_of
from ..document import INVALID_JSON, INVALID_UTF8, Document, Record, RecordKeys, Tally
from .byte_stream import Source, UnreadableFileError
from .format_reader import FormatReader

ENDINGS = (".txt", ".json")


def read_tar(source: Source, fields: RecordKeys, tally: Tally) -> Iterator[list[Record]]:
    """Yield a record for each ``.txt`` or ``.json`` member, in file order; ``line`` is its number among them.

    The id of a ``.txt`` member's document is the member's name without the ending. Raises ``UnreadableFileError`` where
    the tar is cut or corrupt, and for one that holds no such member.
    """
    try:
        for name, payload in _members(source):
            tally.lines += 1
            record = _record(name, payload, fields, tally.lines)
            tally.documents += isinstance(record, Document)
            yield [record]
    except ShardError as error:
        raise UnreadableFileError(str(error).removeprefix(f"{source.path}: ")) from None
    if not tally.lines:
        raise UnreadableFileError("no member ends in .txt or .json; shards of tokens are streamed, not read as text")
    for _ in source.raw() if source.is_local else ():  # hashed like any other file
        pass


def _members(source: Source) -> Iterator[tuple[str, bytes]]:
    if source.is_local:
        return iter_members(source.path, ENDINGS)
    return members_of(SlicedFile(source.file), source.path, ENDINGS)


class SlicedFile:
    """A remote file by slices, as the walk over a tar asks for them: from its beginning to its end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __len__(self) -> int:
        return self._file.seek(0, io.SEEK_END)

    def __getitem__(self, place: slice) -> bytes:
        self._file.seek(place.start)
        return self._file.read(place.stop - place.start)


def _record(name: str, payload: bytes, fields: RecordKeys, number: int) -> Record:
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        return fields.bad(number, None, INVALID_UTF8, f"member {name!r}, byte {error.start}: {error.reason}")
    if name.endswith(".txt"):
        return fields.document(text, name.removesuffix(".txt"), number)
    try:
        value = orjson.loads(payload)
    except ValueError as error:
        return fields.bad(number, None, INVALID_JSON, f"member {name!r}: {error}")
    return fields.judge(value, number, None)


READER = FormatReader(read_tar)
