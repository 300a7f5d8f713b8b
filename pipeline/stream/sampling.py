"""Sequences from random places, with replacement: sequence ``i`` begins at a token drawn by a hash of the seed and ``i``.

The corpus is taken as one ring of tokens in the order of its files, so every token is as likely to be a sequence's first.
Nothing but ``i`` is needed to draw, so a place resumes on any number of ranks and workers as other streams do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .order import Sequences, ShardOrder, derive_key, mix64
from .pool import ShardPool
from .rows import RowBuffer, Rows
from .sequences import Ordered
from .windows import TokenStream

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def draw(numbers: range, tokens: int, seed: int) -> list[int]:
    """Return the tokens, below ``tokens``, at which global sequences ``numbers`` begin.

    >>> draw(range(3), 1000, seed=0) == [draw(range(i, i + 1), 1000, seed=0)[0] for i in range(3)]
    True
    """
    places = np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.uint64) * _SPREAD
    hashes = mix64(mix64(places) ^ np.uint64(derive_key("sample", seed)))
    return [value * tokens >> 64 for value in hashes.tolist()]


class ScatteredTokens(TokenStream):
    """The tokens of all files in their order, read at places that tell nothing about the next."""

    def __init__(
        self, documents: list[int], tokens: list[int], pool: ShardPool, dtype: np.dtype[Any], keep: int
    ) -> None:
        """Keep the indexes of up to ``keep`` shards."""
        super().__init__(ShardOrder(documents, tokens, 1, None), pool, dtype, keep)

    def _want(self, epoch: int, number: int) -> None:
        """Build nothing: who read here reads elsewhere next."""


class SampledSequences(Ordered):
    """Sequences of ``seq_len`` tokens, with ``extra`` more for the labels, from random places of ``stream``.

    An epoch is as many sequences as hold its tokens once: ceil(epoch * tokens / seq_len) come before it.
    """

    def __init__(self, stream: TokenStream, *, seq_len: int, extra: int, seed: int, boundaries: bool) -> None:
        super().__init__(stream, Sequences(stream.tokens_per_epoch, seq_len, 1))
        self.width = seq_len + extra
        self._seed = seed
        self.buffer = RowBuffer(self.width, stream.dtype, boundaries)

    def rows(self, numbers: range) -> Iterator[Rows]:
        """Yield the tokens of global sequences ``numbers``, a range with a positive step."""
        if not numbers:
            return
        count, starts = len(numbers), draw(numbers, self.stream.tokens_per_epoch, self._seed)
        self.buffer.clear(count)
        # No place is near another, so all share one hint, which helps none.
        lanes, hints = np.zeros(count, np.int64), np.zeros(1, np.int64)
        self.stream.fill(self.buffer, np.arange(count), 0, np.array(starts), lanes, hints)
        yield self.buffer.rows(slice(0, count))
