"""Passes: which sequences one pass over a stream yields, how many items they make, where ``set_epoch`` moves.

Pass ``e`` of an endless stream that ``take`` bounds is the ``e``-th run of as many steps; of a stream with ``epochs`` it is
epoch ``e`` and those after it, as many as ``epochs`` says, of which ``take`` gives the first steps. Other streams, and
sequential ones, begin it with epoch ``e``. The position of pass ``e`` has ``e`` in ``start_epoch``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...errors import ConfigError
from ..config import StreamConfig
from ..order import Step
from ..position import Position, WorkerContext
from ..sequential.cursor import NUMBERS
from .stages import counts_items, numbers_of_takes

First = Callable[[int], int]  # from an epoch to its first sequence


def steps_taken(config: StreamConfig, world_size: int) -> int | None:
    """Return how many sequences ``take`` leaves of a pass, None without it."""
    counts = [] if config.take is None else [config.take]
    if config.take_batches is not None:
        counts.append(config.take_batches * (config.batch_size or 1) * world_size)
    return min(counts, default=None)


def _runs(config: StreamConfig, world_size: int) -> int | None:
    """Return how many sequences a pass has where passes are runs of the endless stream, else None."""
    return None if config.sequential or config.epochs is not None else steps_taken(config, world_size)


def pass_bounds(config: StreamConfig, first: First, position: Position, world_size: int) -> tuple[int, int | None]:
    """Return the first sequence of the pass that ``position`` is in, and the one after its last (None: endless).

    A sequential reader counts sequences from where ``set_epoch`` moved it, and does not know where its epochs end.
    """
    number, run, taken = position.start_epoch or 0, _runs(config, world_size), steps_taken(config, world_size)
    if run is not None:
        return number * run, (number + 1) * run
    start = 0 if number == 0 or config.sequential else first(number)
    ends = [] if taken is None else [start + taken]
    if config.epochs is not None and not config.sequential:
        ends.append(first(number + config.epochs))
    return start, min(ends, default=None)


def item_count(config: StreamConfig, start: int, end: int, context: WorkerContext, rank_period: int) -> int:
    """Return how many batches, or sequences of an unbatched stream, a rank gets of sequences ``start`` to ``end``.

    ``rank_period`` is that of the reader, or the lanes of an indexed stream that has none yet.
    """
    left, step = max(0, end - start), (config.batch_size or 1) * context.world_size
    if config.batch_size is None:
        if config.sequential:
            rank_period = context.world_size
        last = Step(start + left - left % step, left % step, context.rank, context.world_size, rank_period)
        return left // step + len(last)
    return left // step if config.drop_last else -(-left // step)


def pass_length(config: StreamConfig, position: Position, context: WorkerContext) -> int:
    """Return how many items a rank gets in one whole pass; raises ``TypeError`` where that is unknown or endless."""
    if config.layout is None:
        raise TypeError("a stream has no len() before .pack() or .documents() says what an item is")
    if not counts_items(config):
        raise TypeError("a stream has no len() after .apply(): a stage of your own may drop or add items")
    if config.sequential and config.epochs is not None:
        raise TypeError(
            "the len() of text, filters and best-fit packing is unknown before they are read; leave epochs out and bound "
            "the stream with .take(n)"
        )
    start, end = pass_bounds(config, first_of(config), position, context.world_size)
    if end is None:
        raise TypeError("an endless stream has no len(); bound it with epochs= or .take(n)")
    return item_count(config, start, end, context, config.lane_count)


def first_of(config: StreamConfig) -> First:
    """Return the function from an epoch to its first sequence; mixes and sequential readers have only epoch 0."""
    sequences = config.data.sequences(config)
    return (lambda epoch: 0) if sequences is None else sequences.first


def has_passes(config: StreamConfig) -> bool:
    """Say whether ``set_epoch`` can move a stream: a mix has no epochs, so its passes are what ``take`` leaves of it."""
    return not config.mixed or steps_taken(config, 1) is not None


def is_endless(config: StreamConfig) -> bool:
    """Say whether neither ``epochs`` nor ``take`` ends a stream."""
    return config.epochs is None and steps_taken(config, 1) is None and not numbers_of_takes(config)


def start_of_pass(config: StreamConfig, number: int, world_size: int, position: Position) -> Position:
    """Return the position where a pass begins, under the weights of ``position``."""
    if number == 0 and config.epochs is not None and config.epochs > 1:
        return Position(0)
    begin = Position(0, start_epoch=number, weights=position.weights)
    return replace(begin, sequence_index=pass_bounds(config, first_of(config), begin, world_size)[0])


def next_pass(config: StreamConfig, world_size: int, position: Position) -> Position:
    """Return the position where the pass after that of ``position`` begins."""
    number = (position.start_epoch or 0) + (config.epochs or 1)
    return start_of_pass(config, number, world_size, position)


def in_its_pass(config: StreamConfig, position: Position, world_size: int) -> Position:
    """Return a loaded position in the pass that holds it, where ``take`` or the ranks were others when it was saved."""
    run = _runs(config, world_size)
    start, end = pass_bounds(config, first_of(config), position, world_size) if run else (0, None)
    if not run or end is None or start <= position.sequence_index <= end:
        return position
    return replace(position, start_epoch=position.sequence_index // run)


def after_load(config: StreamConfig, position: Position, world_size: int) -> tuple[int, Position]:
    """Return the pass that a loaded position is in, and where the first ``set_epoch`` after the load puts it.

    The position stays where it is, but from the end of its pass it moves to the start of the next.
    """
    if config.epochs is not None and config.epochs > 1:
        return 0, position  # all epochs are one pass
    started = position.start_epoch or 0
    _, end = pass_bounds(config, first_of(config), position, world_size)
    if end is None and config.epochs is None:
        return epoch_reached(config, position), position
    index, known = position.sequence_index, not config.sequential
    everywhere = position.lanes is None or len(position.lanes) == config.lane_layout(world_size).lanes
    reached = started if _runs(config, world_size) else epoch_reached(config, position)
    if index == end or (
        not known and (everywhere and reached > started if config.epochs else end is not None and index > end)
    ):
        return started + 1, start_of_pass(config, started + 1, world_size, position)
    if end is not None and index > end:  # of a stream that took more
        return reached, replace(position, start_epoch=reached)
    return started, replace(position, start_epoch=started)


def knows_epoch(config: StreamConfig, position: Position, world_size: int) -> bool:
    """Say whether every rank finds the same epoch in a loaded position: lanes of an endless stream drift apart."""
    bounded = config.epochs is not None or steps_taken(config, world_size) is not None
    if not config.sequential or position.lanes is None or bounded:
        return True
    return len(position.lanes) == config.lane_layout(world_size).lanes


def epoch_reached(config: StreamConfig, position: Position) -> int:
    """Return the epoch that holds the next sequence; for lanes, that of the one that is furthest behind."""
    if config.sequential:
        epochs = (epoch for cursor in (position.lanes or {}).values() for epoch in cursor[::NUMBERS])
        return min(epochs, default=position.start_epoch or 0)
    sequences = config.data.sequences(config)
    return 0 if sequences is None else sequences.epoch(position.sequence_index)


def tokens_lost(config: StreamConfig, epochs: int, position: Position) -> int:
    """Return how many tokens no sequence holds if a stream that was to end after ``epochs`` goes on from ``position``.

    The last sequence was cut at the last token. Where it was handed out, the tokens behind the cut are lost.
    """
    sequences = config.data.sequences(config)
    if sequences is None or config.stated_layout().kind != "pack" or position.start_epoch is not None:
        return 0
    after = sequences.first(epochs)
    epoch = sequences.epoch(after - 1)
    share, over = divmod(after - sequences.first(epoch), sequences.lanes)
    row, lane = (share - 1, sequences.lanes - 1) if share else (0, over - 1)
    handed_out = sequences.first(epoch) + row * sequences.lanes + lane < position.sequence_index
    return after * sequences.stride - epochs * sequences.tokens if handed_out else 0


@dataclass(slots=True)
class PassNumbers:
    """Translates the numbers that ``set_epoch`` is called with to passes of the data, which differ by an ``offset``.

    Frameworks count their own passes, from 0 after every restart, so a load fixes the offset anew: the first call after it
    names the pass that the load put the stream in, and keeps the position. Where that pass was read to its end and the call
    has the number after it, it names the next one. Where a loader loaded its state as it began a pass, the call before
    named that pass. ``last`` is the last number, ``kept`` the one that kept a loaded position.
    """

    offset: int = 0
    last: int | None = None
    kept: int | None = None

    def target(
        self, number: int, loaded: int | None, *, began: bool, ended: bool, in_workers: bool = False
    ) -> int | None:
        """Return the pass to move to, or None to keep the position.

        ``loaded`` is the pass of a position that was loaded and not named yet, ``in_workers`` if a loader loaded it in its
        workers alone; ``began`` and ``ended`` say whether a pass began and ended since the position was set.
        Raises ``ConfigError`` for a pass before the first.

        >>> numbers = PassNumbers()
        >>> [numbers.target(0, 3, began=False, ended=False), numbers.target(1, None, began=True, ended=True)]
        [None, 4]
        """
        offset, keep = self.offset, number == self.kept and not began
        if loaded is not None:
            if (began or in_workers) and self.last is not None:
                named = self.last
            else:
                named = number - 1 if in_workers or (ended and number == loaded + 1) else number
            offset, keep = loaded - named, named == number
        if number + offset < 0:
            raise ConfigError(
                f"set_epoch({number}) lies before the first epoch: the first call after the state was loaded, "
                f"set_epoch({-offset + max(0, self.offset)}), named the epoch that it was saved in; count up from there"
            )
        self.offset, self.last, self.kept = offset, number, number if keep else None
        return None if keep else number + offset
