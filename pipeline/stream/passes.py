"""Passes: the sequences of each pass, the number of its items, and the pass of a position.

Pass ``e`` of a stream with ``epochs=E`` is the epochs ``e * E`` to ``(e + 1) * E``, cut from their own first token; ``take``
keeps its first steps. If ``take(n)`` bounds an endless stream, pass ``e`` is its ``e``-th run of ``n`` steps. So all passes of
an indexed stream have the same number of steps. Pass ``e`` of an endless or a sequential stream begins with epoch ``e``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..errors import ConfigError
from .lanes import NUMBERS
from .order import RankStep, Sequences
from .position import MAX_NUMBER, Position, Topology
from .settings import StreamSettings


class Passes:
    """The passes of a stream that ``world_size`` ranks share.

    If passes ``exist``, ``set_epoch`` can move the stream. A mix has no epochs, so it has passes only with ``take``.
    An ``endless`` stream is ended neither by ``epochs`` nor by ``take``. If items are ``countable``, arithmetic says how many
    are left. ``take_limit`` is the number of sequences of a pass that ``take`` keeps. ``sequences`` and ``lanes`` are functions
    because their results may be missing or read data: where epochs begin (None for a mix or a sequential stream, which has only
    epoch 0 here), and the number of lanes.
    """

    def __init__(
        self,
        settings: StreamSettings,
        world_size: int,
        *,
        take_limit: int | None,
        sequences: Callable[[], Sequences | None],
        lanes: Callable[[], int],
    ) -> None:
        self._settings, self._world_size = settings, world_size
        self._take_limit, self._find_sequences, self._count_lanes = take_limit, sequences, lanes
        # The sequences of a pass, if passes are runs of the endless stream.
        self._run = None if settings.sequential or settings.epochs is not None else take_limit
        self.exist = not settings.sources.is_mix or take_limit is not None
        self.bounded = settings.epochs is not None or take_limit is not None
        self.endless = not self.bounded and not settings.takes
        self.countable = settings.counts_items and not (settings.sequential and settings.epochs is not None)
        self.step_size = (settings.batch_size or 1) * world_size  # sequences of a global step

    @property
    def _sequences(self) -> Sequences | None:
        return self._find_sequences()

    @property
    def _rank_period(self) -> int:
        return self._world_size if self._settings.sequential else self._count_lanes()

    def bounds(self, position: Position) -> tuple[int, int | None]:
        """Return the first and the end sequence (exclusive; None: endless) of the pass of ``position``.

        A sequential reader counts sequences from the latest ``set_epoch``, and does not know where its epochs end.
        """
        number, sequences = position.pass_number, self._sequences
        if self._run is not None:
            return number * self._run, (number + 1) * self._run
        if sequences is None:
            return 0, self._take_limit
        if self._settings.epochs is None:
            return sequences.first(number), None
        start = number * sequences.pass_size
        return start, start + min([sequences.labelled, *([] if self._take_limit is None else [self._take_limit])])

    def length(self, topology: Topology) -> int:
        """Return how many items a rank gets in a whole pass; ``TypeError`` if their number is unknown or the pass endless."""
        settings = self._settings
        if settings.layout is None:
            raise TypeError("a stream has no len() before .pack() or .documents() says what an item is")
        if not settings.counts_items:
            raise TypeError("a stream has no len() after .apply(): a stage of your own may drop or add items")
        if settings.sequential and settings.epochs is not None:
            raise TypeError(
                "the len() of text, filters and best-fit packing is unknown before they are read; leave epochs out and bound "
                "the stream with .take(n)"
            )
        end = self.bounds(Position(0))[1]
        if end is None:
            raise TypeError("an endless stream has no len(); bound it with epochs= or .take(n)")
        return self.item_count(0, 0, end, topology)

    def items_left(self, position: Position, topology: Topology) -> int | None:
        """Return how many items of its pass a rank gets after a position; None if this is unknown, or the pass endless."""
        begin, end = self.bounds(position)
        if end is None or not self.countable:
            return None
        return self.item_count(begin, position.sequence_index, end, topology)

    def step(self, number: int, position: Position) -> tuple[int, int, Position]:
        """Return the first sequence of global step ``number`` of a run, its number of sequences, and the start of its pass.

        Steps count from the start of the stream, through all passes; ``position`` has the weights of the run. Raises
        ``ConfigError`` for a step after the end of a stream that has only one pass.
        """
        size, steps, end = self.step_size, self.pass_steps, self.bounds(Position(0))[1]
        if end is None or steps is None:
            return number * size, size, Position(0, weights=position.weights)
        if number >= self.most_steps:
            raise ConfigError(f"step {number} is after the end: the stream has {steps:,} steps, counted from 0")
        number_of_pass, inside = divmod(number, steps)
        begin = self.begin(number_of_pass, position.weights)
        at = begin.sequence_index + inside * size
        return at, min(size, begin.sequence_index + end - at), begin

    @cached_property
    def pass_steps(self) -> int | None:
        """The number of steps of a pass; None for an endless stream."""
        end = self.bounds(Position(0))[1]
        return end if end is None else end // self.step_size if self._settings.drop_last else -(-end // self.step_size)

    @property
    def most_steps(self) -> int:
        """The number of steps that `step` accepts: those of one pass, or any number if there are more passes."""
        if self.pass_steps is None or (self.pass_steps and self.exist and (self._settings.epochs or 1) == 1):
            return MAX_NUMBER
        return self.pass_steps

    def steps_before(self, position: Position) -> int:
        """Return how many steps of a run, through all passes, begin before a position."""
        start = 0 if self.pass_steps is None else self.bounds(position)[0]
        return position.pass_number * (self.pass_steps or 0) + -(-(position.sequence_index - start) // self.step_size)

    def step_of(self, index: int) -> tuple[int, RankStep] | None:
        """Return the number of the step that has a sequence index, and the step; None for an index that no step has.

        This is the inverse of `step`.
        """
        size, number, start, end = self.step_size, 0, 0, self.bounds(Position(0))[1]
        if self.pass_steps is not None:
            whole = self._run or (self._sequences.pass_size if self._sequences is not None else 0)
            number = index // whole
            start, end = self.bounds(Position(0, pass_number=number))
        inside = (index - start) // size
        if end is not None and (index >= end or inside >= (self.pass_steps or 0)):
            return None
        begin = start + inside * size
        period = self._rank_period
        left = size if end is None else min(size, end - begin)
        return number * (self.pass_steps or 0) + inside, RankStep(begin, left, 0, self._world_size, period, start)

    def begin(self, number: int, weights: list[list[Any]] | None = None) -> Position:
        """Return the position at which a pass begins."""
        begin = Position(0, pass_number=number, weights=weights)
        return replace(begin, sequence_index=self.bounds(begin)[0]) if number else begin

    def pass_of(self, position: Position) -> tuple[int, Position, bool]:
        """Return the pass of a loaded position, the position in this pass, and whether it is known to be the pass's end.

        A state that was saved under another ``take`` or number of ranks may be in another pass than it says.
        """
        settings, index = self._settings, position.sequence_index
        if not self.bounded:
            return self.epoch(position), position, False
        if self._run:
            start, end = self.bounds(position)
            if end is not None and not start <= index <= end:
                position = replace(position, pass_number=index // self._run)
        number, end = position.pass_number, self.bounds(position)[1]
        reached = number if self._run else self.epoch(position) // (settings.epochs or 1)
        is_read = end is not None and index > end
        if settings.sequential and settings.epochs:  # only its lanes know where epochs end
            is_read = reached > number and self._has_all_lanes(position)
        rest_is_dropped = settings.drop_last and end is not None and 0 <= end - index < self.step_size
        if index == end or rest_is_dropped or (is_read and settings.sequential):
            return number, position, True
        number = reached if is_read else number  # a state under a larger `take` is in a later pass
        return number, replace(position, pass_number=number), False

    def epoch(self, position: Position) -> int:
        """Return the epoch of the next sequence, or in a sequential stream of the slowest lane."""
        if self._settings.sequential:
            epochs = (epoch for cursor in (position.lanes or {}).values() for epoch in cursor[::NUMBERS])
            return min(epochs, default=position.pass_number * (self._settings.epochs or 1))
        return 0 if self._sequences is None else self._sequences.epoch(position.sequence_index)

    def all_ranks_know(self, position: Position) -> bool:
        """Say whether every rank finds the same pass in a loaded position. Lanes of an endless stream drift apart."""
        known = not self._settings.sequential or position.lanes is None or self.bounded
        return known or self._has_all_lanes(position)

    def _has_all_lanes(self, position: Position) -> bool:
        return len(position.lanes or ()) == self._count_lanes()

    def item_count(self, pass_begin: int, start: int, end: int, topology: Topology) -> int:
        """Return how many batches, or sequences without ``batch``, a rank gets from sequences ``start`` to ``end`` of a pass."""
        whole, rest = divmod(max(0, end - start), self.step_size)
        if self._settings.batch_size is None:
            rank, ranks = topology.rank, topology.world_size
            return whole + len(RankStep(end - rest, rest, rank, ranks, self._rank_period, pass_begin))
        return whole + (rest > 0 and not self._settings.drop_last)
