"""The token stream of documents that the user's functions change and whose lengths stay, so that all counts hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..batch.rows import RowBuffer
from .token_stream import Piece, Tokens, TokenStream

Mask = NDArray[np.uint8]
Change = Callable[[Tokens], tuple[Tokens, Mask | None]]


class MappedTokenStream(TokenStream):
    """A `TokenStream` whose documents are what ``change`` makes of them: as many tokens, and a loss mask or None.

    A document is read whole and changed where a row begins in it; the documents of each lane's last row are kept for the next.
    """

    masks = True

    def __init__(self, *arguments: Any, change: Change, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._change = change
        self._held: dict[int, dict[tuple[int, int], tuple[Tokens, Mask | None]]] = {}

    def fill(self, buffer: RowBuffer, pieces: Iterable[Piece], hints: NDArray[np.int64]) -> None:
        for piece in pieces:
            begin = piece.epoch * self.tokens_per_epoch
            rows = zip(piece.rows.tolist(), piece.places.tolist(), piece.lanes.tolist(), strict=True)
            for row, token, lane in rows:
                self._fill_row(buffer, row, begin + token, lane)
        self._continue_ahead()

    def documents(
        self, epoch: int, documents: NDArray[np.int64], most: int | None = None
    ) -> tuple[list[Tokens], list[Mask] | None]:
        found, masks = [], []
        for ids, mask in map(self._change, super().documents(epoch, documents)[0]):
            found.append(ids[:most])
            masks.append(np.ones(len(found[-1]), np.uint8) if mask is None else mask[:most])
        return found, masks

    def _fill_row(self, buffer: RowBuffer, row: int, start: int, lane: int) -> None:
        """Fill a row with the tokens from ``start`` of the endless stream."""
        before = self._held.get(lane, {})
        held = self._held[lane] = {}
        ids, mask = np.zeros(buffer.width, self.dtype), np.ones(buffer.width, np.uint8)
        ends: list[int] = []
        filled, stop = 0, self._before_end(start, buffer.width)
        while filled < stop:
            epoch, token = divmod(start + filled, self.tokens_per_epoch)
            first, begins = self._documents_at(epoch, token, stop - filled)
            keys = [(epoch, first + number) for number in range(len(begins) - 1)]
            held |= {key: before[key] for key in keys if key in before}
            new = [key for key in keys if key not in held]
            read = super().documents(epoch, np.array([place for _, place in new], np.int64))[0]
            held |= zip(new, map(self._change, read), strict=True)
            shift = filled - token  # from tokens of the epoch to tokens of the row
            for key, begin, end in zip(keys, begins[:-1].tolist(), begins[1:].tolist(), strict=True):
                low, filled = max(begin + shift, 0), min(end + shift, stop)
                changed, counted = held[key]
                ids[low:filled] = changed[low - begin - shift : filled - begin - shift]
                if counted is not None:
                    mask[low:filled] = counted[low - begin - shift : filled - begin - shift]
                if end + shift <= stop and low < filled:
                    ends.append(filled)
        buffer.put(row, ids, np.array(ends if len(buffer.places) else [], np.int64), mask)

    def _documents_at(self, epoch: int, token: int, most: int) -> tuple[int, NDArray[np.int64]]:
        """Return the place of the document that holds a token of an epoch, and where it and those behind it begin.

        They hold ``most`` tokens from that one on, or all that their window has; the last number is where the last one ends.
        """
        order = self._table(epoch).order
        number = int(np.searchsorted(order.starts, token, side="right")) - 1
        window, start, stop = (
            self._loaded.window((epoch, number)),
            int(order.starts[number]),
            int(order.starts[number + 1]),
        )
        first, last = window.cut(token - start, min(token + most, stop) - start)
        return int(order.document_starts[number]) + first, window.ends[first : last + 1] + start
