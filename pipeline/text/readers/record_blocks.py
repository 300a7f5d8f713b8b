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
from typing import Any, NamedTuple

from ...daemon_threads import DaemonThreads
from ...errors import DamagedInputError, InputError
from ..discovery import InputFile
from ..document import BadRecord, Document, Record, RecordKeys, Tally, Unselected, made_id_at, selected
from ..fields import Field, merge_fields
from ..formats import format_of
from ..storage.opening import open_input
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
    threads = DaemonThreads(_AT_ONCE, "scan")
    for scan, read in zip(scans, reads, strict=True):
        scan._first = threads.submit(read)


class BlockScan:
    """Goes once over the blocks of about ``block_bytes`` of a file or span; iterating gives (number, block) of the wanted ones.

    ``span``: bytes of plain JSON Lines or text, whose documents then have a byte offset and no line; the offset names those
    without an id; or row groups of Parquet, with ``lines`` rows before them. A compressed file has no
    seek, so its first span holds all of it. Records that ``where`` does not select are in no block; in JSON Lines their
    bytes count, since lines are parsed only when a block is used.

    A remote file that is read ``whole``, by several scans, is downloaded once.

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
        whole: bool = False,
    ) -> None:
        self.number = 0
        self.bytes_read = 0
        self._file = file
        self._whole = whole
        self._block_bytes = block_bytes
        self._span = span
        self._rows_before = lines
        kept = merge_fields([keep, where.fields if where else ()])
        record = format_of(file).record
        self._fields = RecordKeys(text_key, id_key, file.name, file.source, kept=kept, where=where, record=record)
        self._wanted = wanted
        self._before = self._byte = 0  # lines before the block that is cut, and the byte at which it begins
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
        try:
            yield from self._cut_parts()
        except UnreadableFileError as damage:
            raise DamagedInputError(
                f"{os.fspath(self._file)}: {damage}; {self.number} blocks of it were read"
            ) from None
        except OSError as error:
            raise InputError(f"{os.fspath(self._file)}: cannot be read: {error.strerror or error}") from None

    def _cut_parts(self) -> Iterator[tuple[int, Block]]:
        reader = load_reader(format_of(self._file))
        read_lines, by_byte = reader.read_lines, reader.cut_anywhere and self._span != WHOLE
        if by_byte and is_compressed(self._file):
            if self._span.start:
                return
            self._span, by_byte = WHOLE, False
        parts: Iterator[tuple[Any, int]] = self._lines() if read_lines else self._records(by_byte=by_byte)
        block: list[Any] = []  # lines, or records
        size = 0
        fault: Exception | None = None
        try:
            for part, length in parts:
                block.append(part)
                size += length
                if size >= self._block_bytes:
                    yield from self._end_block(read_lines, block, size)
                    block, size = [], 0
        except (UnreadableFileError, DamagedInputError) as error:  # what lies before damage is a block, each time
            fault = error
        if block:
            yield from self._end_block(read_lines, block, size)
        if fault is not None:
            raise fault

    def _end_block(self, read: ReadLines | None, block: list[Any], size: int) -> Iterator[tuple[int, Block]]:
        """Yield a block of lines or records if it is wanted, and count it."""
        if self._wanted(self.number):
            yield self.number, Block(size, functools.partial(self._parse, read, self._before, self._byte, block))
        self._before, self._byte, self.number = self._before + len(block), self._byte + size, self.number + 1

    def _lines(self) -> Iterator[tuple[bytes, int]]:
        """Yield each line, and the bytes that it takes."""
        self._fields.made_ids = self._span == WHOLE
        with open_input(self._file, *self._span, first_bytes=FIRST_BYTES, whole=self._whole) as file:
            block_bytes = max(512, self._block_bytes // 4)
            if self._span == WHOLE:
                block_bytes = BLOCK if self._file.stored is None else FIRST_BYTES // 4
            source = Source(file, *self._span, block=block_bytes)
            source.check_compression()
            for number, lines in enumerate(source.lines()):
                self.bytes_read = source.bytes_read
                if number == 0:
                    self._byte = source.text_start
                for line in lines:
                    yield line, len(line) + 1
            check_sha256(self._file, source)

    def _parse(self, read: ReadLines | None, before: int, byte: int, lines: list[Any]) -> list[Record]:
        """Parse the lines of a block that begins at a byte, in a whole file behind ``before`` lines; records stay."""
        if read is None:
            return lines
        where = self._fields.where
        if self._span == WHOLE:
            records = list(chain.from_iterable(read(_Lines(lines, 0), self._fields, Tally(before))))
            for record in records:
                if isinstance(record, BadRecord):
                    record.byte = None  # it was counted from the beginning of the block
        else:
            records = list(chain.from_iterable(read(_Lines(lines, byte), self._fields, Tally())))
            starts = list(accumulate((len(line) + 1 for line in lines), initial=byte))
            for record in records:
                assert not isinstance(record, Unselected)  # all are read
                record.byte, record.line = starts[record.line - 1], 0
                if isinstance(record, Document) and not record.id:
                    record.id = made_id_at(record.file, record.byte)
        if where is None:
            return records
        return [record for record in selected(records, where) if not isinstance(record, Unselected)]

    def _records(self, *, by_byte: bool) -> Iterator[tuple[Record, int]]:
        """Yield each record that is selected, and the characters that it takes."""
        fields = self._fields
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
        rows_before = self._rows_before if self._span.start else 0
        for record in reader:
            self.bytes_read = reader.bytes_read
            if isinstance(record, Unselected):
                continue
            if rows_before:
                record.line += rows_before  # of the file, not of the span
            if isinstance(record, Document):
                record.start = 0
                record.id = record.id or fields.missing_id(record.line)
            yield record, 1 + (len(record.text) if isinstance(record, Document) else 0)


class _Lines:
    """Lines that were read before, as a `Lines`."""

    def __init__(self, lines: list[bytes], text_start: int) -> None:
        self.text_start = text_start
        self._lines = lines

    def lines(self) -> Iterator[list[bytes]]:
        yield self._lines
