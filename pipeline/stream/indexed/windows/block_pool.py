"""Blocks of a source, brought to memory window by window."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ....errors import CorruptShardError
from ....shards.ranges.coming_bytes import ComingBytes
from ....shards.ranges.mapped import BufferedBytes
from ....shards.ranges.shard_ranges import LONG_BYTES
from ....shards.ranges.source import Source, joined
from ...data.contents import Contents
from ...order import Shuffle
from .coming_blocks import ComingBlocks
from .gather import BLOCK_COLUMNS
from .shuffle_window import ShuffleWindow

Runs = tuple[NDArray[np.int64], NDArray[np.int64]]  # rows of the table, first and behind the last, of blocks
Read = tuple[ShuffleWindow, int, int, NDArray[Any]]  # of a window's block, from a token on, where to


class BlockPool:
    """Makes the windows of an order out of a source; ``order`` was made of the blocks of ``contents``.

    Blocks that two windows share, as at the border of two epochs, are in memory once.
    """

    def __init__(self, source: Source, contents: Contents, order: Shuffle) -> None:
        self.source = source
        self.item = contents.table.itemsize
        self._contents = contents
        self._order = order
        self._bounds = order.blocks.bounds
        self._lock = threading.Lock()
        self._shared: WeakValueDictionary[tuple[int, int], Any] = WeakValueDictionary()
        self.coming = ComingBlocks(source, order) if source.behind else None

    @property
    def waits(self) -> bool:
        """Whether to load windows ahead in threads."""
        return self.source.waits

    def ask(self, epoch: int, number: int) -> None:
        """Have the blocks of a window at hand soon, and its index."""
        if self._contents.sparse:
            return
        runs = self._runs(epoch, number)
        if self.coming is not None:
            self.coming.ask(_pairs(runs), epoch, number)
        else:
            self.source.ask(*runs)

    def announce(self, windows: list[tuple[int, int]]) -> None:
        """Say which windows, by epoch and number, are loaded next, so that what is small can be asked for together."""
        if self.coming is not None:
            self.coming.ask_indexes([(_pairs(self._runs(*key)), *key) for key in windows])

    def load_ahead(self, epoch: int, number: int, window: Future[ShuffleWindow]) -> None:
        """Load a window that is not needed yet, and give it to a future, which nobody cancels.

        Where blocks come by themselves it is made once they are here, in the thread that brings the last of them.
        """
        runs, sums = self._runs(epoch, number), self._contents.table.size_sums
        pairs = _pairs(runs)

        def load(coming: list[ComingBytes]) -> None:
            try:
                window.set_result(self._load(runs, epoch, number, coming) if coming else self.load(epoch, number))
            except BaseException as error:  # else who needs the window waits for ever
                window.set_exception(error)

        long = bool((sums[runs[1]] - sums[runs[0]] > LONG_BYTES).any())
        if self.coming is None or not self.coming.started or self._contents.sparse or long or not pairs:
            load([])
            return
        try:
            coming = [self._memory(*run) for run in pairs]
            self.coming.when_here(coming, pairs, epoch, number, partial(load, coming))
        except BaseException as error:
            window.set_exception(error)

    def load(self, epoch: int, number: int, *, asked: bool = False, whole: bool = True) -> ShuffleWindow:
        """Bring a window to memory: its index, and its blocks, which were ``asked`` for or not.

        Not ``whole``, blocks that take memory of their own are left to `complete`; until then rows are read one by one.
        """
        runs = self._runs(epoch, number)
        if self.coming is not None:
            self.coming.ask_indexes([(_pairs(runs), epoch, number)])
        elif not asked and not self._contents.sparse:
            self.source.ask_index(*runs)
        return self._load(runs, epoch, number, [], whole=whole)

    def _load(
        self, runs: Runs, epoch: int, number: int, coming: list[ComingBytes], *, whole: bool = True
    ) -> ShuffleWindow:
        """Make a window of its index, which is asked for, or told by the blocks ``coming`` and their lengths."""
        if self.coming is not None and coming:
            told = zip(coming, _pairs(runs), strict=True)
            index = joined([self.coming.index(held, *run, epoch, number) for held, run in told])
        else:
            index = self.source.index(*runs)
        starts, lengths, documents = self._kept(runs, *index)
        order = self._order.document_order(epoch, number, len(starts))
        numbers = self._order.epoch(epoch).window_blocks(number)
        self._check(numbers, lengths, documents)
        if self._contents.sparse:
            return self._load_documents(runs, starts, lengths, documents, order)
        table, (firsts, lasts) = self._contents.table, runs
        offsets, sizes = table.offset_of(firsts), table.size_sums[lasts] - table.size_sums[firsts]
        blocks = np.empty((len(firsts), BLOCK_COLUMNS), np.int64)
        blocks[:, 1] = sizes // self.item
        blocks[:, 0], memory = self._addresses(runs, sizes, whole=whole)
        if self.coming is not None:
            self.coming.follow(memory, _pairs(runs), blocks, epoch, number)
        shards = table.shard_of(firsts)
        return ShuffleWindow.of(starts, lengths, documents, offsets, sizes, order, blocks, memory, self.item, shards)

    def _addresses(self, runs: Runs, sizes: NDArray[np.int64], *, whole: bool) -> tuple[NDArray[np.int64], list[Any]]:
        """Return the addresses of blocks, 0 where a block is not in memory, and what keeps each in memory."""
        alone = sizes > LONG_BYTES
        if not alone.any() and (found := self.source.memories(*runs)) is not None:
            return found[0], [found[1]]
        addresses, memory = np.zeros(len(sizes), np.int64), list[Any]([None] * len(sizes))
        for k, run in enumerate(_pairs(runs)):
            if not (alone[k] and (self.source.copies or self.coming is not None)) and (whole or not self.source.copies):
                memory[k] = self._memory(*run)
                addresses[k] = memory[k].address
        return addresses, memory

    def hurry(self, epoch: int, number: int) -> None:
        """Bring the blocks of a window that is loaded ahead before others: it is needed now."""
        if self.coming is not None:
            pairs = _pairs(self._runs(epoch, number))
            with self._lock:
                coming = [self._shared.get(run) for run in pairs]
            self.coming.hurry(coming, pairs, epoch, number)

    def complete(self, epoch: int, number: int, window: Future[ShuffleWindow]) -> None:
        """Bring the blocks to memory that `load` left out; rows are read from each as soon as it is there."""
        found, sums = window.result(), self._contents.table.size_sums
        if self._contents.sparse:  # the documents of a selection are read by `load`
            return
        for k, (first, last) in enumerate(_pairs(self._runs(epoch, number))):
            if found.memory[k] is None and sums[last] - sums[first] <= LONG_BYTES:
                found.memory[k] = self._memory(first, last)
                found.blocks[k, 0] = found.memory[k].address  # last: compiled loops of other threads look at it

    def read_all(self, wanted: list[Read]) -> None:
        """Fill targets from tokens of blocks that are not in memory."""
        if self.coming is not None:
            self.coming.read_all(wanted, self.item)
            return
        for window, block, begin, target in wanted:
            self.source.read(*window.origin(block, begin * self.item), target.view(np.uint8).data)

    def release(self, epoch: int, number: int) -> None:
        """Note that a window is not needed any more in its epoch."""
        if self.coming is not None and not self._contents.sparse:
            self.coming.release(_pairs(self._runs(epoch, number)), epoch, number)

    def close(self) -> None:
        """Give back files."""
        self.source.close()

    def _runs(self, epoch: int, number: int) -> Runs:
        """Return the rows of the table, first and behind the last, of each block of a window."""
        blocks = self._order.epoch(epoch).window_blocks(number)
        return self._contents.table_rows(self._bounds[blocks], self._bounds[blocks + 1])

    def _kept(
        self, runs: Runs, starts: NDArray[np.int64], lengths: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.int64]]:
        """Return where documents that are streamed start and how long they are, block by block, and how many each block has."""
        sums = self._contents.table.document_sums
        documents = sums[runs[1]] - sums[runs[0]]
        kept = self._contents.kept
        if kept is not None:
            table = self._contents.table
            masks = [
                kept(int(table.shard_of(first)), int(table.first_document_of(first)), count)
                for (first, _), count in zip(_pairs(runs), documents.tolist(), strict=True)
            ]
            mask = np.concatenate([np.zeros(0, bool), *masks])
            starts, lengths = starts[mask], lengths[mask]
            documents = np.array([np.count_nonzero(each) for each in masks], np.int64)
        return starts, lengths, documents

    def _check(self, blocks: NDArray[np.int64], lengths: NDArray[np.uint32], documents: NDArray[np.int64]) -> None:
        """Raise unless the index holds as many tokens and documents of each block as the order was made of."""
        tokens = np.zeros(len(documents), np.int64)
        some = np.flatnonzero(documents)
        if len(some):
            tokens[some] = np.add.reduceat(lengths, (np.cumsum(documents) - documents)[some], dtype=np.int64)
        known = self._order.blocks
        wrong = (tokens != known.tokens[blocks]) | (documents != known.documents[blocks])
        if wrong.any():
            k = int(np.argmax(wrong))
            block, table = int(blocks[k]), self._contents.table
            row = int(
                self._contents.table_rows(self._bounds[block : block + 1], self._bounds[block + 1 : block + 2])[0][0]
            )
            raise CorruptShardError(
                f"shard {int(table.shard_of(row))}, documents from {int(table.first_document_of(row))} on: the index holds "
                f"{int(tokens[k])} tokens in {int(documents[k])} documents, but {int(known.tokens[block])} in "
                f"{int(known.documents[block])} were counted before; the shard was replaced meanwhile"
            )

    def _memory(self, first: int, last: int) -> Any:
        with self._lock:
            held = self._shared.get((first, last))
        if held is None:
            held = self.source.memory(first, last)
            if self.source.waits:
                with self._lock:
                    held = self._shared.setdefault((first, last), held)
        return held

    def _load_documents(
        self,
        runs: Runs,
        starts: NDArray[np.int64],
        lengths: NDArray[np.uint32],
        documents: NDArray[np.int64],
        order: NDArray[np.int64] | None,
    ) -> ShuffleWindow:
        """Read documents one by one into a buffer, as one block: of each block they are a small part."""
        for run in _pairs(runs):
            self.source.check(*run)
        table, sizes = self._contents.table, lengths.astype(np.int64) * self.item
        shards = np.repeat(table.shard_of(runs[0]), documents).tolist()
        wanted = list(zip(shards, starts.tolist(), sizes.tolist(), strict=True))
        for shard, start, size in wanted:
            self.source.ask_bytes(shard, start, size)
        ends = np.cumsum(sizes)
        buffer = BufferedBytes(int(ends[-1]) if len(ends) else 0)
        target = memoryview(buffer.memory)
        self.source.read_all(
            [
                (shard, start, target[end - size : end])
                for (shard, start, size), end in zip(wanted, ends.tolist(), strict=True)
            ]
        )
        blocks = np.array([[buffer.address, int(sizes.sum()) // self.item]])
        count = np.array([len(sizes)])
        return ShuffleWindow.of(
            ends - sizes,
            lengths,
            count,
            np.zeros(1, np.int64),
            blocks[:, 1] * self.item,
            order,
            blocks,
            [buffer],
            self.item,
        )


def _pairs(runs: Runs) -> list[tuple[int, int]]:
    return list(zip(runs[0].tolist(), runs[1].tolist(), strict=True))
