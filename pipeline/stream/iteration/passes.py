"""Passes: which pass is read next, which sequences one has, how many items they make, and where ``set_epoch`` moves.

A pass is what frameworks call an epoch. Frameworks count their passes from 0 after every restart, so ``set_epoch(e)`` means pass
``e + offset``. The first call that belongs to a load gives the offset.

    what was called                                      the passes that are read after it
    -------------------------------------------------    ---------------------------------------------
    nothing                                              0, 0, 0 ...
    set_epoch(3)                                         3, 3, 3 ...
    load(inside 7)                                       rest of 7, then 7 (whole), 7 ...
    load(end of 7)                                       nothing, then 7, 7 ...
    load(inside 7), set_epoch(0)                         rest of 7, then 7 ...; set_epoch(1) is 8
    load(end of 7), set_epoch(0)                         8, 8 ...; set_epoch(1) is 9
    set_epoch(0), load(inside 7)                         rest of 7, then 7 ...; set_epoch(1) is 8
    set_epoch(0), load(end of 7)                         8, 8 ...; set_epoch(1) is 9
    load(inside 7), a pass, set_epoch(5)                 rest of 7, then 8; set_epoch(6) is 9
    load(end of 7), a pass, set_epoch(5)                 nothing, then 8; set_epoch(6) is 9
    load(inside 7), a pass broken off                    rest of 7 again: reading moves no stream
    load(inside 7), a pass broken off, set_epoch(5)      rest of 7 again; set_epoch(6) is 8
    set_epoch(e) again before anything is read           as after the first call
    set_epoch(e) again after a pass, read or broken off  the same pass, whole

"set_epoch(0), load" is one case where nothing was read between the two: a ``StatefulDataLoader`` loads as a pass begins.
Whether a position is the end of its pass, counts say, or of sequential streams readers, which find nothing left.

Pass ``e`` of an endless stream that ``take`` bounds is the ``e``-th run of as many steps; of a stream with ``epochs`` it is
epoch ``e`` and those after it, as many as ``epochs`` says, of which ``take`` gives the first steps. Other streams, and
sequential ones, begin it with epoch ``e``. The position of pass ``e`` has ``e`` in ``start_epoch``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

from ...errors import ConfigError
from ..config import StreamConfig
from ..lanes import NUMBERS
from ..order import RankStep, Sequences
from ..position import Position, WorkerContext


@dataclass(frozen=True, slots=True)
class Standing:
    """The pass of a stream, and how ``set_epoch`` counts.

    ``number``: the pass. ``rest``: a loaded position inside it is kept, else it begins whole. ``at_end``: that position is its
    end. ``name``: the latest ``set_epoch`` that holds for it, None if there is none. ``offset``: of passes to the numbers of
    ``set_epoch``; None after a load, until a call says it. ``began``, ``ended``: whether somebody read since, and to its end.

    >>> stand = Standing().load(7, at_end=False).set_epoch(0)
    >>> stand.next_read, replace(stand, began=True, ended=True).next_read
    ((7, False), (7, True))
    >>> replace(stand, began=True, ended=True).set_epoch(1).next_read
    (8, True)
    """

    number: int = 0
    rest: bool = False
    at_end: bool = False
    name: int | None = None
    offset: int | None = 0
    began: bool = False
    ended: bool = False

    @property
    def read(self) -> int:
        """The pass that is read next: the one after, where its name asks for a pass and nothing is left of it."""
        return self.number + (self.rest and self.at_end and self.name is not None)

    @property
    def next_read(self) -> tuple[int, bool]:
        """The pass that ``iter()`` reads, and whether it reads it whole."""
        return self.read, not self.rest or self.ended or self.read > self.number

    def load(self, number: int, at_end: bool) -> Standing:
        """Load a position in pass ``number``."""
        return Standing(number, True, at_end, None if self.began else self.name, None)

    def set_epoch(self, epoch: int) -> Standing:
        """Begin pass ``epoch`` + offset, or name the pass that was loaded."""
        if self.offset is None and (self.name is None or not self.began):
            if self.ended or not self.rest:
                return Standing(self.number + 1, name=epoch, offset=self.number + 1 - epoch)
            named = replace(self, name=epoch)
            return replace(named, offset=named.read - epoch)
        if epoch == self.name and not self.began:
            return self
        offset = self._offset or 0
        return Standing(epoch + offset, name=epoch, offset=offset)

    def next_pass(self, passes: int = 1) -> Standing:
        """Begin the next pass, ``passes`` after this one."""
        return Standing(self.read + passes, offset=self._offset)

    @property
    def _offset(self) -> int | None:
        return self.offset if self.name is None else self.read - self.name


class Passes:
    """The passes of a stream that ``world_size`` ranks share.

    ``exist``: ``set_epoch`` can move the stream; a mix has no epochs, so its passes are what ``take`` leaves of it.
    ``endless``: neither ``epochs`` nor ``take`` ends the stream. ``of_several_epochs``: a pass is all of them.
    """

    def __init__(self, config: StreamConfig, world_size: int) -> None:
        self._config = config
        self._world_size = world_size
        taken = [] if config.take is None else [config.take]
        if config.take_batches is not None:
            taken.append(config.take_batches * (config.batch_size or 1) * world_size)
        if config.stopping_strategy is not None and config.layout is not None:
            taken.append(config.end_of_mix)
        self._taken = min(taken, default=None)  # sequences that `take` leaves of a pass
        # The sequences of a pass, where passes are runs of the endless stream.
        self._run = None if config.sequential or config.epochs is not None else self._taken
        self.exist = not config.sources.is_mix or self._taken is not None
        self.bounded = config.epochs is not None or self._taken is not None
        self.endless = not self.bounded and not config.takes
        self.of_several_epochs = config.epochs is not None and config.epochs > 1

    @cached_property
    def _sequences(self) -> Sequences | None:
        """Where epochs begin; None of a mix and of a sequential stream, which have only epoch 0 here."""
        return self._config.sequences()

    def _first(self, epoch: int) -> int:
        return 0 if self._sequences is None else self._sequences.first(epoch)

    def _end_of(self, epochs: int) -> int:
        lag = self._config.stated_layout().tokens_before_labels
        return 0 if self._sequences is None else self._sequences.with_labels(epochs, lag)

    def bounds(self, position: Position) -> tuple[int, int | None]:
        """Return the first sequence of the pass that ``position`` is in, and the one after its last (None: endless).

        A sequential reader counts sequences from where ``set_epoch`` moved it, and does not know where its epochs end.
        """
        number, epochs = position.start_epoch or 0, self._config.epochs
        if self._run is not None:
            return number * self._run, (number + 1) * self._run
        start = 0 if number == 0 or self._config.sequential else self._first(number)
        ends = [] if self._taken is None else [start + self._taken]
        if epochs is not None and not self._config.sequential:
            ends.append(self._end_of(epochs) if position.start_epoch is None else self._first(number + epochs))
        return start, min(ends, default=None)

    def length(self, position: Position, context: WorkerContext) -> int:
        """Return how many items a rank gets in one whole pass; raises ``TypeError`` where that is unknown or endless."""
        config = self._config
        if config.layout is None:
            raise TypeError("a stream has no len() before .pack() or .documents() says what an item is")
        if not config.counts_items:
            raise TypeError("a stream has no len() after .apply(): a stage of your own may drop or add items")
        if config.sequential and config.epochs is not None:
            raise TypeError(
                "the len() of text, filters and best-fit packing is unknown before they are read; leave epochs out and bound "
                "the stream with .take(n)"
            )
        start, end = self.bounds(position)
        if end is None:
            raise TypeError("an endless stream has no len(); bound it with epochs= or .take(n)")
        return item_count(config, start, end, context)

    def step(self, number: int, position: Position) -> tuple[int, int, Position]:
        """Return the first sequence of the global step ``number`` of a run, how many it has, and where its pass begins.

        Steps count from the first of the stream, through its passes in turn; ``position`` says how the run names them.
        Raises ``ConfigError`` for a step behind the end of a stream that has one pass alone.
        """
        size = (self._config.batch_size or 1) * self._world_size
        if not self.bounded:
            return number * size, size, Position(0, weights=position.weights)
        named = position.start_epoch is not None
        left, several = number, self.exist and (self._config.epochs or 1) == 1
        for number_of_pass in count():
            begin = Position(
                0, start_epoch=number_of_pass if number_of_pass or named else None, weights=position.weights
            )
            start, end = self.bounds(begin)
            assert end is not None
            steps = (end - start) // size if self._config.drop_last else -(-(end - start) // size)
            if left < steps:
                return start + left * size, min(size, end - start - left * size), begin
            left -= steps
            if not several or not steps:
                raise ConfigError(f"step {number} lies behind the end: the stream has {number - left:,} steps")
        raise AssertionError

    def begin(self, number: int, weights: list[list[Any]] | None = None) -> Position:
        """Return the position where a pass begins."""
        if number == 0 and self.of_several_epochs:
            return Position(0)
        begin = Position(0, start_epoch=number, weights=weights)
        return replace(begin, sequence_index=self.bounds(begin)[0])

    def again(self, position: Position) -> Position:
        """Return the position where the pass that holds ``position`` begins."""
        if position.start_epoch is None:
            return Position(0, weights=position.weights)
        return self.begin(position.start_epoch, position.weights)

    def loaded(self, position: Position) -> Position:
        """Return a loaded position in the pass that holds it, where ``take`` or the ranks were others when it was saved."""
        if not self._run:
            return position
        start, end = self.bounds(position)
        if end is None or start <= position.sequence_index <= end:
            return position
        return replace(position, start_epoch=position.sequence_index // self._run)

    def held(self, position: Position) -> tuple[int, bool]:
        """Return the pass that holds a loaded position, and whether it is known to be the end of that pass."""
        config, index = self._config, position.sequence_index
        if self.of_several_epochs:
            return 0, False  # all epochs are one pass
        if not self.bounded:
            return self.epoch(position), False
        started = position.start_epoch or 0
        end = self.bounds(position)[1]
        reached = started if self._run else self.epoch(position)
        is_read = end is not None and index > end
        if config.sequential:  # its epochs end where its lanes say so
            everywhere = position.lanes is None or len(position.lanes) == config.make_lanes(self._world_size).count
            is_read = everywhere and reached > started if config.epochs else is_read
        if index == end or (is_read and config.sequential):
            return started, True
        return (reached if is_read else started), False  # what is read of a stream that took more is a later pass

    def named(self, position: Position, number: int) -> Position:
        """Return a loaded position with the number of its pass, as ``set_epoch`` states it."""
        return replace(position, start_epoch=number) if self.bounded and not self.of_several_epochs else position

    def epoch(self, position: Position) -> int:
        """Return the epoch that holds the next sequence; for lanes, that of the one that is furthest behind."""
        if self._config.sequential:
            epochs = (epoch for cursor in (position.lanes or {}).values() for epoch in cursor[::NUMBERS])
            return min(epochs, default=position.start_epoch or 0)
        return 0 if self._sequences is None else self._sequences.epoch(position.sequence_index)

    def all_ranks_know(self, position: Position) -> bool:
        """Say whether every rank finds the same pass in a loaded position: lanes of an endless stream drift apart."""
        if not self._config.sequential or position.lanes is None or self.bounded:
            return True
        return len(position.lanes) == self._config.make_lanes(self._world_size).count


def item_count(config: StreamConfig, start: int, end: int, context: WorkerContext) -> int:
    """Return how many batches, or sequences of an unbatched stream, a rank gets of sequences ``start`` to ``end``."""
    left, step = max(0, end - start), (config.batch_size or 1) * context.world_size
    if config.batch_size is None:
        period = config.rank_period(context.world_size)
        return left // step + len(
            RankStep(start + left - left % step, left % step, context.rank, context.world_size, period)
        )
    return left // step if config.drop_last else -(-left // step)
