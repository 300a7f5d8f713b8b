"""Best-fit packing: whole documents in sequences of a fixed size, cut only where they are longer than one.

Concatenating and cutting breaks most sequences inside documents; packing them best fit first, longest first, breaks
none that fits and pads less than a percent (Ding et al. 2024, "Fewer Truncations Improve Language Modeling").
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .cursors import Chunk, Cursor, Drawn, Place, Reader
from .order import permutation
from .rows import Ends, Rows


def best_fit_decreasing(sizes: list[int], capacity: int) -> list[list[int]]:
    """Put items of ``sizes`` (1 to ``capacity``) into bins: largest first, each where it leaves the least room.

    Returns the items of each bin, ascending; bins come in the order of their first item.

    >>> best_fit_decreasing([3, 6, 5, 2], 8)
    [[0, 2], [1, 3]]
    """
    bins: list[list[int]] = []
    rooms: list[int] = []  # ascending: how much room some bin has
    by_room: dict[int, list[int]] = {}
    for item in sorted(range(len(sizes)), key=lambda item: (-sizes[item], item)):
        at = bisect_left(rooms, sizes[item])
        if at == len(rooms):
            number, room = len(bins), capacity
            bins.append([])
        else:
            room = rooms[at]
            number = by_room[room].pop()
            if not by_room[room]:
                del by_room[room], rooms[at]
        bins[number].append(item)
        if room := room - sizes[item]:
            if room not in by_room:
                by_room[room] = []
                insort(rooms, room)
            by_room[room].append(number)
    return sorted(sorted(items) for items in bins)


class Piece(NamedTuple):
    """Up to ``seq_len`` tokens of a document that ends at ``end``: tokens ``start`` to ``stop`` of a chunk."""

    start: int
    stop: int
    end: int


class BestFitLane:
    """A lane's sequences of ``seq_len`` tokens, window by window, with ``extra`` more where a long document was cut.

    ``key(place)`` orders a window's sequences, None keeps them in the order of their first documents. The cursor's
    ``document`` counts sequences of the window.
    """

    def __init__(
        self, reader: Reader, cursor: Cursor, *, seq_len: int, extra: int, key: Callable[[Place], int] | None
    ) -> None:
        self._reader = reader  # of whole windows
        self._seq_len = seq_len
        self._extra = extra
        self._key = key
        self._place: Place = (cursor[0], cursor[1], cursor[2])
        self._next = cursor[3]
        self._bins: list[list[Piece]] = []
        self._ids = np.empty(0)

    @property
    def cursor(self) -> Cursor:
        going = not self._bins or self._next < len(self._bins)
        return [*self._place, self._next, 0] if going else self._reader.cursor

    def draw(self, count: int) -> Drawn:
        while self._next >= len(self._bins):
            skipped = self._next if not self._bins else 0
            if (found := self._reader.take(None)) is None:
                return Drawn()
            self._place, chunk = found
            self._next = skipped
            self._pack(chunk)
        bins = self._bins[self._next : self._next + count]
        self._next += len(bins)
        width = self._seq_len + self._extra
        tokens = np.zeros((len(bins), width), self._ids.dtype)
        ends: list[NDArray[Any]] = []
        available = []
        for row, pieces in zip(tokens, bins, strict=True):
            filled, stops = 0, []
            for start, stop, end in pieces:
                # One that fills the sequence, cut from a longer document, has its next tokens for labels.
                stop = min(start + width, end) if stop - start == self._seq_len else stop
                row[filled : filled + stop - start] = self._ids[start:stop]
                filled += stop - start
                if stop == end:
                    stops.append(filled)
            available.append(filled)
            ends.append(np.asarray(stops, np.int64))
        return Drawn(len(bins), [Rows(slice(0, len(bins)), tokens, Ends.of(ends), available)])

    def _pack(self, chunk: Chunk) -> None:
        pieces = []
        stops = np.cumsum(chunk.lengths).tolist()
        for end, length in zip(stops, chunk.lengths.tolist(), strict=True):
            begin = end - length
            pieces += [Piece(at, min(at + self._seq_len, end), end) for at in range(begin, end, self._seq_len)]
        bins = best_fit_decreasing([piece.stop - piece.start for piece in pieces], self._seq_len)
        if self._key is not None:
            bins = [bins[index] for index in permutation(len(bins), self._key(self._place)).tolist()]
        self._bins = [[pieces[item] for item in items] for items in bins]
        self._ids = chunk.ids
