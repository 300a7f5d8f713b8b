"""Sequences from random offsets, with replacement: sequence index ``i`` begins at a token drawn by a hash of the seed and ``i``.

The corpus is taken as one ring of tokens in the order of its files, so every token is as likely to be a sequence's first.
Nothing but ``i`` is needed to draw, so a position resumes on any number of ranks and workers as other streams do.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..order import Sequences, Shuffle, derive_key, mix64
from ..windows.indexed_lanes import IndexedLanes, Int, WindowOffset
from ..windows.window_cache import WindowCache

_SPREAD = 0x9E3779B97F4A7C15


def draw(indices: Iterable[int], tokens: int, seed: int, name: str = "") -> list[int]:
    """Return the tokens, below ``tokens``, at which sequence indices begin; of a mix, those of its source ``name``.

    >>> draw(range(3), 1000, seed=0) == [draw(range(i, i + 1), 1000, seed=0)[0] for i in range(3)]
    True
    """
    spread: NDArray[np.uint64] = np.array([i % 2**64 for i in indices], dtype=np.uint64) * np.uint64(_SPREAD)
    key = derive_key("sample", seed, name) if name else derive_key("sample", seed)
    hashes = mix64(mix64(spread) ^ np.uint64(key))
    return [value * tokens >> 64 for value in hashes.tolist()]


class RandomOffsets(IndexedLanes):
    """Where sequences of ``width`` tokens, those of the labels included, begin: anywhere in the files, whose ``order`` is kept.

    An epoch is as many sequences as hold its tokens once: ceil(epoch * tokens / seq_len) come before it.
    """

    def __init__(self, windows: WindowCache, order: Shuffle, *, seq_len: int, width: int, seed: int, name: str) -> None:
        super().__init__(windows, order, Sequences(order.tokens, seq_len, 1), width=width)
        self._seed, self._name = seed, name

    def positions(self, indices: Int) -> Int:
        return np.array(draw(indices.tolist(), self.units, self._seed, self._name), np.int64)

    def locations(self, indices: Int, positions: Int) -> list[WindowOffset]:
        starts = positions.tolist()
        self.windows.request(dict.fromkeys(key for p in starts for key in self.keys(p, p + self.width - 1)))
        return [self.location(position) for position in starts]
