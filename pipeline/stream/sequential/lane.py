"""One lane of a sequential stream: its windows in memory, and where its next sequence begins."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..lanes import Cursor, WindowStart
from ..windows.row_buffer import RowBuffer
from ..windows.window import Window

REJECTED_BY = "rejected by "  # followed by a reason, the name of a count


class SequentialWindow(NamedTuple):
    """A lane's documents after the filters, from ``start`` to ``following`` (exclusive), or a piece of them.

    ``following`` is None if another piece of the window follows. ``before`` is how many units of the window precede the piece.
    ``cuts`` (int64) are the tokens at which sequences begin, and the end of the last sequence; None if sequences run on from one
    window into the next.
    """

    start: WindowStart
    following: WindowStart | None
    window: Window
    cuts: NDArray[np.int64] | None = None
    before: int = 0

    @property
    def units(self) -> int:
        """The number of sequences, or of tokens if ``cuts`` is None."""
        return len(self.window.tokens) if self.cuts is None else len(self.cuts) - 1

    def gives_rows(self, lag: int) -> bool:
        """Say whether the window adds to a row: it has a token, or with ``cuts`` a sequence that has a label (see `Lane`)."""
        if self.cuts is None or not lag:
            return self.units > 0
        return bool((np.diff(self.cuts) > lag).any())


class WindowReader(Protocol):
    """Makes the windows of lanes, in pieces. If ``shared``, all lanes of the rank share one run of windows."""

    shared: bool

    @property
    def counts(self) -> Counter[str]:
        """Numbers of documents read and rejected (in all and by reason), of bad records and of damaged files."""

    @property
    def bytes_read(self) -> int: ...

    def make(self, lane: int, start: WindowStart) -> Iterator[SequentialWindow] | None:
        """Return the pieces of the window of ``lane`` that begins at ``start``, or None after the last epoch."""

    def close(self) -> None:
        """Close files, and stop threads."""


class WholeSourceWindows:
    """Windows of a source that has fewer documents than there are lanes. Each lane reads all documents.

    ``make_reader(lane)`` makes the reader of a lane, which reads like a stream of one lane.
    """

    shared = False

    def __init__(self, make_reader: Callable[[int], WindowReader]) -> None:
        self._make_reader = make_reader
        self._readers: dict[int, WindowReader] = {}  # by lane

    @property
    def counts(self) -> Counter[str]:
        """The counts of all lanes together."""
        return sum((reader.counts for reader in self._readers.values()), Counter[str]())

    @property
    def bytes_read(self) -> int:
        """Raw bytes read so far."""
        return sum(reader.bytes_read for reader in self._readers.values())

    def make(self, lane: int, start: WindowStart) -> Iterator[SequentialWindow] | None:
        """Return the pieces of the window of ``lane`` that begins at ``start``."""
        if lane not in self._readers:
            self._readers[lane] = self._make_reader(lane)
        return self._readers[lane].make(0, start)

    def close(self) -> None:
        """Close the files."""
        for reader in self._readers.values():
            reader.close()


class Lane:
    """The sequences of one lane from a cursor on, ``stride`` tokens apart (None: the windows have ``cuts``).

    Sequences of at most ``lag`` tokens have no label and are skipped; if ``lag`` is 0, none is skipped. ``make`` makes the
    windows. ``on_empty()`` is called after each whole epoch without a row for the lane.
    """

    _unit: int

    def __init__(
        self,
        make: Callable[[WindowStart], Iterator[SequentialWindow] | None],
        cursor: Cursor,
        stride: int | None,
        lag: int,
        on_empty: Callable[[], object],
    ) -> None:
        epoch, cycle, round, self._unit = cursor
        self._make = make
        self._stride = stride
        self._lag = lag
        self._on_empty = on_empty
        self._windows = deque[SequentialWindow]()  # pieces, which all give rows; the next sequence begins in the first
        self._left = 0  # units of them from the next sequence on
        self._pieces: Iterator[SequentialWindow] = iter(())  # of the window at `_next` that are not made yet
        self._next: WindowStart = (epoch, cycle, round)
        self._before = 0  # units of the window at `_next` in the pieces that were made
        self.searched_from: int = epoch + any(cursor[1:])  # the lane has had no row from this epoch on

    @property
    def cursor(self) -> Cursor:
        """The position at which the next sequence begins."""
        if not self._windows:
            return [*self._next, self._before + self._unit]
        first = self._windows[0]
        return [*first.start, first.before + self._unit]

    def ready(self) -> bool:
        """Make the windows of the next sequence that has a label; return False at the end of a bounded stream."""
        if self._stride is not None:
            while self._left <= self._lag:
                if not self._load():
                    if self._windows:
                        self._advance(self._left)
                    return False
            return True
        while self._windows or self._load():
            begin, end = self._bounds()
            if not self._lag or end - begin > self._lag:
                return True
            self._advance(1)
        return False

    @property
    def tokens_left(self) -> int:
        """The number of tokens in memory that were in no row yet."""
        if self._stride is not None:
            return self._left
        begin = self._bounds()[0] if self._windows else 0
        return sum(len(window.window.tokens) for window in self._windows) - begin

    def gives_nothing_before(self, epoch: int) -> bool:
        """Read on, and say whether the lane has no further row before an epoch."""
        while not self._windows and self._next[0] < epoch and self._read():
            pass
        return not self._windows

    def fill(self, buffer: RowBuffer, row: int) -> int:
        """Fill a row with the next sequence; return how many tokens the sequence has."""
        if self._stride is None:
            begin, end = self._bounds()
            size = buffer.fill(row, [(self._windows[0].window, begin)], end - begin)
        else:
            size = buffer.fill(row, self._parts(), buffer.tokens.shape[1])
        self._advance(self._stride or 1)
        return size

    def document(self) -> tuple[NDArray[Any], NDArray[np.uint8] | None]:
        """Return the next sequence, a whole document, and its loss mask."""
        (begin, end), window = self._bounds(), self._windows[0].window
        self._advance(1)
        return window.tokens[begin:end], None if window.mask is None else window.mask[begin:end]

    def _bounds(self) -> list[int]:
        """Return the first token of the next sequence and the token after its last, in its window."""
        cuts = self._windows[0].cuts
        assert cuts is not None
        bounds: list[int] = cuts[self._unit : self._unit + 2].tolist()
        return bounds

    def _parts(self) -> Iterator[tuple[Window, int]]:
        """Yield where the next sequence begins, then the beginnings of later windows, which are made when needed."""
        yield self._windows[0].window, self._unit
        number = 1
        while number < len(self._windows) or self._load():
            yield self._windows[number].window, 0
            number += 1

    def _advance(self, units: int) -> None:
        self._unit += units
        self._left -= units
        while self._windows and self._unit >= self._windows[0].units:
            self._unit -= self._windows.popleft().units
        if not self._windows:
            self._unit = self._left = 0  # a stream may end inside a stride

    def _load(self) -> bool:
        """Make windows until one adds to a row; return False at the end of a bounded stream."""
        count = len(self._windows)
        while self._read():
            if len(self._windows) > count:
                return True
            if self._next[1:] == (0, 0) and not self._before and self._next[0] > self.searched_from:
                self._on_empty()
        return False

    def _read(self) -> bool:
        """Make the next piece, and keep it if it adds to a row; return False at the end of a bounded stream."""
        if (made := next(self._pieces, None)) is None:
            if (pieces := self._make(self._next)) is None:
                return False
            self._pieces = pieces
            made = next(pieces)
        made = made._replace(before=self._before)
        self._next, self._before = (made.following, 0) if made.following else (made.start, made.before + made.units)
        if not self._windows and self._unit >= made.units:  # a cursor begins in a later piece
            self._unit -= made.units
        elif made.gives_rows(self._lag):
            self._left += made.units - (0 if self._windows else self._unit)
            self._windows.append(made)
            self.searched_from = made.start[0] + 1
        return True
