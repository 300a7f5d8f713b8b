"""Rows cut into shorter rows, for a sequence length that grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .batch_keys import Batch
from .row_buffer import Collator, Rows


@dataclass(frozen=True, slots=True)
class CutCollator:
    """Make batches by ``collate`` of rows of ``seq_len`` tokens that are cut into rows of ``length``.

    Of the rows that one row is cut into, the batch has those whose numbers are in ``pieces``, one after another.
    """

    collate: Collator[Any]
    seq_len: int
    length: int
    pieces: range

    def __call__(self, rows: Rows, begin: int) -> Batch:
        """Collate the rows of a step."""
        labels_ahead = rows.tokens.shape[1] - self.seq_len
        begins = [piece * self.length for piece in self.pieces]
        return self.collate(rows.cut(begins, self.length + labels_ahead), begin)
