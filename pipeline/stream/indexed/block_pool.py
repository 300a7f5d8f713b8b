"""Blocks of a source, brought to memory window by window."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptShardError
from ...shards.ranges.coming_bytes import ComingBytes
from ...shards.ranges.mapped import BufferedBytes
from ...shards.ranges.shard_ranges import LONG_BYTES, Source
from ..data.contents import Contents
from ..order import Shuffle
from .coming_blocks import ComingBlocks
from .gather import BLOCK_COLUMNS
from .shuffle_window import ShuffleWindow

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
        rows = self._rows(epoch, number)
        if self.coming is not None:
            self.coming.ask(rows, epoch, number)
            return
        for first, last in rows:
            self.source.ask(first, last)

    def announce(self, windows: list[tuple[int, int]]) -> None:
        """Say which windows, by epoch and number, are loaded next, so that what is small can be asked for together."""
        if self.coming is not None:
            self.coming.ask_indexes([(self._rows(*key), *key) for key in windows])

    def load_ahead(self, epoch: int, number: int, window: Future[ShuffleWindow]) -> None:
        """Load a window that is not needed yet, and give it to a future, which nobody cancels.

        Where blocks tell their indexes it is made once they are here, in the thread that brings the last of them.
        """
        rows, sums = self._rows(epoch, number), self._contents.table.size_sums
        coming: list[Any] = []

        def load() -> None:
            try:
                window.set_result(self._load(rows, epoch, number, coming) if coming else self.load(epoch, number))
            except BaseException as error:
                window.set_exception(error)

        long = not rows or any(sums[last] - sums[first] > LONG_BYTES for first, last in rows)
        if self.coming is None or not self.coming.tell_indexes or self._contents.sparse or long:
            load()
            return
        try:
            coming += [self._memory(*each) for each in rows]
            self.coming.when_here(coming, rows, epoch, number, load)
        except BaseException as error:  # else who needs the window waits for ever
            window.set_exception(error)

    def load(self, epoch: int, number: int, *, asked: bool = False, whole: bool = True) -> ShuffleWindow:
        """Bring a window to memory: its index, and its blocks, which were ``asked`` for or not.

        Not ``whole``, blocks that take memory of their own are left to `complete`; until then rows are read one by one.
        """
        rows = self._rows(epoch, number)
        if self.coming is not None:
            self.coming.ask_indexes([(rows, epoch, number)])
        elif not asked and not self._contents.sparse:
            for first, last in rows:
                self.source.ask_index(first, last)
        return self._load(rows, epoch, number, [], whole=whole)

    def _load(
        self, rows: list[tuple[int, int]], epoch: int, number: int, coming: list[ComingBytes], *, whole: bool = True
    ) -> ShuffleWindow:
        """Make a window of its index, which is asked for, or told by the blocks ``coming``."""
        if self.coming is not None and coming:
            told = zip(coming, rows, strict=True)
            parts = [self.coming.index(held, *each, epoch, number) for held, each in told]
        else:
            parts = [self.source.index(*each) for each in rows]
        starts, lengths, documents = self._joined(parts, rows)
        order = self._order.document_order(epoch, number, len(starts))
        numbers = self._order.epoch(epoch).window_blocks(number)
        self._check(numbers, lengths, documents)
        if self._contents.sparse:
            return self._load_documents(rows, starts, lengths, documents, order)
        table = self._contents.table
        firsts, lasts = np.array(rows, np.int64).reshape(-1, 2).T
        offsets, sizes = table.offsets[firsts], table.size_sums[lasts] - table.size_sums[firsts]
        blocks = np.zeros((len(rows), BLOCK_COLUMNS), np.int64)
        blocks[:, 1] = sizes // self.item
        memory: list[Any] = []
        for k, (first, last) in enumerate(rows):
            long = sizes[k] > LONG_BYTES and (self.source.copies or self.coming is not None)
            if long or (not whole and self.source.copies):
                memory.append(None)
                continue
            held = self._memory(first, last)
            memory.append(held)
            blocks[k, 0] = held.address
        if self.coming is not None:
            self.coming.follow(memory, rows, blocks, epoch, number)
        origins = list(zip(table.shard_numbers[firsts].tolist(), offsets.tolist(), strict=True))
        return ShuffleWindow.of(starts, lengths, documents, offsets, sizes, order, blocks, memory, self.item, origins)

    def hurry(self, epoch: int, number: int) -> None:
        """Bring the blocks of a window that is loaded ahead before others: it is needed now."""
        if self.coming is not None:
            rows = self._rows(epoch, number)
            with self._lock:
                coming = [self._shared.get(each) for each in rows]
            self.coming.hurry(coming, rows, epoch, number)

    def complete(self, epoch: int, number: int, window: Future[ShuffleWindow]) -> None:
        """Bring the blocks to memory that `load` left out; rows are read from each as soon as it is there."""
        found, sums = window.result(), self._contents.table.size_sums
        if self._contents.sparse:  # the documents of a selection are read by `load`
            return
        for k, (first, last) in enumerate(self._rows(epoch, number)):
            if found.memory[k] is None and sums[last] - sums[first] <= LONG_BYTES:
                found.memory[k] = self._memory(first, last)
                found.blocks[k, 0] = found.memory[k].address  # last: compiled loops of other threads look at it

    def read_all(self, wanted: list[Read]) -> None:
        """Fill targets from tokens of blocks that are not in memory."""
        if self.coming is not None:
            self.coming.read_all(wanted, self.item)
            return
        for window, block, begin, target in wanted:
            shard, offset = window.origins[block]
            self.source.read(shard, offset + begin * self.item, target.view(np.uint8).data)

    def release(self, epoch: int, number: int) -> None:
        """Note that a window is not needed any more in its epoch."""
        if self.coming is not None and not self._contents.sparse:
            self.coming.release(self._rows(epoch, number), epoch, number)

    def close(self) -> None:
        """Give back files."""
        self.source.close()

    def _rows(self, epoch: int, number: int) -> list[tuple[int, int]]:
        """Return the rows of the table, first and behind the last, of each block of a window."""
        blocks = self._order.epoch(epoch).window_blocks(number)
        firsts, lasts = self._contents.table_rows(self._bounds[blocks], self._bounds[blocks + 1])
        return list(zip(firsts.tolist(), lasts.tolist(), strict=True))

    def _joined(
        self, parts: list[tuple[bytes, bytes]], rows: list[tuple[int, int]]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32], NDArray[np.int64]]:
        """Return where documents start and how long they are, block by block, and how many each block has."""
        starts = np.frombuffer(b"".join([part[0] for part in parts]), "<i8")
        lengths = np.frombuffer(b"".join([part[1] for part in parts]), "<u4")
        documents = np.array([len(part[1]) // 4 for part in parts], np.int64)
        kept = self._contents.kept
        if kept is not None:
            table = self._contents.table
            masks = [
                kept(int(table.shard_numbers[first]), int(table.first_documents[first]), count)
                for (first, _), count in zip(rows, documents.tolist(), strict=True)
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
                f"shard {int(table.shard_numbers[row])}, documents from {int(table.first_documents[row])} on: the index holds "
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
        rows: list[tuple[int, int]],
        starts: NDArray[np.int64],
        lengths: NDArray[np.uint32],
        documents: NDArray[np.int64],
        order: NDArray[np.int64] | None,
    ) -> ShuffleWindow:
        """Read documents one by one into a buffer, as one block: of each block they are a small part."""
        for first, last in rows:
            self.source.check(first, last)
        table, sizes = self._contents.table, lengths.astype(np.int64) * self.item
        shards = np.repeat(table.shard_numbers[np.array([first for first, _ in rows], np.int64)], documents).tolist()
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
