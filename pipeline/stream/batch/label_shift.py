"""Shifts drawn again for each step: how far ahead of its inputs the labels of a whole global batch lie.

A step is one batch on every rank, or before ``batch`` one sequence on every rank. Its shift is a divisor of ``seq_len``
below it, drawn by a hash of (seed, the step's first global sequence): equal on all ranks and workers, and the same after
resuming. With another batch size or world size the steps begin elsewhere, so they draw other shifts; the inputs stay the
same.
"""

from __future__ import annotations

from collections.abc import Callable

from ..order import derive_key
from .batch_types import Batch
from .collate import PackCollator
from .row_buffer import Rows


def divisors_below(number: int) -> list[int]:
    """Return the divisors of ``number`` below it, ascending.

    >>> divisors_below(12)
    [1, 2, 3, 4, 6]
    """
    low = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)} - {number})


class DrawnShifts:
    """Make the batches of one step after another, each with labels at a shift of its own.

    Gives what a `PackCollator` does, with ``input_ids``, ``labels`` and, with boundaries, ``position_ids`` as
    ``[batch, seq_len // shift, shift]``, row-major, and ``shift`` (int); places in the flattened batch stay as they are.
    ``collator(shift)`` makes the collator of one shift.
    """

    def __init__(self, seq_len: int, seed: int, collator: Callable[[int], PackCollator]) -> None:
        self.seed = seed
        self._collators = [collator(shift) for shift in divisors_below(seq_len)]

    def __call__(self, rows: Rows, begin: int) -> Batch:
        """Collate the rows of the step whose first sequence index is ``begin``."""
        collate = self._of_step(begin)
        batch, shape = collate(rows, begin), (collate.size, -1, collate.shift)
        batch["input_ids"], batch["labels"] = batch["input_ids"].reshape(shape), batch["labels"].reshape(shape)
        if "position_ids" in batch:
            batch["position_ids"] = batch["position_ids"].reshape(shape)
        batch["shift"] = collate.shift
        return batch

    def _of_step(self, begin: int) -> PackCollator:
        return self._collators[derive_key("shift", self.seed, begin) % len(self._collators)]
