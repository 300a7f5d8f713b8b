"""Reads a file as fixed blocks of records, in order. Only wanted blocks are kept; they are parsed when used.

What a block holds depends on the file alone, so any number of readers can share a file's blocks out among them. Plain
JSON Lines of some size are cut by bytes, so that a reader begins anywhere; other files are read from their beginning,
JSON Lines among them without parsing what is not wanted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

from ...errors import InputError
from ..discovery import InputFile
from ..document import BadRecord, Document, Fields, Record, Tally
from ..fields import Field
from ..formats import format_of
from .base import ReadLines, load_reader
from .byte_stream import Damage, Source, is_compressed
from .reader import Reader

_CUT_BY_BYTES = 64 << 20  # plain JSON Lines from this size on
_BLOCK_BYTES = 128 << 10
Wanted = Callable[[int], bool]


class Block(NamedTuple):
    """Some neighbouring records: ``records()`` parses them; ``size`` is about how many bytes they take."""

    size: int
    records: Callable[[], list[Record]]


class BlockScan:
    """Goes once over the blocks of a file from block ``first`` on; iterating gives (number, block) of the wanted ones.

    ``number`` is the block that comes next, and at the end how many there are. ``bytes_read`` counts raw bytes. Raises
    ``InputError`` for a file that cannot be read on, after the blocks before the fault.
    """

    def __init__(
        self,
        file: InputFile,
        records: int,
        first: int,
        wanted: Wanted,
        text_key: str = "text",
        id_key: str = "id",
        keep: Sequence[Field] = (),
    ) -> None:
        self.number = 0
        self.bytes_read = 0
        self._file = file
        self._records = records
        self._fields = Fields(text_key, id_key, file.name, file.source, kept=tuple(keep))
        self._wanted = wanted
        self._blocks = self._cut(first)

    def __iter__(self) -> Iterator[tuple[int, Block]]:
        return self

    def __next__(self) -> tuple[int, Block]:
        return next(self._blocks)

    def close(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close the file."""
        if not ending():  # when files close by themselves, and modules are gone: `sys` is bound before
            self._blocks.close()

    def _cut(self, first: int) -> Generator[tuple[int, Block], None, None]:
        path = os.fspath(self._file)
        read_lines = load_reader(format_of(path)).read_lines
        if read_lines is None:
            yield from self._of_records()
            return
        try:
            if os.path.getsize(path) >= _CUT_BY_BYTES and not is_compressed(path):
                yield from self._of_bytes(path, first, read_lines)
            else:
                yield from self._of_lines(path, read_lines)
        except Damage as damage:
            raise InputError(f"{path}: {damage}; {self.number} blocks of {self._records} lines were read") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None

    def _of_bytes(self, path: str, first: int, read: ReadLines) -> Iterator[tuple[int, Block]]:
        size = os.path.getsize(path)
        count = -(-size // _BLOCK_BYTES)
        self._fields.made_ids = False  # which line a record stands on is not known here
        with open(path, "rb") as file:
            for self.number in range(first, count):
                if self._wanted(self.number):
                    start = self.number * _BLOCK_BYTES
                    source = Source(file, start, min(start + _BLOCK_BYTES, size))
                    lines = [line for batch in source.lines() for line in batch]
                    self.bytes_read += source.bytes_read
                    yield self.number, self._lines(read, lines, 0, source.text_start)
        self.number = max(first, count)

    def _of_lines(self, path: str, read: ReadLines) -> Iterator[tuple[int, Block]]:
        held: list[bytes] = []
        fault: Damage | None = None
        with open(path, "rb") as file:
            source = Source(file)
            source.check_packing()
            batches = source.lines()
            while fault is None:
                try:
                    batch = next(batches, None)
                except Damage as damage:
                    batch, fault = None, damage
                if batch is None:
                    break
                self.bytes_read = source.bytes_read
                held += batch
                whole = len(held) // self._records * self._records
                for begin in range(0, whole, self._records):
                    if self._wanted(self.number):
                        lines = held[begin : begin + self._records]
                        yield self.number, self._lines(read, lines, self.number * self._records, None)
                    self.number += 1
                del held[:whole]
        if held:  # before a fault too
            if self._wanted(self.number):
                yield self.number, self._lines(read, held, self.number * self._records, None)
            self.number += 1
        if fault is not None:
            raise fault

    def _lines(self, read: ReadLines, lines: list[bytes], before: int, byte: int | None) -> Block:
        def parse() -> list[Record]:
            records = list(read(_Lines(lines, byte or 0), self._fields, Tally(before)))
            for record in records:
                if isinstance(record, BadRecord) and byte is None:
                    record.byte = None
            return records

        return Block(sum(map(len, lines)), parse)

    def _of_records(self) -> Iterator[tuple[int, Block]]:
        fields = self._fields
        reader = Reader(self._file, text_key=fields.text_key, id_key=fields.id_key, keep=fields.kept)
        records, block = iter(reader), list[Record]()
        fault: InputError | None = None
        while fault is None:
            try:
                record = next(records, None)
            except InputError as error:
                record, fault = None, error
            if record is not None:
                block.append(record)
            if block and (record is None or len(block) == self._records):
                self.bytes_read = reader.bytes_read
                if self._wanted(self.number):
                    yield self.number, _parsed(block)
                self.number, block = self.number + 1, []
            if record is None:
                break
        if fault is not None:
            raise fault


class _Lines:
    """Lines that were read before, as a `Lines`."""

    def __init__(self, lines: list[bytes], text_start: int) -> None:
        self.text_start = text_start
        self._lines = lines

    def lines(self) -> Iterator[list[bytes]]:
        yield self._lines


def _parsed(records: list[Record]) -> Block:
    return Block(sum(len(record.text) for record in records if isinstance(record, Document)), lambda: records)
