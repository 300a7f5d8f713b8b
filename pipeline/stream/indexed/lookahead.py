"""Where the rows of a step lie, found together with those of the steps behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ..order import Sequences, Step
from .token_stream import Piece

T = TypeVar("T")

ROWS_AHEAD = 4096  # of one rank, whose places are found in one array operation
_GROWTH = 8  # times as many steps as the time before
_PART = 8  # of a window, that a lane comes on by in that time: windows stay until all of these sequences are read


class StepCounts:
    """How many steps are looked for together: one at first, so that a first batch waits for no other, then ever more."""

    def __init__(self) -> None:
        self._steps = 1

    def next(self, step: Step, last: int, sequences: int) -> tuple[int, int]:
        """Return the distance of steps and how many from ``step`` on, where ``last`` (-1: none) is where one began before.

        They hold at most ``sequences``, those of other ranks included.
        """
        follows = 0 <= last < step.begin and (step.begin - last) % step.size == 0
        distance = step.begin - last if follows else step.size
        most = min(ROWS_AHEAD // max(1, len(step)), sequences // distance)
        self._steps = max(1, min(_GROWTH * self._steps, most)) if follows else 1
        return distance, self._steps


def sequences_ahead(order: Sequences, window: int) -> int:
    """Return how many sequences are looked for together, at most; windows hold ``window`` units of the order."""
    return max(1, window // (_PART * order.stride)) * order.lanes


@dataclass(frozen=True, slots=True)
class FoundSteps(Generic[T]):
    """What was found for ``count`` steps that begin ``distance`` apart, from ``begin`` on: ``rows_of(k)`` gives the k-th's."""

    begin: int
    distance: int
    count: int
    rows_of: Callable[[int], T]


class StepsAhead(Generic[T]):
    """The rows of steps, found together with those of later ones and kept until they are asked for."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()
        self._found: FoundSteps[T] | None = None
        self._last = -1
        self._rows: T | None = None

    def rows(self, step: Step, look: Callable[[Step, int], FoundSteps[T]]) -> T:
        """Return what ``look(step, last)`` finds for a whole step, or found with an earlier one.

        ``last`` is where the step before began that was asked for, -1 for none. ``look`` is not stored: it is a method of an
        object that stores this one, and a reference cycle would keep all windows in memory.
        """
        shape = step.size, step.rank, step.ranks
        if self._rows is None or step.begin != self._last or shape != self._shape:
            found, number, beside = self._found, 0, 1
            if found is not None and shape == self._shape and step.begin > self._last:
                number, beside = divmod(step.begin - found.begin, found.distance)
            if found is None or beside or number >= found.count:
                found, number = look(step, self._last), 0
            self._shape, self._found, self._last, self._rows = shape, found, step.begin, found.rows_of(number)
        return self._rows


class Lookahead:
    """The places of the rows of steps, in an order of sequences; ``prepare`` is told of all that were found together.

    Windows hold ``window`` units of the order each.
    """

    def __init__(self, order: Sequences, prepare: Callable[[list[Piece]], None], window: int) -> None:
        self._order = order
        self._prepare = prepare
        self._sequences = sequences_ahead(order, window)
        self._counts = StepCounts()
        self._ahead: StepsAhead[list[Piece]] = StepsAhead()

    def pieces(self, step: Step) -> list[Piece]:
        """Return the rows of a step that the rank takes, epoch by epoch; a row's number counts from the step's first row."""
        found = self._ahead.rows(step, self._look)
        if step.first == 0 and step.last is None:
            return found
        return [only_rows(piece, step.first, step.first + len(step)) for piece in found]

    def _look(self, step: Step, last: int) -> FoundSteps[list[Piece]]:
        """Find the places of a step and, if it lies in one epoch, of those behind it there."""
        order, whole = self._order, step.rows(0, None)
        epoch = order.epoch(step.begin)
        first, after = order.first(epoch), order.first(epoch + 1)
        if step.begin + step.size > after:
            pieces = self._across(whole)
            self._prepare(pieces)
            return FoundSteps(step.begin, step.size, 1, lambda _: pieces)
        distance, count = self._counts.next(whole, last, self._sequences)
        count = min(count, (after - step.begin - step.size) // distance + 1)
        offsets = whole.offsets_ahead(distance, max(1, count))
        inside = offsets + (np.arange(len(offsets)) * distance + (step.begin - first))[:, None]
        places, lanes = order.places(epoch, inside)
        lanes = (lanes + first) % order.lanes
        rows = np.arange(offsets.shape[1])
        self._prepare([Piece(epoch, rows, places.ravel(), lanes.ravel())])
        return FoundSteps(step.begin, distance, len(offsets), lambda k: [Piece(epoch, rows, places[k], lanes[k])])

    def _across(self, step: Step) -> list[Piece]:
        """Find the places of a step that lies in several epochs."""
        order, offsets = self._order, step.offsets()
        pieces, rows, done = [], np.arange(len(offsets)), 0
        while done < step.size:
            epoch = order.epoch(step.begin + done)
            first, after = order.first(epoch), order.first(epoch + 1)
            end = min(step.size, after - step.begin)
            mine = rows[(offsets >= done) & (offsets < end)]
            if len(mine):
                places, lanes = order.places(epoch, offsets[mine] + (step.begin - first))
                pieces.append(Piece(epoch, mine, places, (lanes + first) % order.lanes))
            done = end
        return pieces


def only_rows(piece: Piece, first: int, last: int) -> Piece:
    """Return the rows ``first`` to before ``last`` of a piece, counted from ``first``."""
    mine = (piece.rows >= first) & (piece.rows < last)
    return Piece(piece.epoch, piece.rows[mine] - first, piece.places[mine], piece.lanes[mine])
