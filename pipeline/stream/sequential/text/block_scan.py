"""Reads a file, or a span of it, as fixed blocks of records, in order. Only wanted blocks are kept.

Blocks (`pipeline.stream.sequential`) depend on the file alone, so any number of readers can share them. The last record counts by
its characters, since no next record shows where it ends.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from ....daemon_threads import DaemonThreads
from ....errors import DamagedInputError, InputError
from ....text.discovery import InputFile
from ....text.document import Document, Record, Unselected
from ....text.formats import format_of
from ....text.readers.byte_stream import is_compressed
from ....text.readers.document_reader import DocumentReader
from ....text.readers.format_reader import WHOLE, FileSpan, load_reader
from ....text.storage.remote_file import FIRST_BYTES

_AT_ONCE = 32  # files that are opened at the same time


class Block(NamedTuple):
    """Neighbouring records, of ``size`` bytes; the last record of a file or span counts by characters."""

    size: int
    records: list[Record]


def begin_together(scans: Sequence[BlockScan]) -> None:
    """Read each scan up to its first wanted block, all at the same time in threads."""
    reads = [functools.partial(next, scan._blocks, None) for scan in scans]
    threads = DaemonThreads(_AT_ONCE, "scan")
    for scan, read in zip(scans, reads, strict=True):
        scan._first = threads.submit(read)


class BlockScan:
    """Reads a file or span once in blocks of about ``block_bytes``, and yields (number, block) for each ``wanted`` block.

    ``span`` is a range of bytes of a plain file of lines, whose documents then have a byte offset and no line; or of row groups
    of Parquet, after ``rows_before`` rows. A compressed file can only be read from its start, so its first span is the whole
    file. Records that are not selected are in no block. ``options`` are those of a `DocumentReader`.

    ``number`` is the next block; at the end, the number of blocks. ``bytes_read`` counts raw bytes. If a file is damaged, the
    blocks before the damage come first, then ``InputError``.
    """

    def __init__(
        self,
        file: InputFile,
        block_bytes: int,
        wanted: Callable[[int], bool],
        *,
        span: FileSpan = WHOLE,
        rows_before: int = 0,
        **options: Any,
    ) -> None:
        self.number = 0
        self._file = file
        self._block_bytes = block_bytes
        self._span = span
        self._wanted = wanted
        self._options = options | {"first_bytes": FIRST_BYTES, "rows_before": rows_before}
        self._reader: DocumentReader | None = None
        self._blocks = self._cut()
        self._first: Future[tuple[int, Block] | None] | None = None

    @property
    def bytes_read(self) -> int:
        return self._reader.bytes_read if self._reader else 0

    def __iter__(self) -> Iterator[tuple[int, Block]]:
        return self

    def __next__(self) -> tuple[int, Block]:
        if self._first is None:
            return next(self._blocks)
        begun, self._first = self._first, None
        if begun.cancel():  # no thread has begun it yet
            return next(self._blocks)
        if (block := begun.result()) is None:
            raise StopIteration
        return block

    def close(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close the file."""
        if self._first is not None and not self._first.cancel():
            self._first.exception()
        if not ending():  # at exit files close by themselves; modules may be gone, so `ending` is bound early
            self._blocks.close()

    def _cut(self) -> Generator[tuple[int, Block], None, None]:
        for block in self._all_blocks():
            self.number += 1
            if self._wanted(self.number - 1):
                yield self.number - 1, block

    def _all_blocks(self) -> Iterator[Block]:
        records: list[Record] = []
        first = size = 0
        fault: DamagedInputError | None = None
        try:
            for record, byte, length in self._read():
                if byte is not None and records:
                    size = byte - first
                if size >= self._block_bytes:
                    yield Block(size, records)
                    records, size = [], 0
                if not records:
                    first = byte or 0
                records.append(record)
                size += length
        except DamagedInputError as error:  # the records before the damage form a block, in every scan
            fault = error
        if records:
            yield Block(size, records)
        if fault is not None:
            raise fault

    def _read(self) -> Iterator[tuple[Record, int | None, int]]:
        """Yield each selected record, the byte at which it begins (None if the format has no lines), and its characters.

        The number of its bytes is known only when the next record begins.
        """
        span, has_lines = self._span, load_reader(format_of(self._file)).cut_anywhere
        options = self._options
        if has_lines and span != WHOLE:
            if not self._is_compressed():
                options |= {"by_byte": True, "block": max(512, self._block_bytes // 4)}
            elif span.start:
                return
            else:
                span = WHOLE
        if self._file.stored is not None and span == WHOLE:
            options |= {"block": FIRST_BYTES // 4}
        self._reader = DocumentReader(self._file, span, **options)
        for record in self._reader:
            if not isinstance(record, Unselected):
                length = 1 + (record.size if isinstance(record, Document) else 0)
                yield record, record.byte if has_lines else None, length

    def _is_compressed(self) -> bool:
        try:
            return is_compressed(self._file)
        except OSError as error:
            raise InputError(f"{os.fspath(self._file)}: cannot be read: {error.strerror or error}") from None
