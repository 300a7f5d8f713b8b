"""Documents of an array in memory, read like the documents of shards."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..extents.extent_table import ExtentTable
from ..index import BlockIndex
from .block_reader import Runs


class MemoryBlocks:
    """Reads the documents of an array, which are one after the other."""

    threads = 2

    def __init__(self, table: ExtentTable, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        self._table = table
        self._bytes = tokens.view(np.uint8).data
        self._lengths = lengths.astype("<u4")
        self._starts = (np.cumsum(lengths) - lengths) * tokens.itemsize

    def name(self, shard: int) -> str:
        return "the array"

    def index(self, runs: Runs) -> list[BlockIndex]:
        documents = [slice(*self._table.document_sums[[first, last]].tolist()) for first, last in runs]
        return [(self._starts[part], self._lengths[part]) for part in documents]

    def read(self, runs: Runs, out: memoryview) -> None:
        at = 0
        for first, last in runs:
            begin, end = self._table.size_sums[[first, last]].tolist()  # a run is in one shard
            out[at : at + end - begin] = self._bytes[begin:end]
            at += end - begin
