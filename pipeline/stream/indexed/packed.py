"""Packed sequences of one source, by their sequence indices."""

from __future__ import annotations

import numpy as np

from ..batch.rows import RowBuffer, Rows
from ..order import Step
from ..windows.rows import TokenRows
from .core import IndexedReader


class PackedSequences(IndexedReader):
    """Sequences of tokens, those of the labels included, as ``rows`` cuts them; ``boundaries``: rows say where documents end."""

    def __init__(self, rows: TokenRows, dtype: np.dtype[np.unsignedinteger], *, boundaries: bool) -> None:
        super().__init__(rows.lanes)
        self._rows = rows
        self._buffer = RowBuffer(rows.width, dtype, with_ends=boundaries, with_masks=rows.masks)

    def read(self, step: Step) -> Rows:
        """Return the tokens of a rank's rows of a step."""
        indices = step.indices()
        self._buffer.begin(len(indices))
        existing = self._rows.fill(self._buffer, list(range(len(indices))), indices)
        return self._buffer.rows(existing)
