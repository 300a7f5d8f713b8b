"""A small source of a sequential stream, held in memory once: all lanes take copies of their documents, in all epochs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...shards.extents.extent_table import running_sums, runs
from ..order import Shuffle
from .window import Window, WindowMaker

Int = NDArray[np.int64]


class HeldSource:
    """The documents of all blocks of ``maker``, numbered in file order.

    They are read when they are first needed, and again for each epoch, because they may have been redacted meanwhile.
    """

    def __init__(self, maker: WindowMaker) -> None:
        self._maker = maker
        self._epoch = 0

    def begin(self, epoch: int) -> None:
        """Forget the documents as they were in earlier epochs. Lanes that are still in these epochs get them as they are now."""
        if epoch > self._epoch:
            self._epoch = epoch
            self._maker.forget()

    @cached_property
    def _origins(self) -> tuple[Int, Int]:
        return self._maker.origins(self._maker.whole[0])

    def numbers(self, order: Shuffle, epoch: int, window: int) -> Int:
        """Return the documents of a window of an order of the same blocks."""
        counts, blocks = np.array(self._maker.whole[0].counts, np.int64), order.epoch(epoch).window_blocks(window)
        listed = runs(running_sums(counts)[blocks], counts[blocks])
        shuffled = order.document_order(epoch, window, len(listed))
        return listed if shuffled is None else listed[shuffled]

    def cuts(self, numbers: Int, most: int) -> list[int]:
        """Return where to cut documents into parts of at most ``most`` bytes, or of one document."""
        cuts, size = [0], 0
        for at, tokens in enumerate(self._maker.whole[0].lengths[numbers].tolist()):
            size += tokens * self._maker.dtype.itemsize
            if size > most and at > cuts[-1]:
                cuts.append(at)
                size = tokens * self._maker.dtype.itemsize
        return [*cuts, len(numbers)]

    def window(self, numbers: Int, *, with_origins: bool) -> Window:
        """Return these documents, copied out of the memory."""
        (listed, memory), dtype = self._maker.whole, self._maker.dtype
        starts, lengths = listed.starts[numbers], listed.lengths[numbers]
        spans = zip(starts.tolist(), (starts + lengths * dtype.itemsize).tolist(), strict=True)
        tokens = np.frombuffer(b"".join([memory[begin:end] for begin, end in spans]), dtype)
        origins: Sequence[tuple[int, int]] | None = None
        mask = None
        if with_origins or self._maker.may_mask:
            shards, of_shard = (each[numbers] for each in self._origins)
            origins = list(zip(shards.tolist(), of_shard.tolist(), strict=True)) if with_origins else None
            mask = self._maker.mask(shards, of_shard, lengths)
        return Window(tokens, running_sums(lengths), mask=mask, origins=origins)
