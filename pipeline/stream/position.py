"""A position in a stream, and the part of the stream that a process iterates from there: its rank and its worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

MAX_NUMBER = 1 << 53  # of a position: no product of it overflows, and every JSON parser keeps it exactly


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the stream; every item carries the position after it.

    - ``sequence_index``: the next sequence of the global order.
    - ``skip``: how many items of this rank to skip from there, for a loader's worker that takes every n-th.
    - ``rows_taken``: how many rows of the step that begins here this rank has taken, if the position is inside a step.
    - ``pass_number``: the pass of the position.
    - ``given``: how many items each ``take`` after a stage of the user has given, by the number of that stage.
    - ``bound_to``: the stage that binds this position to one rank, if any.
    - ``weights``: (sequence index, weights as fractions) of each change to a mix's weights.
    - ``lanes``: the cursors of a sequential stream by lane number; None if all lanes are at the start.
    """

    sequence_index: int
    skip: int = 0
    rows_taken: int = 0
    pass_number: int = 0
    given: dict[str, int] = field(default_factory=dict)
    bound_to: str | None = None
    weights: list[list[Any]] | None = None
    lanes: dict[str, list[int]] | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """Worker ``worker`` of ``workers`` (0 of 1 outside a loader's workers) of rank ``rank`` of ``world_size``."""

    rank: int
    world_size: int
    worker: int = 0
    workers: int = 1


class WorkerShare(NamedTuple):
    """Which items of its rank a loader's worker makes: it skips ``skip``, then makes every ``every``-th."""

    skip: int
    every: int
