"""Shifts drawn anew for each step: how far ahead of its inputs the labels of a whole global batch lie.

A step is one batch on every rank, or before ``batch`` one sequence on every rank. Its shift is a divisor of ``seq_len``
below it, drawn by a hash of (seed, the step's first global sequence): equal on all ranks and workers, and the same after
resuming. With another batch size or world size the steps begin elsewhere, so they draw other shifts; the inputs stay the
same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .batches import Batch, PackCollator
from .order import Step, derive_key


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
        self._shifts = divisors_below(seq_len)
        self._collators = {shift: collator(shift) for shift in self._shifts}

    def of_step(self, first: int) -> Callable[[Any, Step, int], Batch]:
        """Return the collator of the step whose first global sequence is ``first``."""
        shift = self._shifts[derive_key("shift", self.seed, first) % len(self._shifts)]
        collate = self._collators[shift]

        def reshaped(core: Any, numbers: Step, size: int) -> Batch:
            batch = collate(core, numbers, size)
            for key in ("input_ids", "labels", "position_ids"):
                if key in batch:
                    batch[key] = batch[key].reshape(size, -1, shift)
            return {**batch, "shift": shift}

        return reshaped
