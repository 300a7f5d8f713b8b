"""Reads a file, or a span of it, as fixed blocks of records, in order. Only wanted blocks are kept; they are parsed when used.

A block ends with the record that makes it reach a number of bytes. So what it holds depends on the file alone, and any number
of readers can share a file's blocks among them. Blocks of JSON Lines that are not wanted are never parsed.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from itertools import accumulate, chain
from typing import NamedTuple

from ...errors import DamagedInputError, InputError
from ..discovery import InputFile
from ..document import BadRecord, Document, Record, RecordKeys, Tally, Unselected, made_id_at, selected
from ..fields import Field, merge_fields
from ..formats import format_of
from ..storage.opening import open_input
from ..storage.remote_file import in_threads
from ..storage.shared_ranges import SharedRanges
from ..where import Where
from .byte_stream import BLOCK, Source, UnreadableFileError, is_compressed
from .format_reader import WHOLE, FileSpan, ReadLines, load_reader
from .reader import Reader, check_sha256

FIRST_BYTES = 256 << 10  # of a remote file, that the first block waits for: streams begin with blocks of many files
_AT_ONCE = 32  # files that are waited for together

Wanted = Callable[[int], bool]


class Block(NamedTuple):
    """Some neighbouring records: ``records()`` parses them; ``size`` is how many bytes they take."""

    size: int
    records: Callable[[], list[Record]]


def begin_together(scans: Sequence[BlockScan]) -> None:
    """Read each up to its first wanted block in threads, so that their files are waited for together."""
    reads = [functools.partial(next, scan._blocks, None) for scan in scans]
    for scan, first in zip(scans, in_threads(reads, _AT_ONCE, "shardwright-scan"), strict=True):
        scan._first = first


class BlockScan:
    """Goes once over the blocks of about ``block_bytes`` of a file or span; iterating gives (number, block) of the wanted ones.

    ``span``: bytes of plain JSON Lines or text, whose documents then have a byte offset and no line; the offset names those
    without an id; or row groups of Parquet, with ``lines`` rows before them. A compressed file has no
    seek, so its first span holds all of it. Records that ``where`` does not select are in no block; in JSON Lines their
    bytes count, since lines are parsed only when a block is used.

    ``shared`` are the bytes of a remote file of plain lines, where other scans read them too.

    ``number`` is the block that comes next, and at the end how many there are. ``bytes_read`` counts raw bytes. Raises
    ``InputError`` for a file that cannot be read further, after the blocks before the fault.
    """

    def __init__(
        self,
        file: InputFile,
        block_bytes: int,
        wanted: Wanted,
        *,
        span: FileSpan = WHOLE,
        lines: int = 0,
        text_key: str = "text",
        id_key: str = "id",
        keep: Sequence[Field] = (),
        where: Where | None = None,
        shared: SharedRanges | None = None,
    ) -> None:
        self.number = 0
        self.bytes_read = 0
        self._file = file
        self._shared = shared
        self._block_bytes = block_bytes
        self._span = span
        self._rows_before = lines
        kept = merge_fields([keep, where.fields if where else ()])
        record = format_of(file).record
        self._fields = RecordKeys(text_key, id_key, file.name, file.source, kept=kept, where=where, record=record)
        self._wanted = wanted
        self._blocks = self._cut()
        self._first: Future[tuple[int, Block] | None] | None = None

    def __iter__(self) -> Iterator[tuple[int, Block]]:
        return self

    def __next__(self) -> tuple[int, Block]:
        if self._first is None:
            return next(self._blocks)
        begun, self._first = self._first, None
        if begun.cancel():  # no thread has begun it yet
            return next(self._blocks)
        if (found := begun.result()) is None:
            raise StopIteration
        return found

    def close(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close the file."""
        if self._first is not None and not self._first.cancel():
            self._first.exception()
        if not ending():  # at exit files close by themselves, and modules may be gone, so `sys` is bound early
            self._blocks.close()

    def _cut(self) -> Generator[tuple[int, Block], None, None]:
        path = os.fspath(self._file)
        reader = load_reader(format_of(self._file))
        try:
            if reader.cut_anywhere and self._span != WHOLE and is_compressed(self._file):
                if self._span.start:
                    return
                self._span = WHOLE
            if reader.read_lines is None:
                yield from self._of_records(by_byte=reader.cut_anywhere and self._span != WHOLE)
            else:
                yield from self._of_lines(reader.read_lines)
        except UnreadableFileError as damage:
            raise DamagedInputError(f"{path}: {damage}; {self.number} blocks of it were read") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None

    def _of_lines(self, read: ReadLines) -> Iterator[tuple[int, Block]]:
        block: list[bytes] = []
        size = before = 0  # bytes of the block, and lines before it
        fault: UnreadableFileError | None = None
        self._fields.made_ids = self._span == WHOLE
        with open_input(self._file, *self._span, first_bytes=FIRST_BYTES, shared=self._shared) as file:
            block_bytes = max(512, self._block_bytes // 4)
            if self._span == WHOLE:
                block_bytes = BLOCK if self._file.stored is None else FIRST_BYTES // 4
            source = Source(file, *self._span, block=block_bytes)
            source.check_compression()
            batches, most = source.lines(), self._block_bytes
            begin: int | None = None  # the byte at which the block begins
            while fault is None:
                try:
                    batch = next(batches, None)
                except UnreadableFileError as damage:
                    batch, fault = None, damage
                if batch is None:
                    break
                self.bytes_read = source.bytes_read
                if begin is None:
                    begin = source.text_start
                for line in batch:
                    block.append(line)
                    size += len(line) + 1
                    if size >= most:
                        if self._wanted(self.number):
                            yield self.number, self._lines(read, block, size, before, begin)
                        before, begin = before + len(block), begin + size
                        self.number, block, size = self.number + 1, [], 0
        if fault is None:
            check_sha256(self._file, source)
        if block:  # before a fault too
            if self._wanted(self.number):
                yield self.number, self._lines(read, block, size, before, begin or 0)
            self.number += 1
        if fault is not None:
            raise fault

    def _lines(self, read: ReadLines, lines: list[bytes], size: int, before: int, byte: int) -> Block:
        span = self._span

        def parse() -> list[Record]:
            if span == WHOLE:
                records = list(chain.from_iterable(read(_Lines(lines, 0), self._fields, Tally(before))))
                for record in records:
                    if isinstance(record, BadRecord):
                        record.byte = None  # it was counted from the beginning of the block
                return records
            records = list(chain.from_iterable(read(_Lines(lines, byte), self._fields, Tally())))
            starts = list(accumulate((len(line) + 1 for line in lines), initial=byte))
            for record in records:
                assert not isinstance(record, Unselected)  # all are read
                record.byte, record.line = starts[record.line - 1], 0
                if isinstance(record, Document) and not record.id:
                    record.id = made_id_at(record.file, record.byte)
            return records

        if (where := self._fields.where) is None:
            return Block(size, parse)
        return Block(size, functools.partial(_parse_selected, parse, where))

    def _of_records(self, *, by_byte: bool) -> Iterator[tuple[int, Block]]:
        fields = self._fields
        lines = self._rows_before if self._span.start else 0
        reader = Reader(
            self._file,
            self._span,
            text_key=fields.text_key,
            id_key=fields.id_key,
            keep=fields.kept,
            where=fields.where,
            first_bytes=FIRST_BYTES,
            by_byte=by_byte,
        )
        records, block, size = iter(reader), list[Record](), 0
        fault: InputError | None = None
        while fault is None:
            try:
                record = next(records, None)
            except InputError as error:
                record, fault = None, error
            if isinstance(record, Unselected):
                self.bytes_read = reader.bytes_read
                continue
            if record is not None:
                if lines:
                    record.line += lines  # of the file, not of the span
                if isinstance(record, Document):
                    size += len(record.text)
                    record.start = 0
                    record.id = record.id or fields.missing_id(record.line)
                size += 1
                block.append(record)
            if block and (record is None or size >= self._block_bytes):
                self.bytes_read = reader.bytes_read
                if self._wanted(self.number):
                    yield self.number, _parsed(block, size)
                self.number, block, size = self.number + 1, [], 0
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


def _parse_selected(parse: Callable[[], list[Record]], where: Where) -> list[Record]:
    """Return the records that a condition selects, and the bad ones."""
    return [record for record in selected(parse(), where) if not isinstance(record, Unselected)]


def _parsed(records: list[Record], size: int) -> Block:
    return Block(size, lambda: records)
