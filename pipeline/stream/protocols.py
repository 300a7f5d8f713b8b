"""The protocol between readers and what drives them: a reader gives the rows of a step, a collator makes a batch of them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeVar

from .batch.batch_types import Batch
from .order import RankStep

R_out = TypeVar("R_out", covariant=True)
R_in = TypeVar("R_in", contravariant=True)


class WorkerShare(NamedTuple):
    """Which of its rank's items a loader's worker makes: ``skip`` are passed over, then every ``every``-th is made."""

    skip: int
    every: int


class Reader(Protocol[R_out]):
    """Gives a rank's rows of one step after another, packed (`Rows`) or whole documents (`DocumentRows`).

    An indexed reader finds the rows of any step by arithmetic. A sequential reader goes on from cursors, so it gives the
    rows of a step once, in their order. What drives a reader does not ask which it is.

    ``cursors``: where each lane of a sequential reader stands after the rows that were read last, by the lane's number;
    None of an indexed reader, whose position is the sequence index alone. ``tokens_read``: those of the rows that each source
    gave.
    """

    tokens_read: list[int]

    @property
    def cursors(self) -> dict[str, list[int]] | None: ...

    def read(self, step: RankStep) -> R_out:
        """Return the rows of a step, which are valid until the next call."""

    def stats(self) -> dict[str, Any]:
        """Return ``bytes_read``, and what else this kind of reader counts."""

    def tokens_left(self) -> int:
        """Return how many tokens are known that no row holds yet; 0 of an indexed reader, whose end is known."""

    def close(self) -> None:
        """Stop threads and give back files."""


class Collator(Protocol[R_in]):
    """Makes a batch of the rows of a step, a pure function of them and of the step's first sequence index ``begin``."""

    def __call__(self, rows: R_in, begin: int) -> Batch:
        """Return the batch, in arrays of its own."""
