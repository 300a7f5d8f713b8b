"""A remote object as a file. Threads fetch the ranges that the reader announces ahead; bytes are dropped after reading."""

from __future__ import annotations

import functools
import io
import os
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO
from weakref import finalize

from ...objects.http import server_of
from ...objects.remote_object import NoRangesError, RemoteObject
from ...objects.request_threads import submit
from ...objects.retries import retrying
from ...objects.urls import is_http
from .input_file import StoredObject

FIRST_BYTES = 256 << 10  # the first request of streams, which begin with a little of many files
RANGE_BYTES = 8 << 20  # the largest request
_TAIL_SHARE, _TAIL_BYTES = 16, 64 << 10  # 1/16 of a span, at most 64 KiB, is fetched after it: the end of its last line
_MOST_DOWNLOADS = 256  # temporary files that a process keeps

ByteRange = tuple[int, int]


class ObjectRanges:
    """Ranges of a listed object, for any thread.

    If the object is read ``whole``, or its server has no ranges, the process downloads all bytes once.
    """

    def __init__(self, stored: StoredObject, remote: RemoteObject, *, whole: bool = False) -> None:
        self.stored = stored
        self.key = stored, remote.url  # urls with different queries are different objects
        self.is_whole = whole or (is_http(remote.url) and server_of(remote.url).ranges is False)
        self._remote = remote

    def fetch(self, start: int, stop: int) -> bytes:
        """Return exactly the bytes from ``start`` to ``stop``."""
        if not self.is_whole:
            try:
                return self._remote.read(start, stop - start)
            except NoRangesError:
                self.is_whole = True
        return _download(os.getpid(), self.key).read(self._remote, self.stored.size, start, stop)


class _Download:
    """All bytes of an object in a temporary file without a name. The first read downloads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None

    def read(self, remote: RemoteObject, size: int, start: int, stop: int) -> bytes:
        with self._lock:
            if self._file is None:
                self._file = retrying(partial(self._fetch, remote, size), remote.url, "read it", remote.requests)
                finalize(self, self._file.close)
        return os.pread(self._file.fileno(), stop - start, start)

    def _fetch(self, remote: RemoteObject, size: int) -> BinaryIO:
        file = tempfile.TemporaryFile(prefix="shardwright-")  # noqa: SIM115 - it ends with this object
        try:
            for piece in remote.pieces(0, size, whole=True):
                file.write(piece)
            file.flush()
        except BaseException:
            file.close()
            raise
        return file


@functools.lru_cache(maxsize=_MOST_DOWNLOADS)
def _download(process: int, key: object) -> _Download:
    """Return the download of an object. A forked process has its own: its parent may hold the lock of the other."""
    return _Download()


@dataclass(slots=True, eq=False)
class _PendingRange:
    """A part of a group of ranges that one request fetches. ``left`` of its bytes are not read yet."""

    start: int
    stop: int
    group: int
    left: int
    future: Future[bytes] | None = None


class RemoteFile(io.RawIOBase):
    """A read-only file over the ranges of a remote object.

    `expect` announces what will be read. When half of a piece was read, the next piece is fetched. Pieces grow from
    ``first_bytes``, as a stream begins with a little of many files. A piece is dropped when all of it was read, or when a
    piece of a later group is read. A ``read`` of bytes that were not announced is a request.
    """

    def __init__(self, ranges: ObjectRanges, first_bytes: int = RANGE_BYTES) -> None:
        super().__init__()
        self.first_bytes = first_bytes
        self.key = ranges.key
        self.name, self.size = ranges.stored.url, ranges.stored.size
        self._ranges = ranges
        self._at = 0
        self._pieces: list[_PendingRange] = []

    def expect(self, groups: Iterable[Iterable[ByteRange]]) -> None:
        """Announce what will be read from now on: groups of ranges, one group after the other."""
        if self._ranges.is_whole:
            return
        self._pieces = [
            _PendingRange(start, stop, number, stop - start)
            for number, group in enumerate(groups)
            for joined in join_ranges(group)
            for start, stop in cut_range(*joined, RANGE_BYTES if number else self.first_bytes)
        ]

    def expect_span(self, start: int, stop: int | None) -> None:
        """Announce that the bytes of a span are read in order, and the rest of the line at its end.

        The byte before the span is read, too: it shows whether a line begins at the span's start.
        """
        begin, end = max(start - 1, 0), self.size
        if stop is not None:
            end = min(end, stop + min(_TAIL_BYTES, (stop - begin) // _TAIL_SHARE))
        self.expect([[(begin, end)]])

    def begin(self) -> None:
        """Start to fetch the first piece that will be read."""
        for piece in self._pieces[:1]:
            self._begin(piece)

    @property
    def bytes_in_memory(self) -> int:
        """The number of bytes that are in memory or being fetched."""
        return sum(piece.stop - piece.start for piece in self._pieces if piece.future is not None)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        stop = self.size if size is None or size < 0 else min(self.size, self._at + size)
        parts = []
        while self._at < stop:
            parts.append(self._read_once(stop))
            self._at += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        for piece in self._pieces:
            if piece.future is not None:
                piece.future.cancel()
        self._pieces.clear()
        super().close()

    def _read_once(self, stop: int) -> bytes:
        """Return at least one byte from the current position, all from one piece."""
        number = next((n for n, p in enumerate(self._pieces) if p.start <= self._at < p.stop), None)
        if number is None:
            return self._ranges.fetch(self._at, min([stop, *(p.start for p in self._pieces if p.start > self._at)]))
        piece = self._pieces[number]
        data = self._begin(piece).result()[self._at - piece.start : stop - piece.start]
        piece.left -= len(data)
        if 2 * piece.left <= piece.stop - piece.start:
            for next_piece in self._pieces[number + 1 : number + 2]:
                self._begin(next_piece)
        if not piece.left or self._pieces[0].group < piece.group:
            self._pieces = [p for p in self._pieces if p.group >= piece.group and p.left]
        return data

    def _begin(self, piece: _PendingRange) -> Future[bytes]:
        piece.future = piece.future or submit(partial(self._ranges.fetch, piece.start, piece.stop))
        return piece.future


def cut_range(start: int, stop: int, first: int) -> list[ByteRange]:
    """Cut a range into ranges: the first has ``first`` bytes, each next one twice as many, up to `RANGE_BYTES`.

    If the rest is less than half of the next range, the last range includes it.

    >>> cut_range(0, 17 << 20, 2 << 20) == [(0, 2 << 20), (2 << 20, 6 << 20), (6 << 20, 17 << 20)]
    True
    """
    ranges = []
    while 2 * (stop - start) >= 3 * first:
        ranges.append((start, start + first))
        start, first = start + first, min(2 * first, RANGE_BYTES)
    return [*ranges, (start, stop)] if start < stop else ranges


def join_ranges(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """Join ranges that touch each other.

    >>> join_ranges([(0, 1000), (1000, 2000), (2500, 2600)])
    [(0, 2000), (2500, 2600)]
    """
    joined: list[ByteRange] = []
    for start, stop in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], stop
        else:
            joined.append((start, stop))
    return joined
