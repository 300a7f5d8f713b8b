"""A remote object as a file: what will be read is said ahead, fetched in large ranges by threads, and dropped when read."""

from __future__ import annotations

import io
import itertools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from .input_file import StoredObject

RANGE_BYTES = 8 << 20  # of one request, at least, where what is wanted is contiguous
_AHEAD_BYTES = 64 << 20  # a larger group of ranges is not fetched before it is read
_TAIL_SHARE, _TAIL_BYTES = 128, 64 << 10  # of a span, for the end of its last line
_SMALL_TAIL_BYTES = 16 << 10  # at least, of a span that is read by many small requests
_MOST_AT_ONCE = 4

ByteRange = tuple[int, int]
Fetch = Callable[[int, int], "Future[bytes]"]
Result = TypeVar("Result")


class RangeReader(Protocol):
    """One remote object: ``fetch`` returns exactly the bytes from ``start`` to ``stop``, by any thread.

    ``key`` tells it from every other in this process, as its url with the query does.
    """

    @property
    def stored(self) -> StoredObject: ...

    @property
    def key(self) -> Hashable: ...

    def fetch(self, start: int, stop: int) -> bytes: ...

    def close(self) -> None: ...


class RemoteFile(io.RawIOBase):
    """A read-only file over the ranges of a remote object.

    `expect` names what will be read, in groups that are read one after the other. The ranges of a group are read side by
    side, each from its beginning on, and fetched in pieces: the next one when half of a piece was read. The next group
    begins when half of a group was read. So memory holds two pieces of each range of two groups. Bytes outside are fetched
    one request for each ``read``.

    The first piece of a range in order has ``first_bytes``, or as many as are wanted, and the next ones grow to
    ``RANGE_BYTES``. Where it has fewer, it and the first group are read to their ends before more is fetched: a stream begins
    with little of many files.
    """

    def __init__(self, source: RangeReader, first_bytes: int = RANGE_BYTES) -> None:
        super().__init__()
        self._source = source
        self.first_bytes = first_bytes
        self._begins_with_little = first_bytes < RANGE_BYTES
        self.stored, self.key = source.stored, source.key
        self.name, self.size = self.stored.url, self.stored.size
        self._at = 0
        self._groups: deque[_Group] = deque()
        self._threads = threading.Semaphore(_MOST_AT_ONCE)
        self._whole = b""

    def hold(self, whole: bytes) -> None:
        """Read from all the bytes of the object, which came before, and fetch no more."""
        self._whole = whole

    def expect(self, groups: Iterable[Iterable[Sequence[ByteRange]]]) -> None:
        """Say what will be read from now on: groups of ranges, each in pieces that are neighbours."""
        self._groups = deque(map(_Group, groups))

    def expect_span(self, start: int, stop: int | None) -> None:
        """Say that the bytes of a span are read in order, and perhaps somewhat beyond: to the end of a line.

        A span also asks for the byte before it, which tells whether a line begins there.
        """
        begin = max(start - 1, 0)
        least = _SMALL_TAIL_BYTES if self._begins_with_little else 0
        end = self.size if stop is None else stop + min(_TAIL_BYTES, max(least, (stop - begin) // _TAIL_SHARE))
        if begin < min(end, self.size):
            self.expect([[cut_growing(begin, min(end, self.size), self.first_bytes)]])

    @property
    def held_bytes(self) -> int:
        """How many bytes are held or being fetched."""
        return sum(each.size for group in self._groups for run in group.runs for each in run.pieces if each.future)

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
        """Return bytes from here on, at least one, from one piece."""
        if self._whole:
            return self._whole[self._at : stop]
        place = self._find()
        if place is None:
            return self._source.fetch(self._at, min([stop, *(start for start in self._starts() if start > self._at)]))
        number, run, piece = place
        for _ in range(number):
            self._groups.popleft()
            self._begins_with_little = False
        group = self._groups[0]
        group.begin(self._fetch)
        data = run.read(piece, self._at, stop, self._fetch)
        group.read += len(data)
        is_due = 2 * group.read >= group.size and not self._begins_with_little
        if is_due and len(self._groups) > 1 and self._groups[1].size <= _AHEAD_BYTES:
            self._groups[1].begin(self._fetch)
        return data

    def _find(self) -> tuple[int, _Run, _Piece] | None:
        """Return the number of the group, the range and the piece that hold the next byte."""
        for number, group in enumerate(self._groups):
            for run in group.runs:
                if (piece := run.find(self._at)) is not None:
                    return number, run, piece
        return None

    def _starts(self) -> list[int]:
        return [piece.start for group in self._groups for run in group.runs for piece in run.pieces]

    def _fetch(self, start: int, stop: int) -> Future[bytes]:

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


@dataclass(slots=True, eq=False)
class _Piece:
    """Bytes that one request fetches; ``left`` of them are not read yet."""

    start: int
    stop: int
    left: int
    future: Future[bytes] | None = None

    @property
    def size(self) -> int:
        return self.stop - self.start

    def begin(self, fetch: Fetch) -> Future[bytes]:
        if self.future is None:
            self.future = fetch(self.start, self.stop)
        return self.future


class _Run:
    """A range in pieces. Each is fetched when it is read, or when half of the one before it was, and then dropped."""

    def __init__(self, pieces: Sequence[ByteRange]) -> None:
        self.pieces = [_Piece(start, stop, stop - start) for start, stop in pieces]  # that are not read yet
        self.size = pieces[-1][1] - pieces[0][0]
        # Whether it begins with a piece smaller than others, behind which nothing is fetched ahead.
        self.grows = len(pieces) > 1 and self.pieces[0].size < RANGE_BYTES
        self._first = self._last_read = self.pieces[0]

    def begin(self, fetch: Fetch) -> None:
        self._first.begin(fetch)

    def find(self, at: int) -> _Piece | None:
        """Return the piece that holds a byte."""
        return next((piece for piece in self.pieces if piece.start <= at < piece.stop), None)

    def read(self, piece: _Piece, at: int, stop: int, fetch: Fetch) -> bytes:
        """Return the bytes of a piece from ``at`` to ``stop`` or its end."""
        data = piece.begin(fetch).result()[at - piece.start : stop - piece.start]
        piece.left -= len(data)
        if 2 * piece.left <= piece.size and not (self.grows and piece is self._first):
            self._begin_after(piece, fetch)
        if piece is not self._last_read:
            self._last_read = piece
            # What is hardly begun belongs to a column that is read more slowly than the others of the range.
            self.pieces = [each for each in self.pieces if each.stop > at or each.left > each.size // 100]
        return data

    def _begin_after(self, piece: _Piece, fetch: Fetch) -> None:
        following = self.pieces.index(piece) + 1
        if following < len(self.pieces):
            self.pieces[following].begin(fetch)


class _Group:
    """Ranges that are read side by side, and how many of their bytes were read."""

    def __init__(self, ranges: Iterable[Sequence[ByteRange]]) -> None:
        self.runs = [_Run(pieces) for pieces in ranges]
        self.size = sum(run.size for run in self.runs)
        self.read = 0

    def begin(self, fetch: Fetch) -> None:
        for run in self.runs:
            run.begin(fetch)


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
