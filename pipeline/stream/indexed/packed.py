"""Packed sequences, by their sequence indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..batch.rows import RowBuffer, Rows
from ..order import RankStep
from ..order.mixture import Mixture
from ..windows.rows import TokenRows
from .core import IndexedReader, Location

Int = NDArray[np.int64]


class PackedSequences(IndexedReader):
    """Sequences of tokens, those of the labels included, as the ``rows`` of each source cut them.

    ``boundaries``: rows say where documents end. ``mixture`` says which of several sources serves a sequence.
    """

    def __init__(
        self,
        rows: Sequence[TokenRows],
        dtype: np.dtype[np.unsignedinteger],
        *,
        boundaries: bool,
        mixture: Mixture | None = None,
    ) -> None:
        super().__init__([source.lanes for source in rows])
        self._mixture = mixture
        self._rows = rows
        self._buffer = RowBuffer(rows[0].width, dtype, with_ends=boundaries, with_masks=rows[0].masks)

    def read(self, step: RankStep) -> Rows:
        """Return the tokens of a rank's rows of a step."""
        indices = step.indices()
        self._buffer.begin(len(indices))
        if self._mixture is None:
            positions = self._rows[0].lanes.positions(indices)
            return self._buffer.rows(self._rows[0].fill(self._buffer, list(range(len(indices))), indices, positions))
        drawn = []
        for source, (rows, owns) in self._served(indices).items():
            own_indices = np.array(owns, np.int64)
            drawn.append((self._rows[source], rows, own_indices, self._rows[source].lanes.positions(own_indices)))
        for source_rows, _, *own in drawn:  # windows of all sources are read side by side
            source_rows.lanes.request(*own)
        for source_rows, rows, *own in drawn:
            source_rows.fill(self._buffer, rows, *own)
        return self._buffer.rows()

    def locate(self, indices: Int) -> list[Location]:
        """Return where sequences begin: of each the lanes of its source, and the position there."""
        located: list[Location | None] = [None] * len(indices)
        for source, (rows, owns) in self._served(indices).items():
            lanes = self._rows[source].lanes
            for row, position in zip(rows, lanes.positions(np.array(owns, np.int64)).tolist(), strict=True):
                located[row] = Location(lanes, position, self._rows[source].existing(position))
        return [location for location in located if location is not None]

    def _served(self, indices: Int) -> dict[int, tuple[list[int], list[int]]]:
        """Return of each source the rows that it serves, and their indices in its own stream."""
        if (mixture := self._mixture) is None:
            return {0: (list(range(len(indices))), indices.tolist())}
        served: dict[int, tuple[list[int], list[int]]] = {}
        for row, index in enumerate(indices.tolist()):
            own, lane = divmod(index, mixture.lanes)
            source, draw = mixture.source(own, lane)
            rows, owns = served.setdefault(source, ([], []))
            rows.append(row)
            owns.append(draw * mixture.lanes + lane)
        return served
