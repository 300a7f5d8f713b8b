"""Packed sequences, by their sequence indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..batch.rows import RowBuffer, Rows
from ..order import RankStep
from ..order.mixture import Mixture
from ..windows.rows import TokenRows
from .core import IndexedReader


class PackedSequences(IndexedReader):
    """Sequences of tokens, those of the labels included, as the ``rows`` of each source cut them.

    ``boundaries``: rows say where documents end. ``mixture`` is that of `IndexedReader`.
    """

    def __init__(
        self,
        rows: Sequence[TokenRows],
        dtype: np.dtype[np.unsignedinteger],
        *,
        boundaries: bool,
        mixture: Mixture | None = None,
    ) -> None:
        super().__init__([source.lanes for source in rows], mixture)
        self._rows = rows
        self._buffer = RowBuffer(rows[0].width, dtype, with_ends=boundaries, with_masks=rows[0].masks)

    def read(self, step: RankStep) -> Rows:
        """Return the tokens of a rank's rows of a step."""
        indices, existing = step.indices(), None
        self._buffer.begin(len(indices))
        for source, rows, in_source, positions in self._served(indices):
            existing = self._rows[source].fill(self._buffer, rows, in_source, positions)
        return self._buffer.rows(existing)  # which no source of a mix bounds

    def _existing(self, source: int, position: int) -> int:
        return self._rows[source].existing(position)
