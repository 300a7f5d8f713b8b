"""Packed sequences of one source, by their sequence indices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..batch.rows import Out, RowBuffer, Rows
from ..order import Sequences, Step
from .core import IndexedReader
from .lookahead import Lookahead
from .token_stream import Piece, TokenStream


class PackedSequences(IndexedReader):
    """Sequences of ``width`` tokens, those of the labels included, where ``order`` says.

    ``epochs`` says after how many the last sequences are cut (None: nowhere), ``boundaries`` that rows say where documents end.
    """

    def __init__(
        self, stream: TokenStream, order: Sequences, *, width: int, epochs: int | None, boundaries: bool
    ) -> None:
        super().__init__(stream, order)
        self.width = width
        self.total = None if epochs is None else epochs * stream.tokens_per_epoch
        self.buffer = RowBuffer(width, stream.dtype, boundaries, stream.masks)
        self._hints = np.zeros(order.lanes, np.int64)  # the document where each lane was last
        self._ahead = Lookahead(order, stream.prepare, stream.window)

    def read(self, step: Step, out: Out | None = None) -> Rows:
        """Return the tokens of a rank's rows of a step."""
        pieces = self._ahead.pieces(step)
        found = self.buffer.rows(sum([len(piece.rows) for piece in pieces]), out)
        self.stream.fill(self.buffer, pieces, self._hints)
        return found if self.total is None else found._replace(valid=self._valid(pieces, found.filled))

    def _valid(self, pieces: list[Piece], count: int) -> NDArray[np.int64] | None:
        """Return how many tokens of each row lie before the end of the stream, None where all do."""
        assert self.total is not None
        valid = np.full(count, self.width)
        for piece in pieces:
            left = self.total - piece.epoch * self.stream.tokens_per_epoch - piece.places
            valid[piece.rows] = np.minimum(left, self.width).clip(0)
        return valid if (valid < self.width).any() else None
