"""Blocks that come behind the indexes of their windows, as those of remote shards do.

The first rows are read alone, by small requests, so that the first batch waits for no block. Then the blocks are asked for, in
the order in which they are needed, and rows wait for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....shards.ranges.coming_bytes import ComingBytes
from ....shards.ranges.remote_ranges import RemoteRanges
from ....weak_methods import weak_lru_cache
from ...order import Shuffle
from .gather import copy_tokens

Runs = list[tuple[int, int]]  # of the table of extents, first and behind the last, of each block


class ComingBlocks:
    """Brings the blocks of windows; until `start` is called, what is asked for waits."""

    def __init__(self, source: Any, order: Shuffle) -> None:
        self._source: RemoteRanges = source
        self._order = order
        self._lock = threading.Lock()
        self._started = False
        self._waiting: list[Callable[[], None]] = []
        self._progress = weak_lru_cache(self._make_progress, 2)

    def ask_indexes(self, windows: list[tuple[Runs, int, int]]) -> None:
        """Have the indexes of the blocks of windows (their rows, epoch and number) at hand soon."""
        self._source.ask_indexes(
            [(*each, self._due(epoch, number)) for rows, epoch, number in windows for each in rows]
        )

    @property
    def started(self) -> bool:
        """Whether blocks come, so that a window that is not needed yet can wait for those it consists of."""
        return self._started

    def when_here(
        self, coming: list[ComingBytes], rows: Runs, epoch: int, number: int, then: Callable[[], None]
    ) -> None:
        """Bring a window's blocks and what they do not tell of its index, and call ``then`` in the thread of the last."""
        due, lock, once = self._due(epoch, number), threading.Lock(), [then]
        self._source.bring_all(coming, rows, due)
        awaited = [held.future for held in coming if held.future is not None]
        awaited += self._source.ask_lengths([(*each, due) for each in rows])
        left = len(awaited) + 1

        def count(_: Any = None) -> None:
            nonlocal left
            with lock:
                left -= 1
                if left:
                    return
            once.pop()()  # not kept: blocks hold their futures, these hold this, and it holds the blocks

        for future in awaited:
            future.add_done_callback(count)
        count()

    def hurry(self, coming: list[Any], rows: Runs, epoch: int, number: int) -> None:
        """Bring those of a window's blocks that were asked for before others."""
        if self._started:
            asked = [(held, run) for held, run in zip(coming, rows, strict=True) if isinstance(held, ComingBytes)]
            held, runs = [held for held, _ in asked], [run for _, run in asked]
            self._source.bring_all(held, runs, self._due(epoch, number), now=True)

    def index(self, held: ComingBytes, first: int, last: int, epoch: int, number: int) -> tuple[bytes, bytes]:
        """Return the index of a block that is here, of a window that is not needed yet."""
        return self._source.index_of_block(held, first, last, self._due(epoch, number))

    def ask(self, rows: Runs, epoch: int, number: int) -> None:
        """Have a window's blocks in the cache soon."""
        due = self._due(epoch, number)

        def ask() -> None:
            for first, last in rows:
                self._source.ask_run(first, last, due)

        self._when_started(ask)

    def follow(self, memory: list[Any], rows: Runs, blocks: NDArray[np.int64], epoch: int, number: int) -> None:
        """Bring a window's blocks, and write their addresses to ``blocks`` as they come."""
        due = self._due(epoch, number)
        coming = []
        for k, (held, (first, last)) in enumerate(zip(memory, rows, strict=True)):
            if isinstance(held, ComingBytes):
                held.tell(blocks, k)
                held.rows, held.due = (first, last), due
                coming.append(held)

        def bring() -> None:
            self._source.bring_all(coming, [held.rows for held in coming], due)

        self._when_started(bring)

    def start(self) -> None:
        """Ask for all blocks: the first rows are here."""
        if self._started:
            return
        with self._lock:
            self._started = True
            waiting, self._waiting = self._waiting, []
        for ask in waiting:
            ask()

    def _when_started(self, ask: Callable[[], None]) -> None:
        with self._lock:
            if not self._started:
                self._waiting.append(ask)
                return
        ask()

    def read_all(self, wanted: list[Any], item: int) -> None:
        """Fill targets from tokens of windows' blocks: the first by small requests, later ones when their blocks are here."""
        alone, behind = [], []
        for window, block, begin, target in wanted:
            held = window.memory[block]
            if isinstance(held, ComingBytes) and (self._started or held.address):
                behind.append((held, begin, target))
                continue
            alone.append((held, *window.origin(block, begin * item), target.view(np.uint8).data))
        for held, _, _ in behind:
            self._source.bring(held, *held.rows, held.due, now=True)
        self._source.read_all([(shard, offset, target) for _, shard, offset, target in alone])
        for held, _, offset, target in alone:
            if held is not None:
                held.note(offset, bytes(target))
        for held, begin, target in behind:
            if held.future is not None:
                held.future.result()
            copy_tokens(held.address + begin * item, target.view(np.uint8))

    def release(self, rows: Runs, epoch: int, number: int) -> None:
        """Note when the order needs a window's blocks again."""
        if self._source.copies:
            return
        progress = self._progress(epoch + 1)
        for (first, last), block in zip(rows, self._order.epoch(epoch).window_blocks(number).tolist(), strict=True):
            self._source.used(first, last, epoch + 1 + float(progress[block]))

    def _due(self, epoch: int, number: int) -> float:
        """Return when lanes come to a window, in epochs."""
        starts, order = self._order.epoch(epoch).starts, self._order
        return epoch + float(starts[number] * order.lanes / max(1, order.tokens) % 1)

    def _make_progress(self, epoch: int) -> NDArray[np.float64]:
        """Return the share of an epoch after which each block is needed."""
        order = self._order
        count = len(order.blocks)
        found = np.empty(count)
        found[order.epoch(epoch).blocks] = np.arange(count) * order.lanes / max(1, count) % 1
        return found
