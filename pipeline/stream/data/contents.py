"""What a source streams of its table of extents: all documents, or those that a selection keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...shards.extents.table import ExtentTable, running_sums
from ..order import Blocks

Kept = Callable[[int, int, int], NDArray[np.bool_]]


@dataclass(frozen=True, eq=False)
class Contents:
    """The extents of a table that hold something to stream: ``rows`` of it, ascending (None: all).

    ``size_sums`` (bytes), ``token_sums`` and ``document_sums`` are running sums of what is streamed of each.
    ``kept(shard, first, count)`` says which of a shard's documents that is (None: all). ``sparse``: documents are read
    alone, not blocks whole.
    """

    table: ExtentTable
    size_sums: NDArray[np.int64]
    token_sums: NDArray[np.int64]
    document_sums: NDArray[np.int64]
    rows: NDArray[np.int64] | None = None
    kept: Kept | None = None
    sparse: bool = False

    @classmethod
    def whole(cls, table: ExtentTable) -> Contents:
        """Return all that a table describes."""
        return cls(table, table.size_sums, table.token_sums, table.document_sums)

    @classmethod
    def selected(
        cls, table: ExtentTable, tokens: NDArray[np.int64], documents: NDArray[np.int64], kept: Kept
    ) -> Contents:
        """Return what a selection keeps: ``tokens`` and ``documents`` are those kept of every extent of the table."""
        rows = np.flatnonzero(documents)
        sparse = 4 * int(tokens.sum()) < int(table.token_sums[-1])
        sizes = tokens[rows] * table.itemsize if sparse else table.sizes[rows]
        size_sums, token_sums, document_sums = (running_sums(each) for each in (sizes, tokens[rows], documents[rows]))
        return cls(table, size_sums, token_sums, document_sums, rows, kept, sparse)

    def blocks(self, *, in_mix: bool = False) -> Blocks:
        """Cut blocks out of these extents, once."""
        if in_mix not in self._blocks:
            self._blocks[in_mix] = self._cut(in_mix)
        return self._blocks[in_mix]

    @cached_property
    def _blocks(self) -> dict[bool, Blocks]:
        return {}

    def _cut(self, in_mix: bool) -> Blocks:
        counts = self.table.extents
        if self.rows is not None:
            bounds = np.searchsorted(self.rows, self.table.shard_bounds)
            counts = np.diff(bounds)
        return Blocks.of_extents(counts, self.size_sums, self.token_sums, self.document_sums, in_mix=in_mix)

    def table_rows(
        self, first: NDArray[np.int64], last: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which rows of the table, first and behind the last, hold these extents ``first`` to before ``last``."""
        return (first, last) if self.rows is None else (self.rows[first], self.rows[last - 1] + 1)


@dataclass(frozen=True, eq=False)
class Selection:
    """Which documents of a source are kept: a bit for each in ``bits`` (uint8), each shard's from a byte of its own on.

    ``tokens`` and ``documents`` (int64) are those kept of each extent, ``firsts`` the first byte of each shard.
    """

    bits: NDArray[np.uint8]
    tokens: NDArray[np.int64]
    documents: NDArray[np.int64]
    firsts: NDArray[np.int64]

    @classmethod
    def whole(cls, table: ExtentTable) -> Selection:
        """Return all that a table describes."""
        firsts = _firsts(table)
        bits = np.full(int(firsts[-1]), 255, np.uint8)
        return cls(bits, table.tokens.astype(np.int64), table.documents.astype(np.int64), firsts)

    def keeps(self, shard: int, first: int, count: int) -> NDArray[np.bool_]:
        """Say which of ``count`` documents of a shard from the ``first`` on are kept."""
        begin, skipped = int(self.firsts[shard]) + first // 8, first % 8
        bits = np.unpackbits(self.bits[begin : begin + (skipped + count + 7) // 8])
        return bits[skipped : skipped + count].astype(bool)

    def without(self, other: Selection) -> Selection:
        """Return what this keeps and another, which keeps some of it, does not."""
        counts = self.tokens - other.tokens, self.documents - other.documents
        return Selection(self.bits & ~other.bits, *counts, self.firsts)


def _firsts(table: ExtentTable) -> NDArray[np.int64]:
    """Return the first byte of each shard's bits, and behind the last."""
    return running_sums(-(-table.per_shard(table.document_sums) // 8))
