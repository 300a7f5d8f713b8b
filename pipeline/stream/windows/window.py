"""Windows: one blocking job makes a window, and a cache has windows made in threads and keeps those that a stream needs.

A window holds the documents of its blocks. The blocks are read together, and one Arrow ``take`` shuffles their documents.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...daemon_threads import DaemonThreads
from ...errors import CorruptShardError
from ...shards.extents.extent_table import running_sums, runs
from ..datasets.sources.counted_data import CountedData
from ..datasets.sources.selection import REDACTED, WITHHELD, Selection
from ..order import Shuffle

_KEPT_BYTES = 16 << 20  # that a thread keeps for its next window, since fresh pages cost as much as the copy

Int = NDArray[np.int64]


class Window(NamedTuple):
    """Documents end to end: ``tokens`` (1-D, stored dtype, read-only), and ``ends`` (int64 ``[documents + 1]``).

    ``ends[j]`` tokens come before document ``j``; the last entry is the number of tokens. If ``has_empty``, a document may have
    no tokens. ``mask`` (uint8, shaped as ``tokens``) is 0 for tokens that no label counts (None: all count). It is 2 for
    documents that `withhold` replaces later, because filters and maps see them first. ``origins`` has the origin of each
    document, for a trace. ``sources`` (int64) has the number of each document's source, if rows name sources.
    """

    tokens: NDArray[Any]
    ends: Int
    has_empty: bool = True
    mask: NDArray[np.uint8] | None = None
    origins: Sequence[Any] | None = None
    sources: Int | None = None

    def document(self, number: int) -> NDArray[Any]:
        return self.tokens[self.ends[number] : self.ends[number + 1]]

    def mask_of(self, number: int) -> NDArray[np.uint8] | None:
        """Return the mask of a document."""
        return None if self.mask is None else self.mask[self.ends[number] : self.ends[number + 1]]

    def withhold(self, eos_id: int) -> Window:
        """Return the window with end-of-text ids in place of withheld documents, which no label then counts."""
        if self.mask is None or not (withheld := self.mask == WITHHELD).any():
            return self
        tokens = np.where(withheld, self.tokens.dtype.type(eos_id), self.tokens)
        return self._replace(tokens=tokens, mask=np.where(withheld, np.uint8(REDACTED), self.mask))

    def ends_inside(self, begin: int, end: int) -> Int:
        """Return where documents end after token ``begin`` and up to token ``end``, counted from ``begin``, without repeats.

        >>> Window(np.arange(9), np.array([0, 3, 3, 5, 9])).ends_inside(1, 5).tolist()
        [2, 4]
        """
        first, last = self.ends.searchsorted(begin, side="right"), self.ends.searchsorted(end, side="right")
        ends = self.ends[first:last] - begin
        return np.unique(ends) if self.has_empty else ends  # documents without tokens repeat an end

    def sources_inside(self, begin: int, end: int) -> Int:
        """Return the number of the source of each token from ``begin`` to ``end`` (exclusive).

        >>> Window(np.arange(9), np.array([0, 3, 3, 5, 9]), sources=np.array([1, 0, 2, 1])).sources_inside(1, 6).tolist()
        [1, 1, 2, 2, 1]
        """
        assert self.sources is not None
        first, last = int(self.ends.searchsorted(begin, side="right")) - 1, int(self.ends.searchsorted(end))
        return np.repeat(self.sources[first:last], np.diff(self.ends[first : last + 1].clip(begin, end)))


def join_masks(masks: Sequence[NDArray[np.uint8] | None], lengths: Iterable[int]) -> NDArray[np.uint8] | None:
    """Return masks of these lengths end to end, with ones in place of None; None if all are None.

    >>> join_masks([None, np.array([0, 1], np.uint8)], [3, 2]).tolist()
    [1, 1, 1, 0, 1]
    """
    if all(mask is None for mask in masks):
        return None
    parts = zip(masks, lengths, strict=True)
    return np.concatenate([np.ones(length, np.uint8) if mask is None else mask for mask, length in parts])


class WindowListing(NamedTuple):
    """The documents of a window in their order: ``ends`` as in a `Window`, and the shard and number of each (int64)."""

    ends: Int
    shards: Int
    numbers: Int


class Listed(NamedTuple):
    """The documents of some blocks in file order. ``runs`` are the rows of the table of each block, as first and end."""

    runs: list[tuple[int, int]]
    starts: Int  # bytes before each document in the memory into which the blocks are read
    lengths: Int
    counts: list[int]  # of documents, by block
    size: int


class WindowMaker:
    """Makes the windows of ``order`` from ``data``, in the thread that calls `make`. ``order`` shuffles the extents of ``data``.

    Tokens of redacted documents are masked. Withheld documents become ``eos_id`` (None: later, by `Window.withhold`).
    ``sources`` is the number of the source of each shard, if rows name sources.
    An epoch of few tokens is one window, and its documents stay in memory. To make fewer windows, such a window holds several
    ``epochs``, of up to ``most`` tokens together.
    """

    def __init__(
        self,
        data: CountedData,
        order: Shuffle,
        *,
        most: int = 0,
        sources: Int | None = None,
        eos_id: int | None = None,
    ) -> None:
        self.source = data.ranges()
        self.order = order
        self._data = data
        self._sources, self._eos_id = sources, eos_id
        self._of_thread = threading.local()
        self._is_small = order.windows == 1 and order.blocks.bytes <= _SMALL
        units = max(1, order.tokens, order.documents)
        self.epochs = max(1, most // units) if self._is_small else 1

    @property
    def may_mask(self) -> bool:
        """Whether documents are redacted or withheld; a redaction adds some while the stream runs."""
        return bool(self._data.selection.redacted or self._data.selection.withheld)

    @property
    def _extents(self) -> Selection:
        return self._data.extents

    @property
    def dtype(self) -> np.dtype[Any]:
        """The stored type of token ids."""
        return self._data.dtype

    @property
    def mean_bytes(self) -> int:
        """The mean bytes of a window in the files."""
        return self.order.blocks.bytes // self.order.windows

    def make(self, epoch: int, number: int) -> Window:
        """Read the blocks of a window, and return their documents in order, for ``epochs`` epochs from ``epoch`` on.

        Raises ``CorruptShardError`` if an index contradicts the counts, or puts documents outside their block.
        """
        listed, memory = self.whole if self._is_small else self._read(self._blocks_of(epoch, number))
        order = self._document_order(listed, epoch, number)
        made = _in_order(memory, listed.starts, listed.lengths, order, self.dtype)
        if self.may_mask:
            shards, numbers = self.origins(listed)
            made = made._replace(mask=self.mask(shards[order], numbers[order], listed.lengths[order]))
            made = made if self._eos_id is None else made.withhold(self._eos_id)
        if self._sources is not None:
            of_blocks = [np.full(len(own), self._sources[shard]) for shard, own in self._blocks(listed)]
            made = made._replace(sources=np.concatenate([np.zeros(0, np.int64), *of_blocks])[order])
        if len(memory) <= _KEPT_BYTES and not self._is_small:
            self._of_thread.memory = memory.obj  # not after an error, since requests may still write to it
        return made

    def listing(self, epoch: int, number: int) -> WindowListing:
        """Return the documents of a window without reading tokens; raises the errors of `make`."""
        listed = self._list(self._blocks_of(epoch, number))
        order = self._document_order(listed, epoch, number)
        shards, numbers = self.origins(listed)
        return WindowListing(running_sums(listed.lengths[order]), shards[order], numbers[order])

    def origins(self, listed: Listed) -> tuple[Int, Int]:
        """Return the shard of each listed document, and its number there."""
        nothing, blocks = np.zeros(0, np.int64), list(self._blocks(listed))
        shards = [np.full(len(numbers), shard) for shard, numbers in blocks]
        return np.concatenate([nothing, *shards]), np.concatenate([nothing, *(numbers for _, numbers in blocks)])

    def _blocks(self, listed: Listed) -> Iterator[tuple[int, Int]]:
        """Yield the shard of each listed block, and the numbers of the block's documents in the shard."""
        table, sums = self._extents.table, self._extents.table.document_sums
        for first, last in listed.runs:
            begin, count = int(table.first_document_of(first)), int(sums[last] - sums[first])
            yield int(table.shard_of(first)), np.arange(begin, begin + count)[self._extents.documents_of(first, last)]

    def mask(self, shards: Int, numbers: Int, lengths: Int) -> NDArray[np.uint8] | None:
        """Return the mask of the tokens of documents; None if all count."""
        values = self._data.selection.mask(shards, numbers)
        return None if values is None else np.repeat(values, lengths)

    @cached_property
    def whole(self) -> tuple[Listed, memoryview]:
        """All documents of a small source, in file order. They stay in memory."""
        return self._read(np.arange(len(self.order.blocks)))

    def forget(self) -> None:
        """Read all documents again when they are needed next: they may have been redacted meanwhile."""
        vars(self).pop("whole", None)

    def _read(self, in_files: Int) -> tuple[Listed, memoryview]:
        listed = self._list(in_files)
        memory = self._memory(listed.size)
        self.source.read(listed.runs, memory)
        return listed, memory

    def _blocks_of(self, epoch: int, number: int) -> Int:
        return np.sort(self.order.epoch(epoch).window_blocks(number))

    def _list(self, in_files: Int) -> Listed:
        """Return the documents of ascending blocks in file order, so that neighbours are read together."""
        bounds = self.order.blocks.bounds
        first, last = self._extents.table_rows(bounds[in_files], bounds[in_files + 1])
        rows = list(zip(first.tolist(), last.tolist(), strict=True))
        sums, nothing = self._extents.table.size_sums, np.zeros(0, np.int64)  # a part of a split may have no documents
        offsets = [0, *accumulate(int(sums[last] - sums[first]) for first, last in rows)]
        indexes = [self._checked(*run, *index) for run, index in zip(rows, self.source.index(rows), strict=True)]
        starts = np.concatenate([nothing, *(begins + at for (begins, _), at in zip(indexes, offsets, strict=False))])
        lengths = np.concatenate([nothing, *(lengths for _, lengths in indexes)])
        return Listed(rows, starts, lengths, [len(lengths) for _, lengths in indexes], offsets[-1])

    def _document_order(self, listed: Listed, epoch: int, number: int) -> Int:
        """Return the order of the documents of a window, of all its epochs."""
        orders = [self._order_of_epoch(listed, each, number) for each in range(epoch, epoch + self.epochs)]
        return orders[0] if len(orders) == 1 else np.concatenate(orders)

    def _order_of_epoch(self, listed: Listed, epoch: int, number: int) -> Int:
        # The definition shuffles the list of documents in the order of the blocks; `listed` is in file order.
        order = self.order.document_order(epoch, number, len(listed.lengths))
        if len(listed.counts) == 1:
            return np.arange(len(listed.lengths)) if order is None else order
        counts, blocks = np.array(listed.counts, np.int64), self.order.epoch(epoch).window_blocks(number)
        places = np.sort(blocks).searchsorted(blocks)
        in_blocks = runs(running_sums(counts)[places], counts[places])
        return in_blocks if order is None else in_blocks[order]

    def _checked(self, first: int, last: int, starts: Int, counts: NDArray[np.uint32]) -> tuple[Int, Int]:
        """Return the bytes of a block before each streamed document, and the number of tokens of each."""
        table = self._extents.table
        shard, offset = int(table.shard_of(first)), int(table.offset_of(first))
        size = int(table.size_sums[last] - table.size_sums[first])
        begins, lengths = starts - offset, counts.astype(np.int64)
        documents, tokens = (int(sums[last] - sums[first]) for sums in (table.document_sums, table.token_sums))
        if (len(lengths), lengths.sum()) != (documents, tokens):
            raise CorruptShardError(
                f"{self.source.name(shard)}: documents from {int(table.first_document_of(first))} on: the index holds "
                f"{int(lengths.sum())} tokens in {len(lengths)} documents, but {tokens} in {documents} were counted before; the "
                "shard was replaced meanwhile: make the stream again"
            )
        ends = begins + lengths * table.itemsize
        outside = (begins < np.concatenate([[0], ends[:-1]])[: len(begins)]) | (ends > size)
        if outside.any():
            wrong = int(np.argmax(outside))
            raise CorruptShardError(
                f"{self.source.name(shard)}: the index puts a document of {int(lengths[wrong])} tokens at byte "
                f"{int(starts[wrong])}, outside its block of {size} bytes from byte {offset} or inside the document "
                "before; copy the shard again or rebuild it"
            )
        streamed = self._extents.documents_of(first, last)
        return begins[streamed], lengths[streamed]

    def _memory(self, size: int) -> memoryview:
        """Return memory that an earlier window of this thread used, or new memory."""
        used: NDArray[np.uint8] | None = self._of_thread.__dict__.pop("memory", None)
        if size > _KEPT_BYTES or used is None or len(used) < size:
            used = np.empty(size if size > _KEPT_BYTES else min(_KEPT_BYTES, size + size // 4), np.uint8)
        return used.data[:size]


def _in_order(memory: memoryview, starts: Int, lengths: Int, order: Int, dtype: np.dtype[Any]) -> Window:
    """Return documents, which start at ascending bytes of ``memory``, end to end in ``order``, which may repeat documents."""
    count = len(starts)
    ends = running_sums(lengths[order])
    if not ends[-1]:
        return Window(np.zeros(0, dtype), ends)
    # Binary values of Arrow are the bytes between neighbouring offsets. Here they are documents and the gaps after them, in turn.
    cuts = np.empty(2 * count + 1, np.int64)
    cuts[0:-1:2], cuts[1::2] = starts, starts + lengths * dtype.itemsize
    cuts[-1] = cuts[-2]
    values = pa.Array.from_buffers(pa.large_binary(), 2 * count, [None, pa.py_buffer(cuts), pa.py_buffer(memory)])
    # From buffers, since pa.array() imports pandas if it is installed.
    numbers = pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(2 * order)])
    taken = values.take(numbers).buffers()[2]
    return Window(np.frombuffer(taken, dtype, int(ends[-1])), ends, has_empty=not lengths.all())


