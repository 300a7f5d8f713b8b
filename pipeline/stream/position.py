"""A position in a stream, and the part of the stream that a process iterates from there: its rank and its worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

MAX_NUMBER = 1 << 53  # in a position: no product of it overflows, and JSON keeps it exactly everywhere


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the stream; every item comes with the one after it.

    ``sequence_index``: the next sequence of the global order; ``skip``: items of this rank to pass over from there, for
    a loader's worker that takes every n-th; ``taken``: rows of the step that begins here which this rank has taken, where
    the position is inside one; ``pass_number``: the pass that it is in; ``given``: items that each ``take`` after a stage of
    the user has given, by the number of that stage; ``bound_to``: the stage that makes this position one rank's own, if any;
    ``weights``: (sequence index, weights as fractions) where a mix's were changed; ``lanes``: the cursors of a sequential
    stream by the number of their lane, None at the start of all.
    """

    sequence_index: int
    skip: int = 0
    taken: int = 0
    pass_number: int = 0
    given: dict[str, int] = field(default_factory=dict)
    bound_to: str | None = None
    weights: list[list[Any]] | None = None
    lanes: dict[str, list[int]] | None = None


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Worker ``worker`` of ``workers`` (0 of 1 outside a loader's workers) of rank ``rank`` of ``world_size``."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1


class WorkerShare(NamedTuple):
    """Which of its rank's items a loader's worker makes: ``skip`` are passed over, then every ``every``-th is made."""

    skip: int
    every: int
