"""Packed sequences, by their sequence indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..batch.rows import RowBuffer, Rows
from ..order import Step
from ..order.mixture import Mixture
from ..windows.rows import TokenRows
from .core import IndexedReader


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

    def read(self, step: Step) -> Rows:
        """Return the tokens of a rank's rows of a step."""
        indices = step.indices()
        self._buffer.begin(len(indices))
        if (mixture := self._mixture) is None:
            return self._buffer.rows(self._rows[0].fill(self._buffer, list(range(len(indices))), indices))
        served: dict[int, tuple[list[int], list[int]]] = {}  # by source: rows, and their indices in its own stream
        for row, index in enumerate(indices.tolist()):
            own, lane = divmod(index, mixture.lanes)
            source, draw = mixture.source(own, lane)
            rows, owns = served.setdefault(source, ([], []))
            rows.append(row)
            owns.append(draw * mixture.lanes + lane)
        for source, (rows, owns) in served.items():
            self._rows[source].fill(self._buffer, rows, np.array(owns, np.int64))
        return self._buffer.rows()
