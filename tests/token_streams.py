"""Token streams over shards in memory that count what they are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from pipeline.shards.extents.table import ExtentTable
from pipeline.shards.ranges.source import Index, Rows
from pipeline.stream.data.contents import Contents
from pipeline.stream.data.memory_ranges import MemoryRanges
from pipeline.stream.indexed.token_stream import TokenStream
from pipeline.stream.indexed.windows.block_pool import BlockPool
from pipeline.stream.order import Sequences, Shuffle

SIZES = st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=9).filter(
    lambda sizes: sum(map(sum, sizes)) > 0
)


class Shelf:
    """Shards in memory, each so small that it is one block, which count how often their blocks are brought."""

    def __init__(self, shards: list[list[list[int]]], *, waits: bool = True, copies: bool = False) -> None:
        self.waits = waits
        self.copies = self.rows_first = copies
        self.behind = False
        self.brought: list[int] = []
        self.asked: set[int] = set()
        self.alive = 0
        self._shards = []
        tables = []
        for documents in shards:
            lengths = np.array([len(d) for d in documents], dtype=np.int64)
            tokens = np.array([token for d in documents for token in d], dtype="<u2")
            tables.append(ExtentTable.of_documents(lengths, "<u2"))
            self._shards.append(MemoryRanges(tables[-1], tokens, lengths))
        self.table = ExtentTable.join(tables, "<u2")

    def _own(self, first: int) -> MemoryRanges:
        return self._shards[int(self.table.shard_numbers[first])]

    def index(self, firsts: Rows, lasts: Rows) -> Index:
        parts = [
            self._own(int(first)).index(firsts[k : k + 1] * 0, (lasts - firsts)[k : k + 1])
            for k, first in enumerate(firsts)
        ]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def memory(self, first: int, last: int) -> Any:
        self.brought.append(first)
        return self._own(first).memory(0, last - first)

    def memories(self, firsts: Rows, lasts: Rows) -> None:
        return

    def read(self, shard: int, offset: int, target: memoryview) -> None:
        self._shards[shard].read(0, offset, target)

    def read_all(self, wanted: list[tuple[int, int, memoryview]]) -> None:
        for each in wanted:
            self.read(*each)

    def ask(self, firsts: Rows, lasts: Rows) -> None:
        self.asked.update(firsts.tolist())

    def ask_index(self, firsts: Rows, lasts: Rows) -> None:
        return

    def ask_bytes(self, shard: int, offset: int, size: int) -> None:
        return

    def check(self, first: int, last: int) -> None:
        return

    def close(self) -> None:
        return


def stream_over(
    shards: list[list[list[int]]],
    window: int,
    seed: int | None,
    *,
    lanes: int = 1,
    stride: int = 0,
    width: int = 1,
    waits: bool = True,
    copies: bool = False,
    end: int | None = None,
) -> tuple[TokenStream, Shelf]:
    shelf = Shelf(shards, waits=waits, copies=copies)
    contents = Contents.whole(shelf.table)
    order = Shuffle(contents.blocks(), lanes, window, seed)
    sequences = Sequences(order.tokens, stride, lanes) if stride else None
    stream = TokenStream(order, BlockPool(shelf, contents, order), np.dtype("<u2"), sequences, width=width, end=end)
    return stream, shelf


def numbered(sizes: list[list[int]]) -> list[list[list[int]]]:
    token = iter(range(1, 60_000))
    return [[[next(token) for _ in range(n)] for n in shard] for shard in sizes]
