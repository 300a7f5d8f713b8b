"""Packed rows of one source, cut out of the windows of its lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..batch.rows import RowBuffer
from .lanes import LaneWindows

Int = NDArray[np.int64]


class TokenRows:
    """Rows of tokens, as wide as ``lanes`` says. Behind the first ``tokens`` of the endless stream (None: no end) are zeros."""

    masks = False  # whether rows have loss masks

    def __init__(self, lanes: LaneWindows, *, tokens: int | None) -> None:
        self.lanes = lanes
        self.width = lanes.width
        self._tokens = tokens

    @property
    def bytes_read(self) -> int:
        """Bytes of the tokens of the rows so far."""
        return self.lanes.windows.bytes_read

    def fill(self, buffer: RowBuffer, rows: list[int], indices: Int) -> Int | None:
        """Fill rows of a buffer with the sequences of these indices.

        Returns how many tokens of each exist (int64), None where all do.
        """
        positions = self.lanes.positions(indices)
        self._fill(buffer, rows, indices, positions)
        self.lanes.windows.bytes_read += len(rows) * self.width * buffer.tokens.itemsize
        if self._tokens is None:
            return None
        existing = np.minimum(self._tokens - positions, self.width).clip(0)
        return existing if (existing < self.width).any() else None

    def _fill(self, buffer: RowBuffer, rows: list[int], indices: Int, positions: Int) -> None:
        width, tokens, ends = self.width, buffer.tokens, buffer.ends
        places = self.lanes.places(indices, positions)
        for row, (window, at), position in zip(rows, places, positions.tolist(), strict=True):
            if at + width <= len(window.tokens):
                tokens[row] = window.tokens[at : at + width]
                if ends is not None:
                    ends[row] = window.ends_inside(at, at + width)
            else:
                found = self._across(position, tokens[row], with_ends=ends is not None)
                if ends is not None:
                    ends[row] = found

    def _across(self, position: int, out: NDArray[Any], *, with_ends: bool) -> Int:
        """Fill a row that goes on in other windows; return where documents end in it."""
        ends, done, stop = [np.zeros(0, np.int64)], 0, self._existing(position)
        out[stop:] = 0
        while done < stop:
            window, at = self.lanes.place(position + done)
            part = window.tokens[at : at + stop - done]
            out[done : done + len(part)] = part
            if with_ends:
                ends.append(window.ends_inside(at, at + len(part)) + done)
            done += len(part)
        return np.concatenate(ends)

    def _existing(self, position: int) -> int:
        """Return how many of a row's tokens lie before the end of the stream."""
        return self.width if self._tokens is None else max(0, min(self.width, self._tokens - position))
