"""Packed sequences of one source, by their sequence indices."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..batch.rows import RowBuffer, Rows
from ..order import Sequences, Step
from .core import Ordered
from .lookahead import Lookahead
from .token_stream import TokenStream


class PackedSequences(Ordered):
    """Sequences of ``width`` tokens, those of the labels included, where ``order`` says.

    ``epochs`` says after how many the last sequences are cut (None: nowhere), ``boundaries`` that rows say where documents end.
    """

    def __init__(
        self, stream: TokenStream, order: Sequences, *, width: int, epochs: int | None, boundaries: bool
    ) -> None:
        super().__init__(stream, order)
        self.width = width
        self.total = None if epochs is None else epochs * stream.tokens_per_epoch
        self.buffer = RowBuffer(width, stream.dtype, boundaries)
        self._hints = np.zeros(order.lanes, np.int64)  # the document where each lane was last
        self._ahead = Lookahead(order, stream.prepare, stream.window)

    def rows(self, step: Step) -> Iterator[Rows]:
        """Yield the tokens of a rank's rows of a step."""
        count, buffer = len(step), self.buffer
        if not count:
            return
        buffer.clear(count)
        available: list[int] | None = None
        for epoch, rows, tokens, lanes in self._ahead.pieces(step):
            self.stream.fill(buffer, rows, epoch, tokens, lanes, self._hints)
            if self.total is not None:
                left = np.minimum(self.total - epoch * self.stream.tokens_per_epoch - tokens, self.width)
                if int(left.min(initial=self.width)) < self.width:
                    available = available or [self.width] * count
                    for row, have in zip(rows.tolist(), left.clip(0).tolist(), strict=True):
                        available[row] = have
        yield buffer.rows(slice(0, count), available)
