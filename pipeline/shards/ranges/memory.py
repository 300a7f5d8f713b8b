"""Documents of an array in memory, read as those of shards are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..extents.table import ExtentTable
from .source import Index


class MemoryRanges:
    """Documents of an array, one behind the other."""

    threads = 2

    def __init__(self, table: ExtentTable, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        self._table = table
        self._bytes = tokens.view(np.uint8).data
        self._lengths = lengths.astype("<u4")
        self._starts = (np.cumsum(lengths) - lengths) * tokens.itemsize

    def name(self, shard: int) -> str:
        return "the array"

    def index(self, first: int, last: int) -> Index:
        documents = slice(*self._table.document_sums[[first, last]].tolist())
        return self._starts[documents], self._lengths[documents]

    def read(self, first: int, last: int, out: memoryview) -> None:
        begin = int(self._table.offset_of(first))
        out[:] = self._bytes[begin : begin + len(out)]
