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

    ``at``: their place in the batch; ``tokens``: ``[rows, width]``, as they are stored, or None where they stand in the
    batch already; ``ends``: None unless boundaries were asked for; ``available``: tokens before the end of a bounded
    stream, or None where none is short.
    """

    at: slice
    tokens: NDArray[Any] | None
    ends: Ends | None
    available: list[int] | None


class RowBuffer:
    """Rows of ``width`` tokens to be filled, in any order, again and again; ``with_ends`` also where documents end.

    ``bytes`` and ``late_bytes`` are what is written: the rows themselves, or as `aim` says.
    """

    def __init__(self, width: int, dtype: np.dtype[Any], with_ends: bool) -> None:
        self.width = width
        self.lag = 0
        self._tokens: NDArray[Any] = np.empty((0, width), dtype)
        self._late = self._tokens
        self._aimed = False
        self.bytes = self.late_bytes = self._tokens.view(np.uint8)
        self.places = np.empty(0, np.int64)
        self.spans = np.empty((0, 2), np.int64)
        self.all_rows = np.arange(0)
        # How many places are taken, how many rows lie near the end of a window, and those rows.
        self.notes = np.zeros(2, np.int64)
        self._with_ends = with_ends

    def aim(self, ids: NDArray[Any], labels: NDArray[Any], lag: int) -> None:
        """Have rows written straight to ids, and from token ``lag`` on to labels, which saves copying them there."""
        self._tokens, self._late, self._aimed = ids, labels, True
        self.bytes, self.late_bytes = ids.view(np.uint8), labels.view(np.uint8)
        self.width, self.lag = ids.shape[1] + lag, lag

    def clear(self, count: int) -> None:
        """Make room for ``count`` rows, none of them filled."""
        if len(self._tokens) < count:
            self._tokens = np.empty((count, self.width), self._tokens.dtype)
            self.bytes = self._tokens.view(np.uint8)
        if len(self.spans) < count:
            self.spans = np.empty((count, 2), np.int64)
            self.all_rows = np.arange(count)
            self.notes = np.zeros(2 + count, np.int64)
        if self._with_ends and len(self.places) < count * self.width:
            self.places = np.empty(count * self.width, np.int64)
        self.notes[0] = 0

    def put(self, row: int, tokens: NDArray[Any], ends: NDArray[np.int64]) -> None:
        """Fill a row with tokens that were read otherwise, and say where documents end in it."""
        self._tokens[row] = tokens[: self._tokens.shape[1]]
        if self._aimed:
            self._late[row] = tokens[self.lag :]
        begin = int(self.notes[0])
        stop = begin + len(ends)
        self.places[begin:stop] = ends
        self.spans[row] = begin, stop
        self.notes[0] = stop

    def rows(self, at: slice, available: list[int] | None = None) -> Rows:
        """Return rows, which stand at ``at`` in the batch as in the buffer, once they are filled."""
        ends = Ends(self.places, self.spans[at]) if self._with_ends else None
        return Rows(at, None if self._aimed else self._tokens[at], ends, available)
