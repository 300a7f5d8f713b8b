"""The endless shuffled token stream of one source, with random access.

``TokenStream.read(start, out)`` copies any range of tokens, across document, window and epoch borders. What makes it
fast: a window's documents are found by binary search in one array, copied as slices of the memory maps by a single
``concatenate`` (twice the speed of ``take``), and windows are kept, and built ahead in a thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .order import ShardOrder

Tokens = NDArray[Any]
_BUILD_AHEAD = 0.5  # share of a window after which the next one is built


class OpenShard(Protocol):
    """What a shard offers: all its elements, and where its documents begin (in elements) and how long they are."""

    tokens: Tokens
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


class ShardPool:
    """Open shards by number, at most ``limit`` at a time; the least recently used one is closed first."""

    def __init__(self, open_shard: Callable[[int], OpenShard], limit: int) -> None:
        self._open_shard = open_shard
        self._limit = limit
        self._tokens: OrderedDict[int, Tokens] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes_mapped = 0

    def tokens(self, number: int) -> Tokens:
        """Return the elements of a shard, opening it where needed."""
        try:
            tokens = self._tokens[number]
            self._tokens.move_to_end(number)
        except KeyError:  # not open, or closed by another thread between the two lines
            return self.open(number).tokens
        return tokens

    def open(self, number: int) -> OpenShard:
        """Open a shard with its index, and keep its elements open."""
        shard = self._open_shard(number)
        with self._lock:
            if number not in self._tokens:
                self.bytes_mapped += shard.tokens.nbytes
            self._tokens[number] = shard.tokens
            while len(self._tokens) > self._limit:
                self._tokens.popitem(last=False)
        return shard


@dataclass(slots=True)
class WindowIndex:
    """The documents of a window in their shuffled order.

    ``ends[j]`` tokens come before document ``j`` (int64, one more entry than documents); it lies at element
    ``starts[j]`` (int64) of shard ``shards[j]`` (int32).
    """

    ends: NDArray[np.int64]
    starts: NDArray[np.int64]
    shards: NDArray[np.int32]

    def slices(self, first: int, last: int) -> tuple[list[int], list[int], list[int]]:
        """Return shard, begin and end of documents ``first`` to ``last`` as Python integers."""
        starts = self.starts[first:last]
        ends = starts + (self.ends[first + 1 : last + 1] - self.ends[first:last])
        return self.shards[first:last].tolist(), starts.tolist(), ends.tolist()


class TokenStream:
    """Random access to the endless stream of one source's tokens and documents.

    ``order`` says which document comes when; ``pool`` opens shards; ``keep`` bounds how many windows stay built.
    """

    def __init__(self, order: ShardOrder, pool: ShardPool, dtype: np.dtype[Any], keep: int) -> None:
        self.order = order
        self.dtype = dtype
        self.tokens_per_epoch = int(order.tokens.sum())
        self.documents_per_epoch = int(order.documents.sum())
        self._pool = pool
        self._keep = keep
        self._windows: OrderedDict[tuple[int, int], WindowIndex] = OrderedDict()
        self._ahead: dict[tuple[int, int], Future[WindowIndex]] = {}
        self._builder: ThreadPoolExecutor | None = None

    def read(self, start: int, out: Tokens) -> None:
        """Fill ``out`` (1-D, stored dtype) with the tokens from ``start`` of the endless stream."""
        filled = 0
        while filled < len(out):
            epoch, token = divmod(start + filled, self.tokens_per_epoch)
            filled += self._copy(epoch, token, out[filled:])

    def document_ends(self, start: int, count: int) -> NDArray[np.int64]:
        """Return where documents end inside tokens ``start`` to ``start + count``, counted from ``start``, above 0."""
        found, seen = [], 0
        while seen < count:
            epoch, token = divmod(start + seen, self.tokens_per_epoch)
            window, inside, size = self._place(epoch, token)
            stop = min(inside + count - seen, size)
            first = int(np.searchsorted(window.ends, inside, side="right"))
            last = int(np.searchsorted(window.ends, stop, side="right"))
            found.append(np.unique(window.ends[first:last]) - inside + seen)
            seen += stop - inside
        return np.concatenate(found)

    def documents(self, start: int, count: int) -> list[Tokens]:
        """Return documents ``start`` to ``start + count`` of the endless stream as read-only views."""
        found: list[Tokens] = []
        while len(found) < count:
            epoch, document = divmod(start + len(found), self.documents_per_epoch)
            epoch_order = self.order.epoch(epoch)
            number = epoch_order.window_of_document(document)
            inside = document - int(epoch_order.document_starts[number])
            window = self.window(epoch, number)
            last = min(inside + count - len(found), len(window.starts))
            parts = zip(*window.slices(inside, last), strict=True)
            found += [self._pool.tokens(shard)[begin:end] for shard, begin, end in parts]
        return found

    def window(self, epoch: int, number: int) -> WindowIndex:
        """Return a window's index, from memory, from the builder thread, or made now."""
        key = (epoch, number)
        window = self._windows.get(key)
        if window is None:
            ahead = self._ahead.pop(key, None)
            window = ahead.result() if ahead else self._build(epoch, number)
            self._windows[key] = window
            while len(self._windows) > self._keep:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(key)
        return window

    def _place(self, epoch: int, token: int) -> tuple[WindowIndex, int, int]:
        """Return the window that holds a token of an epoch, the token's place in it, and the window's size."""
        order = self.order.epoch(epoch)
        number = order.window_of_token(token)
        begin, end = int(order.starts[number]), int(order.starts[number + 1])
        if token - begin > _BUILD_AHEAD * (end - begin):
            self._build_ahead(epoch, number + 1)
        return self.window(epoch, number), token - begin, end - begin

    def _copy(self, epoch: int, token: int, out: Tokens) -> int:
        """Copy as many tokens as the window at this place can give; return how many."""
        window, inside, size = self._place(epoch, token)
        stop = min(inside + len(out), size)
        # "right" skips documents of no tokens that end where the first one begins.
        first = int(np.searchsorted(window.ends, inside, side="right")) - 1
        last = int(np.searchsorted(window.ends, stop, side="left"))
        shards, begins, ends = window.slices(first, last)
        begins[0] += inside - int(window.ends[first])
        ends[-1] -= int(window.ends[last]) - stop
        tokens = self._pool.tokens
        parts = [tokens(shard)[begin:end] for shard, begin, end in zip(shards, begins, ends, strict=True)]
        np.concatenate(parts, out=out[: stop - inside])
        return stop - inside

    def _build(self, epoch: int, number: int) -> WindowIndex:
        numbers = self.order.epoch(epoch).window_shards(number)
        opened = [self._pool.open(shard) for shard in numbers]
        lengths = np.concatenate([shard.lengths for shard in opened])
        starts = np.concatenate([shard.starts for shard in opened])
        shards = np.repeat(np.asarray(numbers, dtype=np.int32), [len(shard.lengths) for shard in opened])
        order = self.order.document_order(epoch, number, len(lengths))
        if order is not None:
            lengths, starts, shards = lengths[order], starts[order], shards[order]
        ends = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=ends[1:])
        return WindowIndex(ends, starts, shards)

    def _build_ahead(self, epoch: int, number: int) -> None:
        if number == self.order.windows:
            epoch, number = epoch + 1, 0
        key = (epoch, number)
        if key in self._windows or key in self._ahead:
            return
        if self._builder is None:
            self._builder = ThreadPoolExecutor(1, thread_name_prefix="shardwright-windows")
        for old in list(self._ahead)[: max(0, len(self._ahead) - self._keep)]:
            self._ahead.pop(old).cancel()
        self._ahead[key] = self._builder.submit(self._build, epoch, number)

    def close(self) -> None:
        """Stop building ahead."""
        if self._builder is not None:
            self._builder.shutdown(wait=False, cancel_futures=True)
