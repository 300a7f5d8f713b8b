"""A source of an indexed stream: where rows begin, in which windows, and the windows that lanes need now and soon."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..order import Sequences, Shuffle
from .row_buffer import WindowOffset
from .window import Key, Window, WindowCache

_AHEAD = 8  # a lane's next window is requested when an eighth of its window is left, in time to load it


Int = NDArray[np.int64]


class _Span(NamedTuple):
    """The window that a lane is in, from position ``begin`` to ``stop`` (exclusive).

    Up to position ``request_at``, the lane needs the windows ``keys``. From there on, other windows must be requested.
    """

    window: Window
    begin: int
    stop: int
    request_at: int
    keys: list[Key]


class IndexedSource:
    """Finds the rows of the source ``name``. Positions count units of its endless stream: tokens, or whole ``documents``.

    ``windows`` hold the documents in their ``order``, and ``sequences`` say where rows begin. A row has ``width`` units, or fewer
    at the end of its pass. A lane's next window is loaded before the lane reaches it. But at the end of an epoch all lanes wait
    once, since the windows of two epochs would double the memory.
    """

    orders_epochs = True  # whether each epoch has the documents in an order of its own

    def __init__(
        self,
        name: str,
        windows: WindowCache,
        order: Shuffle,
        sequences: Sequences,
        *,
        width: int = 1,
        documents: bool = False,
    ) -> None:
        self.name = name
        self.windows = windows
        self.listing = windows.maker.listing  # or a function that caches lists, which the reader of all sources sets
        self.sequences = sequences
        self.units = order.documents if documents else order.tokens
        self._order = order
        self.width = width
        self._documents = documents
        self.pass_units = None if sequences.epochs is None else sequences.epochs * self.units
        self._ahead = max(width, self.units // order.windows // _AHEAD)
        nothing = _Span(Window(np.zeros(0), np.zeros(1, np.int64)), 0, 0, 0, [])
        self._spans = [nothing] * sequences.lanes

    def positions(self, indices: Int) -> Int:
        """Return the positions at which sequence indices begin."""
        order, begins = self.sequences, np.empty(len(indices), np.int64)
        if not len(indices):
            return begins
        for epoch in range(order.epoch(int(indices.min())), order.epoch(int(indices.max())) + 1):
            first = order.first(epoch)
            inside = (indices >= first) & (indices < order.first(epoch + 1))
            begins[inside] = order.positions(epoch, indices[inside] - first) + epoch * self.units
        return begins

    def locations(self, indices: Int, positions: Int) -> list[WindowOffset]:
        """Return the windows and units at which the rows of sequence indices begin, given their positions."""
        spans = self._spans
        rows = list(zip((indices % self.sequences.lanes).tolist(), positions.tolist(), strict=True))
        moved = {lane for lane, position in rows if not spans[lane].begin <= position < spans[lane].request_at}
        if moved:
            self.prepare([row for row in rows if row[0] in moved])
        return [
            (spans[lane].window, position - spans[lane].begin)
            if spans[lane].begin <= position < spans[lane].stop
            else self.location(position)
            for lane, position in rows
        ]

    def request(self, indices: Int, positions: Int) -> None:
        """Request the windows in which the rows of sequence indices begin, unless their lanes are in these windows already."""
        for lane, position in zip((indices % self.sequences.lanes).tolist(), positions.tolist(), strict=True):
            if not self._spans[lane].begin <= position < self._spans[lane].stop:
                self.windows.request([self.window_of(position)[:2]])

    def prepare(self, rows: Iterable[tuple[int, int]]) -> None:
        """Request the windows of rows, given as (lane, position). Forget windows that no lane needs any more."""
        by_lane: dict[int, list[int]] = {}
        for lane, position in rows:
            by_lane.setdefault(lane, []).append(position)
        later: list[Key] = []
        for lane, positions in by_lane.items():
            high = max(positions)
            last = self._last_of_row(high)
            ahead = max(last, min(high + self._ahead, self._last_of_lane(lane, high)))
            needed = self._keys_of_rows(positions)
            keys = needed + [key for key in self.keys(last + 1, ahead) if key not in needed]
            self.windows.request(needed)
            later += keys[len(needed) :]
            _, _, begin, stop = self.window_of(high)
            request_at = stop if ahead >= stop or ahead < high + self._ahead else stop - self._ahead
            self._spans[lane] = self._spans[lane]._replace(begin=begin, stop=stop, request_at=request_at, keys=keys)
        self.windows.request(later)
        self.windows.keep({key for span in self._spans for key in span.keys})
        for lane in by_lane:
            span = self._spans[lane]
            self._spans[lane] = span._replace(window=self.location(span.begin)[0])

    def location(self, position: int) -> WindowOffset:
        """Return the window that holds a position, and the unit of the position in it."""
        epoch, number, begin, _ = self.window_of(position)
        return self.windows.get((epoch, number)), position - begin

    def units_of_row(self, position: int) -> int:
        """Return how many units a row from a position on has: fewer than ``width`` at the end of a pass."""
        units = self.pass_units
        return self.width if units is None else min(self.width, units - position % units)

    def _last_of_row(self, position: int) -> int:
        """Return the last position of the row that begins at ``position``."""
        return position + self.units_of_row(position) - 1

    def _last_of_lane(self, lane: int, position: int) -> int:
        """Return the last position that a lane (a sequence index modulo the lanes) needs in the epoch of ``position``."""
        order, epoch = self.sequences, position // self.units
        number = (lane - order.first(epoch)) % order.lanes
        return self._last_of_row(epoch * self.units + order.begin_of_lane(epoch, number + 1) - order.stride)

    def _keys_of_rows(self, positions: list[int]) -> list[Key]:
        """Return the windows of a lane's rows, found for each epoch apart, since other lanes' rows are between two epochs."""
        by_epoch: dict[int, list[int]] = {}
        for position in positions:
            by_epoch.setdefault(position // self.units, []).append(position)
        keys = [self.keys(min(some), self._last_of_row(max(some))) for some in by_epoch.values()]
        return list(dict.fromkeys(chain.from_iterable(keys)))

    def keys(self, first: int, last: int) -> list[Key]:
        """Return the windows that hold the positions ``first`` to ``last``."""
        keys = []
        while first <= last:
            epoch, number, _, first = self.window_of(first)
            keys.append((epoch, number))
        return keys

    def documents_of(self, position: int, most: int | None) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the documents in a row that begins at ``position``, of up to ``most`` tokens, without reading tokens.

        Each is its shard, its number there, its first token and the token after its last in the row, and its length.
        """
        left = 1 if self._documents else min(self.units_of_row(position), most or self.width)
        while left > 0:
            epoch, window, begin, _ = self.window_of(position)
            listing, at = self.listing(epoch, window), position - begin
            ends = listing.ends
            for number in range(at if self._documents else int(ends.searchsorted(at, "right")) - 1, len(ends) - 1):
                first, last = int(ends[number]), int(ends[number + 1])
                where = int(listing.shards[number]), int(listing.numbers[number])
                if self._documents:
                    yield *where, 0, min(last - first, most or last), last - first
                    return
                if count := min(last - at, left):
                    yield *where, at - first, at - first + count, last - first
                at, position, left = at + count, position + count, left - count
                if not left:
                    return

    def sequences_with(
        self, extent: int, shard: int, document: int, held: int, stop: int
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield the sequences below index ``stop`` whose first ``held`` units contain a part of a document of an extent.

        Each is a tuple of its index, the position at which it begins, and the document's position and number of tokens.
        """
        before = -(-(held - 1) // self.units)  # a row of so many epochs ago can reach into an epoch
        for epoch in count() if self.orders_epochs else range(1):
            if self.sequences.first(max(0, epoch - before)) >= stop:
                return
            *key, begin = self._window_with(epoch, extent)
            listing = self.listing(*key)
            for at in np.flatnonzero((listing.shards == shard) & (listing.numbers == document)).tolist():
                length = int(listing.ends[at + 1] - listing.ends[at])
                units, first = (1, begin + at) if self._documents else (length, begin + int(listing.ends[at]))
                if not units or first // self.units != epoch:
                    continue
                for index, position, of_document in self._containing(first, first + units, held, stop):
                    if index < stop:
                        yield index, position, of_document, length

    def _containing(self, begin: int, end: int, held: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the sequences whose first ``held`` units contain one of the units ``begin`` to ``end`` (exclusive).

        Each is a tuple of its index, the position at which it begins, and the position at which the units begin. Sequences at
        random offsets are searched before index ``stop``.
        """
        for index, position in self.sequences.containing(begin, end, held):
            yield index, position, begin

    def _window_with(self, epoch: int, extent: int) -> tuple[int, int, int]:
        """Return the (first) epoch and the number of the window that holds an extent in an epoch, and its first position."""
        order = self._order.epoch(epoch)
        block = int(self._order.blocks.bounds.searchsorted(extent, side="right")) - 1
        number = int(order.cuts.searchsorted(int(np.argmax(order.blocks == block)), side="right")) - 1
        if (epochs := self.windows.maker.epochs) > 1:
            epoch -= epoch % epochs
        starts = order.document_starts if self._documents else order.starts
        return epoch, number, epoch * self.units + int(starts[number])

    def window_of(self, position: int) -> tuple[int, int, int, int]:
        """Return the (first) epoch and the number of the window that holds a position, and its first and end position."""
        if (epochs := self.windows.maker.epochs) > 1:
            epoch = position // (self.units * epochs) * epochs
            return epoch, 0, epoch * self.units, (epoch + epochs) * self.units
        epoch, offset = divmod(position, self.units)
        order = self._order.epoch(epoch)
        starts = order.document_starts if self._documents else order.starts
        number = int(starts.searchsorted(offset, side="right")) - 1
        begin = epoch * self.units
        return epoch, number, begin + int(starts[number]), begin + int(starts[number + 1])
