"""The shards that are open: at most so many; the least recently used close first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .kernels import SHARD_COLUMNS
from .open_files import OPEN_FILES, OpenFiles, tick
from .window_index import OpenShard, Tokens


class ShardIndex(NamedTuple):
    """Where the documents of a shard lie, without its elements: who holds it holds no file open."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    tokens: None = None


class ShardPool:
    """The elements of open shards by number, at most ``limit`` open at a time; the least recently used close first.

    ``open_shard(number)`` opens and checks a shard; ``reopen(number)`` maps the elements of one that was checked.
    ``table`` says where their elements lie (`kernels.SHARD_COLUMNS`); whoever reads by its addresses holds ``lock``,
    for shards are also closed by other threads: the one that builds windows, and those of other streams, with which
    ``budget`` is shared. An open shard takes ``files`` descriptors of it.
    """

    def __init__(
        self,
        open_shard: Callable[[int], OpenShard],
        reopen: Callable[[int], Tokens],
        limit: int,
        *,
        files: int = 1,
        budget: OpenFiles = OPEN_FILES,
    ) -> None:
        self._open_shard = open_shard
        self._reopen = reopen
        self._limit = limit
        self._files = files
        self._budget = budget
        self._checked: set[int] = set()
        self.lock = threading.Lock()
        self.views: dict[int, memoryview] = {}
        self.misses = 0  # how often what a read needed was not open
        self.table: NDArray[np.int64] = np.zeros((64, SHARD_COLUMNS), np.int64)
        budget.join(self)

    def open(self, number: int) -> ShardIndex:
        """Open a shard, keep its elements open where they are at hand, and return its index."""
        return self._open(number)[0]

    def tick(self) -> int:
        """Return a number above all that were written to the table."""
        return tick()

    def slices(self, shards: list[int], begins: list[int], ends: list[int]) -> list[memoryview]:
        """Return elements ``begin`` to ``end`` of each shard; hold them only while a read lasts."""
        views = self.views
        try:
            parts = [views[shard][begin:end] for shard, begin, end in zip(shards, begins, ends, strict=True)]
        except KeyError:  # some are not open, or were closed for others
            self.misses += 1
            return self._copies(shards, begins, ends)
        if self._budget.crowded or len(self.views) > self._limit // 2:  # else nothing closes soon
            self.table[shards, 2] = self.tick()
        return parts

    def _copies(self, shards: list[int], begins: list[int], ends: list[int]) -> list[memoryview]:
        """Return copies of the parts, shard by shard, so that no more than one beyond the limit is ever open."""
        places: dict[int, list[int]] = {}
        for place, shard in enumerate(shards):
            places.setdefault(shard, []).append(place)
        parts = [memoryview(b"")] * len(shards)
        for shard, mine in places.items():
            view = self.views.get(shard)
            if view is None:
                view = self._tokens(shard).data
            for place in mine:
                parts[place] = np.array(view[begins[place] : ends[place]]).data.toreadonly()
            self.table[shard, 2] = self.tick()
        return parts

    def _open(self, number: int) -> tuple[ShardIndex, Tokens | None]:
        shard = self._budget.opening(lambda: self._open_shard(number), self._files)
        self._checked.add(number)
        with self.lock:
            if number >= len(self.table):
                self.table = np.concatenate([self.table, np.zeros((number + 1, SHARD_COLUMNS), np.int64)])
            if shard.tokens is not None:
                self._keep(number, shard.tokens)
        return ShardIndex(shard.starts, shard.lengths), shard.tokens

    def _tokens(self, number: int) -> Tokens:
        tokens = None if number in self._checked else self._open(number)[1]
        if tokens is None:
            tokens = self._budget.opening(lambda: self._reopen(number), self._files)
            with self.lock:
                self._keep(number, tokens)
        return tokens

    def _keep(self, number: int, tokens: Tokens) -> None:
        if number in self.views:  # pages of the older map are known to the process already
            self.table[number, 2] = self.tick()
            return
        self.views[number] = tokens.data
        self.table[number] = tokens.__array_interface__["data"][0], len(tokens), self.tick()
        if len(self.views) > self._limit:
            # Some more than must go, so that the next few find room without a search for the oldest.
            closing = len(self.views) - self._limit + self._limit // 8
            self._drop(sorted(self.views, key=self.table[:, 2].__getitem__)[:closing])

    def _drop(self, numbers: list[int]) -> None:
        for number in numbers:
            self.table[number] = 0
            self.views.pop(number, None)

    # As a holder of the budget

    @property
    def held(self) -> int:
        return self._files * len(self.views)

    def closable(self) -> list[tuple[int, int, int]]:
        with self.lock:
            return [(int(self.table[number, 2]), number, self._files) for number in self.views if self._files]

    def close_files(self, numbers: list[int]) -> None:
        with self.lock:
            self._drop(numbers)

    def forget(self) -> None:
        self.lock = threading.Lock()
        self.table[:] = 0
        self.views.clear()
