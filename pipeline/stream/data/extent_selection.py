"""What a source streams of its table of extents: all of them, or those that a selection keeps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...shards.extents.extent_table import ExtentTable, running_sums
from ..order import Blocks


@dataclass(frozen=True, eq=False)
class ExtentSelection:
    """The extents of a table that are streamed: ``rows`` of it, ascending (None: all)."""

    table: ExtentTable
    rows: NDArray[np.int64] | None = None

    def blocks(self, *, in_mix: bool = False) -> Blocks:
        """Cut blocks out of these extents, once."""
        if in_mix not in self._blocks:
            self._blocks[in_mix] = self._cut(in_mix)
        return self._blocks[in_mix]

    @cached_property
    def _blocks(self) -> dict[bool, Blocks]:
        return {}

    def _cut(self, in_mix: bool) -> Blocks:
        table, rows = self.table, self.rows
        if rows is None:
            return Blocks.of_extents(
                table.extents, table.size_sums, table.token_sums, table.document_sums, in_mix=in_mix
            )
        # A run of neighbours counts as a shard, so that a block is one range of a file.
        begins = np.flatnonzero((np.diff(rows, prepend=-2) != 1) | (np.diff(table.shard_of(rows), prepend=-1) != 0))
        runs = np.diff(begins, append=len(rows))
        sums = (running_sums(column[rows]) for column in (table.sizes, table.tokens, table.documents))
        return Blocks.of_extents(runs, *sums, in_mix=in_mix)

    def table_rows(
        self, first: NDArray[np.int64], last: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which rows of the table, first and behind the last, hold these extents ``first`` to before ``last``."""
        return (first, last) if self.rows is None else (self.rows[first], self.rows[last - 1] + 1)
