"""A remote object as a file: what will be read is stated, fetched ahead in large ranges by threads, and dropped when read."""

from __future__ import annotations

import io
import itertools
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ...objects.requests import REQUESTS
from .input_file import StoredObject

RANGE_BYTES = 8 << 20  # of one request, at least, where what is wanted is contiguous
_TAIL_SHARE, _TAIL_BYTES, _LEAST_TAIL = 128, 64 << 10, 16 << 10  # of a span, for the end of its last line

ByteRange = tuple[int, int]


class RangeReader(Protocol):
    """One remote object: ``fetch`` returns exactly the bytes from ``start`` to ``stop``, by any thread.

    ``key`` tells it from every other in this process, as its url with the query does.
    """

    @property
    def stored(self) -> StoredObject: ...

    @property
    def key(self) -> Hashable: ...

    def fetch(self, start: int, stop: int) -> bytes: ...


@dataclass(slots=True, eq=False)
class _Piece:
    """Bytes that one request fetches, of a group; ``left`` of them are not read yet."""

    start: int
    stop: int
    group: int
    left: int
    future: Future[bytes] | None = None


class RemoteFile(io.RawIOBase):
    """A read-only file over the ranges of a remote object.

    `expect` states what will be read, in pieces. Where half of one was read, the next one is fetched, and more of them up to
    a bound, which begins with ``first_bytes`` and doubles with each piece: a stream begins with little of many files. A piece
    is dropped when it was read, or one of a later group. Bytes outside of pieces are fetched by a request for each ``read``.
    """

    def __init__(self, source: RangeReader, first_bytes: int = RANGE_BYTES) -> None:
        super().__init__()
        self._source = source
        self.first_bytes = first_bytes
        self.stored, self.key = source.stored, source.key
        self.name, self.size = self.stored.url, self.stored.size
        self._at = 0
        self._pieces: list[_Piece] = []
        self._ahead_bytes = first_bytes
        self._last: _Piece | None = None
        self._whole = b""

    def hold(self, whole: bytes) -> None:
        """Read from all the bytes of the object, which are here, and fetch no more."""
        self._whole = whole

    def expect(self, groups: Iterable[Iterable[ByteRange]]) -> None:
        """State what will be read from now on: groups of pieces, one group after the other."""
        self._pieces = [
            _Piece(start, stop, number, stop - start) for number, group in enumerate(groups) for start, stop in group
        ]

    def expect_span(self, start: int, stop: int | None) -> None:
        """State that the bytes of a span are read in order, and perhaps somewhat beyond: to the end of a line.

        A span also asks for the byte before it, which tells whether a line begins there.
        """
        begin = max(start - 1, 0)
        end = self.size
        if stop is not None:
            least = _LEAST_TAIL if self.first_bytes < RANGE_BYTES else 0
            end = min(end, stop + min(_TAIL_BYTES, max(least, (stop - begin) // _TAIL_SHARE)))
        if begin < end:
            self.expect([piece] for piece in cut_growing(begin, end, self.first_bytes))

    @property
    def held_bytes(self) -> int:
        """How many bytes are held or being fetched."""
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
            part = self._read_once(stop)
            self._at += len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readall(self) -> bytes:
        return self.read()

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
        """Return bytes from here on, at least one, from one piece."""
        if self._whole:
            return self._whole[self._at : stop]
        number = next((n for n, each in enumerate(self._pieces) if each.start <= self._at < each.stop), None)
        if number is None:
            end = min([stop, *(piece.start for piece in self._pieces if piece.start > self._at)])
            return self._source.fetch(self._at, end)
        piece = self._pieces[number]
        future = self._begin(number)
        data = future.result()[self._at - piece.start : stop - piece.start]
        piece.left -= len(data)
        self._begin(number)
        if not piece.left or self._pieces[0].group < piece.group:
            self._pieces = [each for each in self._pieces if each.group >= piece.group and each.left > 0]
        return data

    def _begin(self, number: int) -> Future[bytes]:
        """Fetch a piece, and once half of it was read the next one, and others as far as the bound allows."""
        held, read = 0, self._pieces[number]
        is_begun = 2 * read.left > read.stop - read.start
        for at, piece in enumerate(self._pieces):
            if at > number and (is_begun or (at > number + 1 and held >= self._ahead_bytes)):
                break
            if piece.future is None and at >= number:
                piece.future = REQUESTS.submit(partial(self._source.fetch, piece.start, piece.stop))
            held += piece.stop - piece.start if piece.future is not None else 0
        if self._last is not read:
            self._last = read
            self._ahead_bytes = min(2 * self._ahead_bytes, 2 * RANGE_BYTES)
        assert read.future is not None
        return read.future


def cut_evenly(start: int, stop: int, least: int = RANGE_BYTES) -> list[ByteRange]:
    """Cut a range into ranges of at least ``least`` bytes, and less than twice as many, if it has as many.

    >>> cut_evenly(0, 25, 10)
    [(0, 12), (12, 25)]
    """
    count = max(1, (stop - start) // least)
    places = [start + (stop - start) * number // count for number in range(count + 1)]
    return [(a, b) for a, b in itertools.pairwise(places) if a < b]


def cut_growing(start: int, stop: int, first: int) -> list[ByteRange]:
    """Cut a range into one of ``first`` bytes, others of twice as many each, then those of `cut_evenly`.

    The last one takes what would be less than half of another.

    >>> cut_growing(0, 17 << 20, 2 << 20) == [(0, 2 << 20), (2 << 20, 6 << 20), (6 << 20, 17 << 20)]
    True
    """
    found = []
    while first < RANGE_BYTES and start + first + first // 2 < stop:
        found.append((start, start + first))
        start, first = start + first, 2 * first
    return [*found, *cut_evenly(start, stop)]


def joined(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """Join neighbouring ranges.

    >>> joined([(0, 1000), (1000, 2000), (2500, 2600)])
    [(0, 2000), (2500, 2600)]
    """
    found: list[ByteRange] = []
    for start, stop in sorted(ranges):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found


def parts_of(ranges: Sequence[ByteRange], first: int) -> list[ByteRange]:
    """Return joined ranges in pieces, the first one of each of ``first`` bytes."""
    return [piece for start, stop in joined(ranges) for piece in cut_growing(start, stop, first)]
