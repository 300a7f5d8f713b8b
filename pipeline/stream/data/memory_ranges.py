"""Documents of an array in memory, read as those of shards are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...shards.extents.table import ExtentTable
from ...shards.ranges.source import Index, Rows


@dataclass(frozen=True, eq=False)
class InMemory:
    """Where bytes of an array begin; the array stays alive with this."""

    address: int
    owner: Any


class MemoryRanges:
    """Documents of an array, one behind the other."""

    waits = copies = behind = rows_first = False

    def __init__(self, table: ExtentTable, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        self._table = table
        self._tokens = tokens
        self._lengths = lengths.astype("<u4")
        self._starts = (np.cumsum(lengths) - lengths) * tokens.itemsize

    def index(self, firsts: Rows, lasts: Rows) -> Index:
        sums = self._table.document_sums
        parts = [slice(first, last) for first, last in zip(sums[firsts].tolist(), sums[lasts].tolist(), strict=True)]
        starts, lengths = ([column[:0], *(column[part] for part in parts)] for column in (self._starts, self._lengths))
        return np.concatenate(starts), np.concatenate(lengths)

    def memory(self, first: int, last: int) -> InMemory:
        return InMemory(self._tokens.ctypes.data + int(self._table.offset_of(first)), self._tokens)

    def memories(self, firsts: Rows, lasts: Rows) -> tuple[NDArray[np.int64], Any]:
        return self._tokens.ctypes.data + self._table.offset_of(firsts), self._tokens

    def check(self, first: int, last: int) -> None:
        return

    def read(self, shard: int, offset: int, target: memoryview) -> None:
        target[:] = self._tokens.view(np.uint8).data[offset : offset + len(target)]

    def read_all(self, wanted: list[tuple[int, int, memoryview]]) -> None:
        for each in wanted:
            self.read(*each)

    def ask(self, firsts: Rows, lasts: Rows) -> None:
        return

    def ask_index(self, firsts: Rows, lasts: Rows) -> None:
        return

    def ask_bytes(self, shard: int, offset: int, size: int) -> None:
        return

    def close(self) -> None:
        return
