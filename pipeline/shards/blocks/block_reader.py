"""The interface by which windows are read: the indexes and the bytes of extents, by calls that block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..index import BlockIndex

Runs = Sequence[tuple[int, int]]  # runs of extents, each in one shard: rows [first, last) of a table


class BlockReader(Protocol):
    """Reads documents by runs of extents, in the order of the table.

    Threads share a reader. ``threads``: how many calls to make at once. Errors name the shard and the byte.
    """

    threads: int

    def name(self, shard: int) -> str:
        """Return the name by which errors call a shard."""

    def index(self, runs: Runs) -> list[BlockIndex]:
        """Return the index of the documents of each run, compared with its checksums."""

    def read(self, runs: Runs, out: memoryview) -> None:
        """Fill ``out`` with the bytes of runs, one after the other."""
