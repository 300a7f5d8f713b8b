"""Packed rows, cut out of the windows of lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..batch.row_buffer import RowBuffer
from .indexed_lanes import IndexedLanes, WindowOffset

Int = NDArray[np.int64]


def fill_row(locations: Iterable[WindowOffset], buffer: RowBuffer, row: int, size: int) -> int:
    """Fill a row with up to ``size`` tokens from the first location on, and from the others where the windows before end.

    Behind them are zeros. Returns how many tokens there are.
    """
    tokens, ends, done = buffer.tokens[row], [np.zeros(0, np.int64)], 0
    for window, at in locations if size else ():
        part = window.tokens[at : at + size - done]
        stop = done + len(part)
        tokens[done:stop] = part
        if buffer.masks is not None:
            buffer.masks[row, done:stop] = 1 if window.mask is None else window.mask[at : at + len(part)]
        if buffer.ends is not None:
            ends.append(window.ends_inside(at, at + len(part)) + done)
        done = stop
        if done == size:
            break
    tokens[done:] = 0
    if buffer.masks is not None:
        buffer.masks[row, done:] = 1
    if buffer.ends is not None:
        buffer.ends[row] = np.concatenate(ends)
    return done


class TokenRows:
    """Rows of tokens, as wide as ``lanes`` says. Behind the first ``tokens`` of the endless stream (None: no end) are zeros."""

    masks = False  # whether rows have loss masks

    def __init__(self, lanes: IndexedLanes, *, tokens: int | None) -> None:
        self.lanes = lanes
        self.width = lanes.width
        self._tokens = tokens

    def fill(self, buffer: RowBuffer, rows: list[int], indices: Int, positions: Int) -> Int | None:
        """Fill rows of a buffer with the sequences of these indices, which begin at these positions.

        Returns how many tokens of each exist (int64), None where all do.
        """
        self._fill(buffer, rows, indices, positions)
        self.lanes.windows.bytes_read += len(rows) * self.width * buffer.tokens.itemsize
        if self._tokens is None:
            return None
        existing = np.minimum(self._tokens - positions, self.width).clip(0)
        return existing if (existing < self.width).any() else None

    def _fill(self, buffer: RowBuffer, rows: list[int], indices: Int, positions: Int) -> None:
        width, tokens, ends = self.width, buffer.tokens, buffer.ends
        locations = self.lanes.locations(indices, positions)
        for row, (window, at), position in zip(rows, locations, positions.tolist(), strict=True):
            if at + width <= len(window.tokens):
                tokens[row] = window.tokens[at : at + width]
                if ends is not None:
                    ends[row] = window.ends_inside(at, at + width)
            else:
                fill_row(self._from(position), buffer, row, self.existing(position))

    def _from(self, position: int) -> Iterator[WindowOffset]:
        """Yield where a position lies, and the beginnings of the windows behind."""
        while True:
            window, at = self.lanes.location(position)
            yield window, at
            position += len(window.tokens) - at

    def existing(self, position: int) -> int:
        """Return how many of a row's tokens lie before the end of the stream."""
        return self.width if self._tokens is None else max(0, min(self.width, self._tokens - position))