Key = tuple[int, int]  # epoch, number of the window in it

_SMALL = 256 << 10  # bytes of a window that is made faster than a thread starts


class WindowCache:
    """Windows that ``maker`` makes, in threads or when they are read. Up to ``spare`` windows that no lane needs are kept.

    Threads keep memory, so the ``sources`` of a mix share the number of threads that one source would have.
    """

    def __init__(self, maker: WindowMaker, spare: int, sources: int = 1) -> None:
        self.bytes_read = 0
        self.maker = maker
        self._spare = spare
        self._needed: set[Key] = set()
        self._ready: dict[Key, Window] = {}  # the most recently made last
        self._pending: dict[Key, Future[Window]] = {}
        source = maker.source
        self._threads = (
            DaemonThreads(max(1, source.threads // sources), "windows")
            if source.threads > 4 or maker.mean_bytes > _SMALL
            else None
        )

    def request(self, keys: Iterable[Key]) -> None:
        """Have windows made in threads, in this order."""
        if self._threads is None:
            return
        for key in keys:
            if key not in self._ready and key not in self._pending:
                self._pending[key] = self._threads.submit(partial(self.maker.make, *key))

    def keep(self, keys: set[Key]) -> None:
        """Forget all windows except these, which stay until the next call."""
        self._needed = keys
        for key in self._pending.keys() - keys:
            self._pending.pop(key).cancel()
        for key in self._ready.keys() - keys:
            del self._ready[key]

    def get(self, key: Key) -> Window:
        """Return a window. It is made now if no thread has begun to make it."""
        window = self._ready.get(key)
        if window is not None:
            return window
        pending = self._pending.pop(key, None)
        window = self.maker.make(*key) if pending is None or pending.cancel() else pending.result()
        spare = [other for other in self._ready if other not in self._needed]
        for other in spare[: max(0, len(spare) + 1 - self._spare)]:
            del self._ready[other]
        self._ready[key] = window
        return window

    def close(self) -> None:
        """Stop threads."""
        for future in self._pending.values():
            future.cancel()
        if self._threads is not None:
            self._threads.close()
