"""The endless shuffled token stream of one source, with random access.

``TokenStream.fill`` fills all rows of a batch in one compiled call, where each lies in a window that is loaded, and leaves the
others to ``read``, which copies any range of tokens across document, window and epoch borders. ``prepare`` says what will be
read next: windows are asked for and loaded ahead in threads, and given back once nothing needs them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..batch.rows import RowBuffer
from ..order import Epoch, Sequences, Shuffle
from .windows import gather as kernels
from .windows.block_pool import BlockPool, Read
from .windows.shuffle_window import ShuffleWindow
from .windows.threads import Threads

Tokens = NDArray[Any]
_LateRow = tuple[int, Tokens, list[NDArray[np.int64]]]
Key = tuple[int, int]  # epoch, window

_ASIDE = 8  # windows that stay in memory although nothing that was prepared needs them
_START_AHEAD = 8  # a stream begins to ask for blocks this part of a window ahead of its lanes
_COPIES_AHEAD, _REMOTE_AHEAD = 8, 4  # windows are loaded this part of a window ahead where bytes take memory; from afar


class Piece(NamedTuple):
    """Rows of a batch that lie in one epoch: their numbers, tokens (or documents) of the epoch before each, their lanes.

    A lane is named by its sequence indices modulo the number of lanes, which is the same in every epoch. All are int64.
    """

    epoch: int
    rows: NDArray[np.int64]
    places: NDArray[np.int64]
    lanes: NDArray[np.int64]


class _EpochTable(NamedTuple):
    """What compiled loops need of an epoch: its order, and the table of its windows."""

    order: Epoch
    windows: NDArray[np.int64]


class TokenStream:
    """Random access to the endless stream of one source's tokens and documents.

    ``order`` says which document comes when, ``pool`` brings windows. ``sequences`` are what will be read, of ``width`` units:
    tokens, or whole ``documents``. ``aside``: how many windows stay that nothing prepared.
    """

    masks = False  # whether rows have loss masks

    def __init__(
        self,
        order: Shuffle,
        pool: BlockPool,
        dtype: np.dtype[Any],
        sequences: Sequences | None = None,
        *,
        width: int = 1,
        documents: bool = False,
        aside: int = _ASIDE,
    ) -> None:
        self.order = order
        self.dtype = dtype
        self.tokens_per_epoch = order.tokens
        self.documents_per_epoch = order.documents
        self.bytes_read = 0
        self._pool = pool
        self._sequences = sequences
        self._width = width
        self._by_document = documents
        self._aside = aside
        self._windows: OrderedDict[Key, ShuffleWindow] = OrderedDict()
        self._needed: set[Key] = set()
        self._epochs: dict[int, _EpochTable] = {}
        self._pending: dict[Key, Future[ShuffleWindow]] = {}
        self._asked: dict[Key, Future[None]] = {}
        self._near: list[Key] = []  # windows that are loaded ahead, once rows that are read first have been read
        self._behind: list[Key] = []  # windows whose blocks are asked for once rows that are read first have been read
        self._partial: dict[Key, Future[ShuffleWindow]] = {}  # windows without their blocks, which are then brought
        self._completing: dict[Key, Future[None]] = {}
        self._served = 0  # rows that were prepared so far
        self._threads = Threads(far=pool.coming is not None)

    @property
    def window(self) -> int:
        """How many tokens, or documents, a window holds; where an epoch is one window, all of an epoch."""
        return (self.documents_per_epoch if self._by_document else self.tokens_per_epoch) // self.order.windows

    # What comes next

    def prepare(self, pieces: Iterable[Piece]) -> None:
        """Have the windows of these rows, which are read next, loaded soon; give back others.

        Their blocks, and those of the windows behind them, are asked for once some rows have been read: these come first.
        """
        needed: dict[Key, None] = {}
        asked: dict[Key, int] = {}
        for piece in pieces:
            if not len(piece.places):
                continue
            starts = self._starts(piece.epoch)
            last = np.minimum(piece.places + self._width, starts[-1]) - 1
            windows = np.searchsorted(starts, np.concatenate([piece.places, last]), side="right") - 1
            needed |= dict.fromkeys((piece.epoch, window) for window in dict.fromkeys(windows.tolist()))
            self._served += len(piece.places)
            if self._sequences is not None and self._pool.waits:
                asked |= self._ahead(piece.epoch, piece.places, piece.lanes)
        near = {key for key, far in asked.items() if not far}
        self._needed = {*needed, *near}
        gone = [self._give_back(key) for key in [key for key in self._windows if key not in self._needed]]
        for key in [key for key in self._pending if key not in self._needed]:
            self._pending.pop(key).cancel()
        wanted = needed | dict.fromkeys(asked)
        for key in [key for key in self._asked if key not in wanted]:
            self._asked.pop(key).cancel()
        if not self._pool.waits:
            return
        new = [key for key in wanted if key in self._needed and key not in self._windows and key not in self._pending]
        if self._pool.coming is not None:
            self._near = [key for key in new if key not in needed]
            new = [key for key in new if key in needed]
            self._pool.announce(new)
        loads: dict[Key, Callable[[], ShuffleWindow]] = {}
        for key in new:
            whole = key not in needed or not self._pool.source.rows_first
            loads[key] = partial(self._pool.load, *key, asked=key in self._asked, whole=whole)
        started = self._threads.start(loads, gone)
        self._pending |= started
        if self._pool.source.rows_first:
            self._partial |= {key: future for key, future in started.items() if key in needed}
        # Where blocks come behind their windows, those of the windows that are loaded come by themselves.
        loaded = self._needed if self._pool.coming is not None else ()
        self._behind = [key for key in wanted if key not in self._asked and key not in loaded]

    def _ask_behind(self) -> None:
        if self._pool.coming is not None:
            self._pool.coming.start()
        if not (self._near or self._behind or self._partial):
            return
        near = [key for key in self._near if key not in self._windows and key not in self._pending]
        ahead: dict[Key, Future[ShuffleWindow]] = {key: Future() for key in near}
        for future in ahead.values():
            future.set_running_or_notify_cancel()  # nobody cancels it
        self._pending |= ahead
        self._threads.start({key: partial(self._pool.load_ahead, *key, future) for key, future in ahead.items()})
        self._asked |= self._threads.start({key: partial(self._pool.ask, *key) for key in self._behind})
        partly = {key: partial(self._pool.complete, *key, window) for key, window in self._partial.items()}
        self._completing |= self._threads.start(partly)
        self._near, self._behind, self._partial = [], [], {}

    def _ahead(self, epoch: int, places: NDArray[np.int64], lanes: NDArray[np.int64]) -> dict[Key, bool]:
        """Return the windows that lanes come to behind these places, and whether they are only to be asked for yet."""
        assert self._sequences is not None
        order, lane_count = self._sequences, self._sequences.lanes
        starts, bounds = self._starts(epoch), self._bounds(epoch)
        at = np.full(lane_count, -1)
        at[lanes] = places  # they ascend in each lane, and the last one stays
        lanes = np.flatnonzero(at >= 0)
        own = (lanes - order.first(epoch)) % lane_count  # the lane of the epoch that these sequence indices are of
        at, end = at[lanes], np.minimum(bounds[own + 1], starts[-1])
        window = int(starts[-1]) // max(1, len(starts) - 1 if len(starts) > 2 else 8 * lane_count)
        loaded = max(1, window // (_COPIES_AHEAD if self._pool.coming is None else _REMOTE_AHEAD))
        # At the start of a stream all lanes need blocks at once, so windows behind the first are asked for as lanes come on.
        come = self._served // len(lanes) * order.stride
        asked = min(window, window // _START_AHEAD + 2 * come)
        found: dict[Key, bool] = {}
        for distance, far in ((loaded, False), (max(loaded, asked), True)):
            first, last = (
                np.searchsorted(starts, x, side="right") - 1 for x in (at, np.minimum(at + distance, end - 1))
            )
            going = np.flatnonzero(last > first)
            for low, high in {*zip(first[going].tolist(), last[going].tolist(), strict=True)}:
                for number in range(low + 1, high + 1):
                    found.setdefault((epoch, number), far)
        over = at + window >= end
        if over.any():
            found |= self._after_border(epoch + 1, lanes[over], (at + window - end)[over], window) | found
        return found

    def _after_border(
        self, epoch: int, lanes: NDArray[np.int64], beyond: NDArray[np.int64], window: int
    ) -> dict[Key, bool]:
        """Return the windows of the next epoch that lanes come to: all of them change windows there, so they load early."""
        assert self._sequences is not None
        starts, bounds = self._starts(epoch), self._bounds(epoch)
        own = (lanes - self._sequences.first(epoch)) % self._sequences.lanes
        at = np.minimum(bounds[own], starts[-1] - 1)
        last = np.minimum(at + np.minimum(beyond, window), starts[-1] - 1)
        numbers = [np.searchsorted(starts, x, side="right") - 1 for x in (at, last)]
        far = not self._pool.source.copies and beyond * 2 < window
        found: dict[Key, bool] = {}
        for low, high, only_asked in {
            *zip(*(each.tolist() for each in (*numbers, far * np.ones(len(at), bool))), strict=True)
        }:
            for number in range(low, high + 1):
                found[epoch, number] = found.get((epoch, number), True) and bool(only_asked)
        return found

    # Reading

    def read(self, start: int, out: Tokens, ends: list[NDArray[np.int64]] | None = None) -> None:
        """Fill ``out`` (1-D, stored dtype) with the tokens from ``start`` of the endless stream.

        ``ends``, if given, is extended by arrays of where documents end in it, ascending, from 1 to its length.
        """
        self.bytes_read += out.nbytes
        absent: list[Read] = []
        self._read(start, out, ends, absent)
        self._pool.read_all(absent)

    def _read(self, start: int, out: Tokens, ends: list[NDArray[np.int64]] | None, absent: list[Read]) -> None:
        """Do what `read` does, but for blocks that are not in memory, which are added to ``absent``."""
        filled = 0
        while filled < len(out):
            epoch, token = divmod(start + filled, self.tokens_per_epoch)
            filled += self._copy(epoch, token, out, filled, ends, absent)

    def fill(self, buffer: RowBuffer, pieces: Iterable[Piece], hints: NDArray[np.int64]) -> None:
        """Fill the rows of pieces in a buffer, each from its token on.

        ``hints[lanes]`` is where to look first for their documents; what was found is left there.
        """
        for piece in pieces:
            self._fill_piece(buffer, piece, hints)

    def _fill_piece(self, buffer: RowBuffer, piece: Piece, hints: NDArray[np.int64]) -> None:
        epoch, rows, tokens, lanes = piece
        done, count, item = 0, len(rows), self.dtype.itemsize
        self.bytes_read += count * buffer.width * item
        absent: list[Read] = []
        late: list[_LateRow] = []
        while done < count:
            table = self._table(epoch)
            done = kernels.gather(
                done, tokens, lanes, hints, table.order.starts, table.windows, item, rows,
                buffer.width, buffer.bytes, buffer.lag, buffer.late_bytes, buffer.places, buffer.spans, buffer.notes,
            )  # fmt: skip
            if done == count:
                break
            token = int(tokens[done])
            key = epoch, int(np.searchsorted(table.order.starts, token, side="right")) - 1
            if (coming := self._completing.pop(key, None)) is not None:
                coming.result()
            elif key in self._windows:  # the row reaches beyond it, or into a document that is not in memory
                out = np.empty(buffer.width, self.dtype)
                ends: list[NDArray[np.int64]] | None = [] if len(buffer.places) else None
                self._read(epoch * self.tokens_per_epoch + token, out, ends, absent)
                late.append((int(rows[done]), out, ends or []))
                done += 1
            else:
                self._window(key)
        self._pool.read_all(absent)
        for row, out, found in late:
            buffer.put(row, out, np.concatenate([buffer.places[:0], *found]))
        self._ask_behind()

    def joined(
        self, epoch: int, documents: NDArray[np.int64], most: int | None = None
    ) -> tuple[Tokens, NDArray[np.int64]]:
        """Return the tokens of documents of an epoch one after the other, read-only, and how many each has, at most ``most``.

        They are given by their places in its shuffled order.
        """
        found, windows = self._look_up(epoch, documents)
        self._ask_behind()
        lengths = found[2] if most is None else np.minimum(found[2], most)
        ends = np.cumsum(lengths)
        out = np.empty(int(ends[-1]) if len(ends) else 0, self.dtype)
        self.bytes_read += out.nbytes
        done = 0
        absent: list[Read] = []
        while (done := kernels.join(done, found, windows, self.dtype.itemsize, out.view(np.uint8), ends)) < len(
            documents
        ):
            window = self._window((epoch, int(found[0, done])))
            place, end = int(found[1, done]), int(ends[done])
            block, begin = place >> kernels.PLACE_BITS, place & ((1 << kernels.PLACE_BITS) - 1)
            absent.append((window, block, begin, out[end - int(lengths[done]) : end]))
            done += 1
        self._pool.read_all(absent)
        out.flags.writeable = False
        return out, lengths

    def documents(
        self, epoch: int, documents: NDArray[np.int64], most: int | None = None
    ) -> tuple[list[Tokens], list[NDArray[np.uint8]] | None]:
        """Return each of what `joined` joins, and their loss masks where there are some."""
        tokens, lengths = self.joined(epoch, documents, most)
        ends = np.cumsum(lengths).tolist()
        return [tokens[begin:end] for begin, end in zip([0, *ends], ends, strict=False)], None

    def lengths(self, epoch: int, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens documents of an epoch have, given by their places in its shuffled order."""
        found: NDArray[np.int64] = self._look_up(epoch, documents)[0][2]
        return found

    def _look_up(self, epoch: int, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return window, place and tokens of each document (``[3, documents]``), and the table that they lie in."""
        found, done = np.empty((3, len(documents)), np.int64), 0
        held, numbers = self._needed, documents[:0]  # numbers: the window of each, once one must be loaded
        try:
            while True:
                table = self._table(epoch)
                done = kernels.look_up(done, documents, table.order.document_starts, table.windows, found)
                if done == len(documents):
                    return found, table.windows
                if self._needed is held:  # no window of theirs goes while others load, not one loaded long before
                    numbers = np.searchsorted(table.order.document_starts, documents, side="right") - 1
                    self._needed = held | {(epoch, number) for number in np.unique(numbers).tolist()}
                self._window((epoch, int(numbers[done])), whole=True)
        finally:
            self._needed = held

    def _copy(
        self, epoch: int, token: int, out: Tokens, at: int, found: list[NDArray[np.int64]] | None, absent: list[Read]
    ) -> int:
        """Copy as many tokens into ``out[at:]`` as the window at this place can give; return how many."""
        order = self._table(epoch).order
        number = int(np.searchsorted(order.starts, token, side="right")) - 1
        window, inside = self._window((epoch, number)), token - int(order.starts[number])
        stop = min(inside + len(out) - at, int(order.starts[number + 1] - order.starts[number]))
        first, last = window.cut(inside, stop)
        for j in range(first, last):
            begin, end = max(inside, int(window.ends[j])), min(stop, int(window.ends[j + 1]))
            place = int(window.places[j])
            block = place >> kernels.PLACE_BITS
            skipped = (place & ((1 << kernels.PLACE_BITS) - 1)) + begin - int(window.ends[j])
            target = out[at + begin - inside : at + end - inside]
            if window.blocks[block, 0]:
                kernels.copy_tokens(int(window.blocks[block, 0]) + skipped * out.itemsize, target.view(np.uint8))
            else:
                absent.append((window, block, skipped, target))
        count = stop - inside
        if found is not None:
            stops = np.unique(window.ends[first + 1 : last + 1]) - inside  # documents of no tokens end where others do
            found.append(stops[stops <= count] + at)
        return count

    # Windows

    def _starts(self, epoch: int) -> NDArray[np.int64]:
        order = self.order.epoch(epoch)
        return order.document_starts if self._by_document else order.starts

    def _bounds(self, epoch: int) -> NDArray[np.int64]:
        assert self._sequences is not None
        return self._sequences.lane_bounds(epoch)

    def _table(self, epoch: int) -> _EpochTable:
        found = self._epochs.get(epoch)
        if found is None:
            windows = np.zeros((self.order.windows, kernels.WINDOW_COLUMNS), np.int64)
            found = self._epochs[epoch] = _EpochTable(self.order.epoch(epoch), windows)
        return found

    def _window(self, key: Key, *, whole: bool = False) -> ShuffleWindow:
        """Return a window from memory, from a thread, or loaded now: its blocks are asked for if it is read ``whole``."""
        window = self._windows.get(key)
        if window is not None:
            self._windows.move_to_end(key)
            return window
        ahead = self._pending.pop(key, None)
        if whole and ahead is None:
            self._pool.ask(*key)
        completed = key in self._partial or key in self._completing  # by a thread, from what this one loads
        if ahead is not None and not ahead.done():
            self._pool.hurry(*key)
        window = self._pool.load(*key) if ahead is None or (not completed and ahead.cancel()) else ahead.result()
        aside = [other for other in self._windows if other not in self._needed]
        for other in aside[: max(0, len(aside) + 1 - self._aside)]:
            self._give_back(other)
        self._windows[key] = window
        self._table(key[0]).windows[key[1]] = window.addresses
        return window

    def _give_back(self, key: Key) -> ShuffleWindow:
        window = self._windows.pop(key)
        self._pool.release(*key)
        self._completing.pop(key, None)
        self._epochs[key[0]].windows[key[1]] = 0
        if not any(epoch == key[0] for epoch, _ in self._windows):
            del self._epochs[key[0]]
        return window

    def close(self) -> None:
        """Stop threads and give back files."""
        self._threads.close()
        self._pool.close()
