"""Packed sequences of several sources, row by row as a mixture says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..batch.rows import RowBuffer, Rows
from ..order import Sequences, Step
from ..order.mixture import Mixture
from ..windows.rows import TokenRows


def source_shares(mixture: Mixture, orders: Sequence[Sequences], i: int) -> dict[str, dict[str, Any]]:
    """Return what each source has of the first ``i`` sequences (see `Mixture.shares`), and its ``epoch``."""
    shares = mixture.shares(i)
    return {
        name: {**share, "epoch": order.epoch(share["sequences"])}
        for (name, share), order in zip(shares.items(), orders, strict=True)
    }


class MixedSequences:
    """Endless packed sequences of several sources, each cut by its own ``rows``; ``boundaries``: with the ends of documents."""

    alignment = 1
    cursors: None = None

    def __init__(
        self,
        rows: Mapping[str, TokenRows],
        mixture: Mixture,
        dtype: np.dtype[np.unsignedinteger],
        *,
        boundaries: bool,
    ) -> None:
        self.mixture = mixture
        self.rank_period = mixture.lanes
        self._rows = [rows[name] for name in mixture.names]
        first = self._rows[0]
        self._buffer = RowBuffer(first.width, dtype, with_ends=boundaries, with_masks=first.masks)

    def stats(self, sequence_index: int) -> dict[str, Any]:
        """Return the bytes read, the epoch of the source that has come least far, and what each source served."""
        shares = source_shares(self.mixture, [rows.lanes.sequences for rows in self._rows], sequence_index)
        read = sum(rows.bytes_read for rows in self._rows)
        return {"bytes_read": read, "epoch": min(each["epoch"] for each in shares.values()), "sources": shares}

    def read(self, step: Step) -> Rows:
        """Return the tokens of a rank's rows of a step."""
        indices = step.indices()
        self._buffer.begin(len(indices))
        served: dict[int, tuple[list[int], list[int]]] = {}  # by source: rows, and their indices in its own stream
        lanes = self.mixture.lanes
        for row, index in enumerate(indices.tolist()):
            own, lane = divmod(index, lanes)
            source, draw = self.mixture.source(own, lane)
            rows, owns = served.setdefault(source, ([], []))
            rows.append(row)
            owns.append(draw * lanes + lane)
        for source, (rows, owns) in served.items():
            self._rows[source].fill(self._buffer, rows, np.array(owns, np.int64))
        return self._buffer.rows()

    def close(self) -> None:
        """Stop threads and close files."""
        for rows in self._rows:
            rows.lanes.windows.close()
