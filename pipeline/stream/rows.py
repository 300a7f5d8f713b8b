"""Rows of a batch, between the core that reads them and the collator that makes ids and labels of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Ends(NamedTuple):
    """Where documents end in rows: those of row ``r``, ascending, from 1 to its width, are ``places[slice(*spans[r])]``.

    ``places`` and ``spans`` (``[rows, 2]``) are int64.

    >>> Ends.of([np.array([2, 5]), np.array([4])]).spans.tolist()
    [[0, 2], [2, 3]]
    """

    places: NDArray[np.int64]
    spans: NDArray[np.int64]

    @classmethod
    def of(cls, rows: list[NDArray[np.int64]]) -> Ends:
        """Join the places of each row."""
        stops = np.cumsum([0, *map(len, rows)])
        return cls(np.concatenate([np.zeros(0, np.int64), *rows]), np.stack([stops[:-1], stops[1:]], axis=1))


class Rows(NamedTuple):
    """Neighbouring rows of a batch, valid until the next call.

    ``at``: their place in the batch; ``tokens``: ``[rows, width]``, as they are stored; ``ends``: None unless boundaries
    were asked for; ``available``: tokens before the end of a bounded stream, or None where none is short.
    """

    at: slice
    tokens: NDArray[Any]
    ends: Ends | None
    available: list[int] | None


class RowBuffer:
    """Rows of ``width`` tokens to be filled, in any order, again and again; ``with_ends`` also where documents end."""

    def __init__(self, width: int, dtype: np.dtype[Any], with_ends: bool) -> None:
        self.tokens: NDArray[Any] = np.empty((0, width), dtype)
        self.bytes = self.tokens.view(np.uint8)
        self.places = np.empty(0, np.int64)
        self.spans = np.empty((0, 2), np.int64)
        self.all_rows = np.arange(0)
        # How many places are taken, how many rows lie near the end of a window, and those rows.
        self.notes = np.zeros(2, np.int64)
        self._with_ends = with_ends

    def clear(self, count: int) -> None:
        """Make room for ``count`` rows, none of them filled."""
        if len(self.tokens) < count:
            width = self.tokens.shape[1]
            self.tokens = np.empty((count, width), self.tokens.dtype)
            self.bytes = self.tokens.view(np.uint8)
            self.places = np.empty(count * width if self._with_ends else 0, np.int64)
            self.spans = np.empty((count, 2), np.int64)
            self.all_rows = np.arange(count)
            self.notes = np.zeros(2 + count, np.int64)
        self.notes[0] = 0

    def add_ends(self, row: int, places: NDArray[np.int64]) -> None:
        """Say where documents end in a row that was filled otherwise."""
        begin = int(self.notes[0])
        stop = begin + len(places)
        self.places[begin:stop] = places
        self.spans[row] = begin, stop
        self.notes[0] = stop

    def rows(self, at: slice, available: list[int] | None = None) -> Rows:
        """Return the rows, which stand at ``at`` in the batch, once they are filled."""
        count = at.stop - at.start
        ends = Ends(self.places, self.spans[:count]) if self._with_ends else None
        return Rows(at, self.tokens[:count], ends, available)
