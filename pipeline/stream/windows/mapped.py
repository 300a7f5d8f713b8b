"""Packed rows of documents that the user's functions change, and whose lengths stay, so that all counts hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..batch.rows import RowBuffer
from .lanes import LaneWindows
from .rows import Int, TokenRows

Tokens = NDArray[Any]
Mask = NDArray[np.uint8]
Change = Callable[[Tokens], tuple[Tokens, Mask | None]]


class MappedTokenRows(TokenRows):
    """Rows of what ``change`` makes of documents: as many tokens, and a loss mask or None.

    A document is changed whole, where a row begins in it; the documents of each lane's last row are kept for the next.
    """

    masks = True

    def __init__(self, lanes: LaneWindows, *, tokens: int | None, change: Change) -> None:
        super().__init__(lanes, tokens=tokens)
        self._change = change
        self._kept: dict[int, dict[int, tuple[Tokens, Mask | None]]] = {}  # by lane, by position of the document

    def _fill(self, buffer: RowBuffer, rows: list[int], indices: Int, positions: Int) -> None:
        self.lanes.places(indices, positions)  # loads their windows side by side
        numbers = (indices % self.lanes.sequences.lanes).tolist()
        for row, lane, position in zip(rows, numbers, positions.tolist(), strict=True):
            self._fill_row(buffer, row, lane, position)

    def _fill_row(self, buffer: RowBuffer, row: int, lane: int, position: int) -> None:
        assert buffer.masks is not None
        tokens, mask, ends = buffer.tokens[row], buffer.masks[row], []
        tokens[:], mask[:] = 0, 1
        before, kept = self._kept.get(lane, {}), {}
        done, stop = 0, self._existing(position)
        while done < stop:
            window, at = self.lanes.place(position + done)
            number = int(window.ends.searchsorted(at, side="right")) - 1
            begin, end = window.ends[number : number + 2].tolist()
            key = position + done - at + begin
            kept[key] = before[key] if key in before else self._change(window.document(number))
            part = slice(at - begin, min(end - begin, at - begin + stop - done))
            here = slice(done, done + part.stop - part.start)
            tokens[here] = kept[key][0][part]
            if (counted := kept[key][1]) is not None:
                mask[here] = counted[part]
            done = here.stop
            if part.stop == end - begin:
                ends.append(done)
        self._kept[lane] = kept
        if buffer.ends is not None:
            buffer.ends[row] = np.array(ends, np.int64)
