"""What windows are read from: the indexes and the bytes of extents, by calls that block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

BlockIndex = tuple[
    NDArray[np.int64], NDArray[np.uint32]
]  # where documents start in their file (bytes), and their tokens
Runs = Sequence[tuple[int, int]]  # extents of one shard each: rows of a table, the first and the one behind the last


class BlockReader(Protocol):
    """Documents by runs of extents, in the order of the table.

    Threads share a source. ``threads`` is how many calls are worth making side by side. Errors name the shard and the byte.
    """

    threads: int

    def name(self, shard: int) -> str:
        """Return what errors call a shard."""

    def index(self, runs: Runs) -> list[BlockIndex]:
        """Return the index of the documents of each run, compared with its checksums."""

    def read(self, runs: Runs, out: memoryview) -> None:
        """Fill ``out`` with the bytes of runs, one behind the other."""


def as_index(starts: bytes | bytearray, lengths: bytes | bytearray) -> BlockIndex:
    """Return an index of its bytes, as shards hold them.

    >>> as_index(bytes([0, 2, 0, 0, 0, 0, 0, 0]), bytes([7, 0, 0, 0]))
    (array([512]), array([7], dtype=uint32))
    """
    return np.frombuffer(starts, "<i8"), np.frombuffer(lengths, "<u4")
