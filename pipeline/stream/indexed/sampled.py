"""Sequences from random places, with replacement: sequence index ``i`` begins at a token drawn by a hash of the seed and ``i``.

The corpus is taken as one ring of tokens in the order of its files, so every token is as likely to be a sequence's first.
Nothing but ``i`` is needed to draw, so a position resumes on any number of ranks and workers as other streams do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..batch.rows import Out, RowBuffer, Rows
from ..order import Sequences, Step, derive_key, mix64
from .core import IndexedReader
from .token_stream import Piece, TokenStream

_SPREAD = 0x9E3779B97F4A7C15


def draw(indices: Iterator[int] | range, tokens: int, seed: int) -> list[int]:
    """Return the tokens, below ``tokens``, at which sequence indices begin.

    >>> draw(range(3), 1000, seed=0) == [draw(range(i, i + 1), 1000, seed=0)[0] for i in range(3)]
    True
    """
    spread: NDArray[np.uint64] = np.array([i % 2**64 for i in indices], dtype=np.uint64) * np.uint64(_SPREAD)
    hashes = mix64(mix64(spread) ^ np.uint64(derive_key("sample", seed)))
    return [value * tokens >> 64 for value in hashes.tolist()]


class SampledSequences(IndexedReader):
    """Sequences of ``width`` tokens, those of the labels included, from random places of ``stream``.

    An epoch is as many sequences as hold its tokens once: ceil(epoch * tokens / seq_len) come before it.
    """

    def __init__(self, stream: TokenStream, *, seq_len: int, width: int, seed: int, boundaries: bool) -> None:
        super().__init__(stream, Sequences(stream.tokens_per_epoch, seq_len, 1))
        self.width = width
        self._seed = seed
        self.buffer = RowBuffer(width, stream.dtype, boundaries, stream.masks)

    def read(self, step: Step, out: Out | None = None) -> Rows:
        """Return the tokens of a rank's rows of a step."""
        starts = np.array(draw(iter(step), self.stream.tokens_per_epoch, self._seed), np.int64)
        found = self.buffer.rows(len(starts), out)
        # No place is near another, so all share one hint, which helps none.
        piece = Piece(0, np.arange(len(starts)), starts, np.zeros(len(starts), np.int64))
        self.stream.fill(self.buffer, [piece], np.zeros(1, np.int64))
        return found
