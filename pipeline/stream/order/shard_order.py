"""The order of shards and documents over windows of whole shards, and where sequences begin."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .hashing import derive_key, permutation

_WINDOW_DOCUMENTS = 120_000  # documents that a default window holds, where its bounds allow
_WINDOW_SHARDS = (4, 64)
LIVE_DOCUMENTS = 32_000_000  # documents of all windows that the lanes keep open


@dataclass(frozen=True, slots=True)
class Sequences:
    """Where sequences begin: ``tokens`` in an epoch, ``stride`` tokens apart, ``lanes`` read heads.

    >>> order = Sequences(tokens=10, stride=4, lanes=2)
    >>> [order.first(e) for e in range(4)]
    [0, 3, 5, 8]
    >>> [order.locate(i) for i in range(5)]
    [(0, 0), (0, 2), (0, 1), (1, 3), (1, 4)]
    """

    tokens: int
    stride: int
    lanes: int

    def first(self, epoch: int) -> int:
        """Return A(epoch): the first sequence that begins in it."""
        return -(-epoch * self.tokens // self.stride)

    def epoch(self, i: int) -> int:
        """Return the epoch in which global sequence ``i`` begins."""
        return i * self.stride // self.tokens

    def locate(self, i: int) -> tuple[int, int]:
        """Return the epoch and the stream sequence ``n`` of global sequence ``i``."""
        epoch = self.epoch(i)
        first = self.first(epoch)
        row, lane = divmod(i - first, self.lanes)
        return epoch, self.lane_start(epoch, lane) + row

    def lane_start(self, epoch: int, lane: int) -> int:
        """Return the stream sequence at which ``lane`` begins to read ``epoch``."""
        first = self.first(epoch)
        share, over = divmod(self.first(epoch + 1) - first, self.lanes)
        return first + lane * share + min(lane, over)

    def places(self, epoch: int, inside: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return of global sequences first(epoch) + ``inside``, all in ``epoch``, its tokens before each, and the lanes.

        >>> order = Sequences(tokens=10, stride=4, lanes=2)
        >>> [places.tolist() for places in order.places(0, np.arange(3))]
        [[0, 8, 4], [0, 1, 0]]
        """
        first = self.first(epoch)
        share, over = divmod(self.first(epoch + 1) - first, self.lanes)
        rows, lanes = np.divmod(inside, self.lanes)
        before = lanes * share + np.minimum(lanes, over) + rows
        return first * self.stride - epoch * self.tokens + before * self.stride, lanes


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """One epoch's shards in their order, cut into windows.

    ``starts`` and ``document_starts`` hold, for each window and the end, how many tokens and documents come before.
    """

    shards: NDArray[np.int64]
    cuts: list[int]
    starts: list[int]
    document_starts: list[int]

    def window_of_token(self, token: int) -> int:
        return bisect_right(self.starts, token) - 1

    def window_of_document(self, document: int) -> int:
        return bisect_right(self.document_starts, document) - 1

    def window_shards(self, number: int) -> list[int]:
        return self.shards[self.cuts[number] : self.cuts[number + 1]].tolist()


class ShardOrder:
    """The order of shards and documents over epochs.

    ``documents`` and ``tokens`` hold the counts of every shard; ``seed`` None keeps the order of the files; ``name`` is
    part of every key, so that sources of one seed are shuffled apart.
    """

    def __init__(self, documents: list[int], tokens: list[int], window: int, seed: int | None, name: str = "") -> None:
        self.documents = np.asarray(documents, dtype=np.int64)
        self.tokens = np.asarray(tokens, dtype=np.int64)
        self.window = window
        self.seed = seed
        self.name = name
        self.epoch = lru_cache(maxsize=3)(self._epoch)

    @property
    def windows(self) -> int:
        """How many windows an epoch has."""
        return -(-len(self.tokens) // self.window)

    def _epoch(self, epoch: int) -> EpochOrder:
        count, windows = len(self.tokens), self.windows
        shards = np.arange(count) if self.seed is None else permutation(count, self._key("shards", epoch))
        cuts = np.arange(windows + 1) * count // windows
        starts, document_starts = (
            np.concatenate([[0], np.cumsum(counts[shards])])[cuts].tolist() for counts in (self.tokens, self.documents)
        )
        return EpochOrder(shards, cuts.tolist(), starts, document_starts)

    def document_order(self, epoch: int, window: int, count: int) -> NDArray[np.int64] | None:
        """Return the order of a window's ``count`` documents, or None where they stay as they are."""
        return None if self.seed is None else permutation(count, self._key("documents", epoch, window))

    def _key(self, tag: str, *parts: int) -> int:
        assert self.seed is not None
        return derive_key(tag, self.name, self.seed, *parts)


def default_window(shards: int, documents: int) -> int:
    """Return how many shards make 120,000 documents, between 4 and 64, at most all.

    >>> default_window(16, 100_000), default_window(1000, 1_000_000), default_window(10_000, 10_000_000)
    (16, 64, 64)
    """
    low, high = _WINDOW_SHARDS
    enough = -(-_WINDOW_DOCUMENTS * shards // max(1, documents))
    return max(1, min(shards, high, max(low, enough)))


def default_lanes(shards: int, documents: int, window: int) -> int:
    """Return 48 lanes, or 96, 192, 384 with thousands of shards, fewer where their windows would not fit memory."""
    lanes = 48
    while lanes < 384 and shards > 40 * lanes:
        lanes *= 2
    while lanes > 1 and lanes * window * documents > LIVE_DOCUMENTS * shards:
        lanes //= 2
    return lanes
