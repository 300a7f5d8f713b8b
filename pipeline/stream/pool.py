"""The shards that are open: at most so many; the least recently used close first."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .kernels import SHARD_COLUMNS
from .window_index import OpenShard, Tokens


class ShardPool:
    """The elements of open shards by number, at most ``limit`` open at a time; the least recently used close first.

    ``open_shard(number)`` opens and checks a shard; ``reopen(number)`` maps the elements of one that was checked.
    ``table`` says where their elements lie (`kernels.SHARD_COLUMNS`); whoever reads by its addresses holds ``lock``,
    for shards are also closed by the thread that builds windows.
    """

    def __init__(self, open_shard: Callable[[int], OpenShard], reopen: Callable[[int], Tokens], limit: int) -> None:
        self._open_shard = open_shard
        self._reopen = reopen
        self._limit = limit
        self._checked: set[int] = set()
        self._tick = 0
        self.lock = threading.Lock()
        self.views: dict[int, memoryview] = {}
        self.misses = 0  # how often what a read needed was not open
        self.table: NDArray[np.int64] = np.zeros((64, SHARD_COLUMNS), np.int64)

    def open(self, number: int) -> OpenShard:
        """Open a shard with its index, and keep its elements open where they are at hand."""
        shard = self._open_shard(number)
        self._checked.add(number)
        with self.lock:
            if number >= len(self.table):
                self.table = np.concatenate([self.table, np.zeros((number + 1, SHARD_COLUMNS), np.int64)])
            if shard.tokens is not None:
                self._keep(number, shard.tokens)
        return shard

    def tick(self) -> int:
        """Return a number above all that were written to the table."""
        self._tick += 1
        return self._tick

    def slices(self, shards: list[int], begins: list[int], ends: list[int]) -> list[memoryview]:
        """Return elements ``begin`` to ``end`` of each shard; hold them only while a read lasts."""
        views = self.views
        try:
            parts = [views[shard][begin:end] for shard, begin, end in zip(shards, begins, ends, strict=True)]
        except KeyError:  # some are not open, or were closed for others
            # What is open is held on to first: opening the others may close it.
            self.misses += 1
            needed = set(shards)
            held = {number: view for number in needed if (view := views.get(number)) is not None}
            missing = {number: self._tokens(number) for number in needed - set(held)}
            views = held | {number: tokens.data for number, tokens in missing.items()}
            with self.lock:
                for number, tokens in missing.items():
                    self._keep(number, tokens)
            parts = [views[shard][begin:end] for shard, begin, end in zip(shards, begins, ends, strict=True)]
        if len(self.views) > self._limit // 2:  # nothing closes long after that, so nobody asks who was used when
            self.table[shards, 2] = self.tick()
        return parts

    def _tokens(self, number: int) -> Tokens:
        tokens = None if number in self._checked else self.open(number).tokens
        return self._reopen(number) if tokens is None else tokens

    def _keep(self, number: int, tokens: Tokens) -> None:
        if number in self.views:  # pages of the older map are known to the process already
            self.table[number, 2] = self.tick()
            return
        self.views[number] = tokens.data
        self.table[number] = tokens.__array_interface__["data"][0], len(tokens), self.tick()
        if len(self.views) > self._limit:
            # Some more than must go, so that the next few find room without a search for the oldest.
            closing = len(self.views) - self._limit + self._limit // 8
            for oldest in sorted(self.views, key=self.table[:, 2].__getitem__)[:closing]:
                self.table[oldest] = 0
                del self.views[oldest]
