"""A remote object as a file: what will be read is said ahead, fetched in large ranges by threads, and dropped when read."""

from __future__ import annotations

import io
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from .input_file import StoredObject

RANGE_BYTES = 8 << 20  # of one request, at least, where what is wanted is contiguous
_AHEAD_BYTES = 64 << 20  # a larger group of ranges is not fetched before it is read
_TAIL_SHARE, _TAIL_BYTES = 128, 64 << 10  # of a span, for the end of its last line
_MOST_AT_ONCE = 4

ByteRange = tuple[int, int]
Result = TypeVar("Result")


class RangeReader(Protocol):
    """One remote object: ``fetch`` returns exactly the bytes from ``start`` to ``stop``, by any thread."""

    @property
    def stored(self) -> StoredObject: ...

    def fetch(self, start: int, stop: int) -> bytes: ...

    def close(self) -> None: ...


class RemoteFile(io.RawIOBase):
    """A read-only file over the ranges of a remote object.

    `expect` names the ranges that will be read, in groups that are read one after the other. A group is fetched when its
    first byte is read, and the next one when half of it was read; then the one before it is dropped. So memory holds two
    groups. Bytes outside are fetched one request for each ``read``.

    The first range has ``first_bytes``, or as many as are wanted, and the next ones grow to ``RANGE_BYTES``.
    """

    def __init__(self, source: RangeReader, first_bytes: int = RANGE_BYTES) -> None:
        super().__init__()
        self._source = source
        self.first_bytes = first_bytes
        self.stored = source.stored
        self.name, self.size = self.stored.url, self.stored.size
        self._at = 0
        self._groups: deque[_Group] = deque()
        self._threads = threading.Semaphore(_MOST_AT_ONCE)
        self._whole = b""

    def hold(self, whole: bytes) -> None:
        """Read from all the bytes of the object, which came before, and fetch no more."""
        self._whole = whole

    def expect(self, groups: Iterable[Sequence[ByteRange]]) -> None:
        """Say what will be read from now on; each group's ranges may be read in any order."""
        self._groups = deque(_Group(sorted(ranges)) for ranges in groups)

    def expect_span(self, start: int, stop: int | None) -> None:
        """Say that the bytes of a span are read in order, and perhaps somewhat beyond: to the end of a line.

        A span also asks for the byte before it, which tells whether a line begins there.
        """
        begin = max(start - 1, 0)
        end = self.size if stop is None else stop + min(_TAIL_BYTES, (stop - begin) // _TAIL_SHARE)
        self.expect([[piece] for piece in cut_growing(begin, min(end, self.size), self.first_bytes)])

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
        pieces = []
        while self._at < stop:
            piece = self._read_once(stop)
            self._at += len(piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._groups.clear()
            self._source.close()
        super().close()

    def _read_once(self, stop: int) -> bytes:
        """Return bytes from here on, at least one, from one range."""
        if self._whole:
            return self._whole[self._at : stop]
        place = self._find()
        if place is None:
            return self._source.fetch(self._at, min([stop, *(start for start in self._starts() if start > self._at)]))
        number, index = place
        for _ in range(number):
            self._groups.popleft()
        group = self._groups[0]
        group.begin(self._start)
        start, end = group.ranges[index]
        data = group.futures[index].result()
        piece = data[self._at - start : min(stop, end) - start]
        group.read += len(piece)
        if len(self._groups) > 1 and 2 * group.read >= group.size and self._groups[1].size <= _AHEAD_BYTES:
            self._groups[1].begin(self._start)
        return piece

    def _find(self) -> tuple[int, int] | None:
        """Return the group and the range that hold the next byte."""
        for number, group in enumerate(self._groups):
            for index, (start, end) in enumerate(group.ranges):
                if start <= self._at < end:
                    return number, index
        return None

    def _starts(self) -> list[int]:
        return [start for group in self._groups for start, _ in group.ranges]

    def _start(self, start: int, stop: int) -> Future[bytes]:

        def fetch() -> bytes:
            with self._threads:
                return b"" if self.closed else self._source.fetch(start, stop)

        return in_thread(fetch, "shardwright-input")


def in_thread(function: Callable[[], Result], name: str) -> Future[Result]:
    """Call a function in a thread of its own, which never keeps the process from ending."""
    return in_threads([function], 1, name)[0]


def in_threads(functions: Sequence[Callable[[], Result]], most: int, name: str) -> list[Future[Result]]:
    """Call functions in order, ``most`` at a time, in threads which never keep the process from ending.

    A future can be cancelled until its function is called.
    """
    futures: list[Future[Result]] = [Future() for _ in functions]
    waiting = deque(zip(functions, futures, strict=True))

    def run() -> None:
        while True:
            try:
                function, future = waiting.popleft()
            except IndexError:
                return
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)

    for _ in range(min(most, len(functions))):
        threading.Thread(target=run, name=name, daemon=True).start()
    return futures


class _Group:
    """Ranges that are fetched together, and how many of their bytes were read."""

    def __init__(self, ranges: list[ByteRange]) -> None:
        self.ranges = ranges
        self.size = sum(stop - start for start, stop in ranges)
        self.read = 0
        self.futures: list[Future[bytes]] = []

    def begin(self, start: Any) -> None:
        if not self.futures:
            self.futures = [start(*each) for each in self.ranges]


def cut_evenly(start: int, stop: int, least: int = RANGE_BYTES) -> list[ByteRange]:
    """Cut a range into ranges of at least ``least`` bytes, and less than twice as many, if it has as many.

    >>> cut_evenly(0, 25, 10)
    [(0, 12), (12, 25)]
    """
    count = max(1, (stop - start) // least)
    places = [start + (stop - start) * number // count for number in range(count + 1)]
    return [(a, b) for a, b in itertools.pairwise(places) if a < b]


def cut_growing(start: int, stop: int, first: int) -> list[ByteRange]:
    """Cut a range into one of ``first`` bytes, others of four times as many each, then those of `cut_evenly`.

    >>> cut_growing(0, 17 << 20, 1 << 20) == [(0, 1 << 20), (1 << 20, 5 << 20), (5 << 20, 17 << 20)]
    True
    """
    found = []
    while first < RANGE_BYTES and start + first < stop:
        found.append((start, start + first))
        start, first = start + first, 4 * first
    return [*found, *cut_evenly(start, stop)]


def joined(ranges: Iterable[ByteRange], share: float = 0.005) -> list[ByteRange]:
    """Join neighbouring ranges, also over holes of at most ``share`` of what is joined.

    >>> joined([(0, 1000), (1002, 2000), (2500, 2600)])
    [(0, 2000), (2500, 2600)]
    """
    found: list[ByteRange] = []
    holes = 0  # of the last one
    for start, stop in sorted(ranges):
        hole = start - found[-1][1] if found else 0
        if found and holes + hole <= share * (stop - found[-1][0]):
            holes += hole
            found[-1] = found[-1][0], stop
        else:
            holes = 0
            found.append((start, stop))
    return found
