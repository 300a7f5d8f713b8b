"""One iteration of a stream: the items of one rank and worker, each with the position after it, through the user's stages.

So nothing needs to know how far ahead of the consumer its source is. Of the user's stages, what a resume would lose is refused.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from typing import Any

from ...errors import ConfigError
from ..assemble import make_collator, make_reader
from ..batch.collate import row_of, stack
from ..batch.row_buffer import Reader
from ..batch.transport import place_on_device, read_ahead, to_numpy, to_torch
from ..config import Map, StreamConfig, Take, stage_name
from ..order import RankStep
from ..position import Position, WorkerContext, WorkerShare
from ..sequential.sequential_reader import LongSearch
from .passes import Passes, item_count
from .topology import StreamEnd, ranks_agree

Positioned = tuple[Position, Any]

_ITEMS_A_CHECK = 64  # items that a stage takes between two looks at the epoch
_EPOCHS_OF_A_PART = 8  # of which a rank, that sees a part of each, may give nothing

log = logging.getLogger("pipeline")


def make_items(
    config: StreamConfig, position: Position, context: WorkerContext
) -> tuple[Reader[Any], Iterator[Positioned]]:
    """Return the reader of one worker, and the items that are made of its rows, from ``position`` on."""
    passes = Passes(config, context.world_size)
    end = StreamEnd(config, context)
    stages = UserStages(config, position, context, None if passes.bounded else passes.epoch)
    divides = config.counts_items and not (config.sequential and config.epochs is not None)
    # Else each worker makes all items of its rank and gives every n-th: a stage may drop items, or it is unknown in advance
    # which lanes of a bounded sequential stream end first.
    share = WorkerShare(position.skip, context.workers) if divides else WorkerShare(0, 1)
    reader = make_reader(config, position, context, share)
    items = _made(config, reader, end, position, _steps(config, share, position, context))
    items = stages.run(config.steps, 0, items)
    if config.steps and config.batch_size is not None:
        items = _stacked(items, config)
    items = stages.run(config.batch_steps, len(config.steps), items)
    if not divides:
        items = islice(items, position.skip, None, context.workers)
    ahead = config.prefetch
    if ahead is None:
        on_gpu = config.device is not None and config.device.startswith("cuda")
        ahead = 2 if on_gpu and not ranks_agree(config, context) else 0
    if ahead:
        items = read_ahead(items, ahead)
    if config.device not in (None, "cpu"):
        # After the thread, so that the copies are ordered against the consumer's own CUDA stream.
        items = place_on_device(items, config.device)
    return reader, items


def _made(
    config: StreamConfig, reader: Reader[Any], end: StreamEnd, position: Position, steps: Iterator[tuple[RankStep, int]]
) -> Iterator[Positioned]:
    """Yield a batch of each step, or its rows as samples where nothing batches them yet, each with the position after it."""
    size, batches = config.batch_size or 1, config.batch_size is not None and not config.steps
    collate = make_collator(config, size if batches else 1)
    after = partial(Position, weights=position.weights, start_epoch=position.start_epoch)
    first, made = position.taken, deque[Positioned]()
    try:
        for step, end_of_step in steps:
            filled = missing = 0
            for row, stop in pairwise([first, size] if batches else range(first, size + 1)):
                rows = end.read(partial(reader.read, step.rows(row, stop)))
                filled, missing = filled + rows.filled, missing + rows.missing
                item, lanes = collate(rows, step.begin), reader.cursors
                item = item if batches else row_of(item)
                position_after = (
                    after(end_of_step, lanes=lanes) if stop == size else after(step.begin, taken=stop, lanes=lanes)
                )
                made.append((position_after, item if config.numpy else to_torch(item)))
            if not end.goes_on(filled, missing, reader.tokens_left):
                if end.gave_nothing and position.sequence_index == 0:
                    reader.refuse_nothing()
                return
            first = 0
            del rows, item  # so that the next batch can reuse their memory, as that of samples which a stage drops
            while made:
                yield made.popleft()
    finally:
        reader.close()


def _steps(
    config: StreamConfig, share: WorkerShare, position: Position, context: WorkerContext
) -> Iterator[tuple[RankStep, int]]:
    """Yield the steps of one worker, each with the sequence index of the position after it."""
    size = (config.batch_size or 1) * context.world_size
    start, count = position.sequence_index, None
    begin_of_pass, end = Passes(config, context.world_size).bounds(position)
    if end is not None:
        count = item_count(config, start, end, context)
        if config.drop_last and context.rank == share.skip == 0 and end > start:
            lost, whole = (end - start) % size, end - begin_of_pass
            log.warning("last='drop' drops the last %d of %d sequences, %d batches a rank remain", lost, whole, count)
    period, aligned = config.rank_period(context.world_size), size if config.sequential else 1
    number = share.skip
    while count is None or number < count:
        begin = start + number * size
        length = size if end is None else max(0, min(size, end - begin))
        # A position of a sequential stream is a multiple of its global batch.
        after = begin + -(-length // aligned) * aligned
        yield RankStep(begin, length, context.rank, context.world_size, period), after
        number += share.every


def _stacked(samples: Iterator[Positioned], config: StreamConfig) -> Iterator[Positioned]:
    """Group samples into batches; where stages dropped some, the last batch of a bounded stream is smaller."""
    while rows := list(islice(samples, config.batch_size)):
        batch = stack([item for _, item in rows])
        yield rows[-1][0], to_numpy(batch) if config.numpy else to_torch(batch)


# The user's stages


class UserStages:
    """The user's stages in one iteration from the position ``start`` on.

    ``epoch_of`` gives the epoch of a position where the items have no end; it is None where they have one.
    """

    def __init__(
        self,
        config: StreamConfig,
        start: Position,
        context: WorkerContext,
        epoch_of: Callable[[Position], int] | None,
    ) -> None:
        self.start = start
        self.context = context
        self.epoch_of = epoch_of
        self.takes = config.takes
        self.dropping: str | None = None  # a stage that gave another number of items than it took

    def run(self, stages: tuple[Any, ...], first: int, items: Iterator[Positioned]) -> Iterator[Positioned]:
        """Run stages, numbered from ``first`` on, over items."""
        for number, stage in enumerate(stages, first):
            if isinstance(stage, Map):
                items = _mapped(stage.function, items)
            elif isinstance(stage, Take):
                items = self._counted(stage.count, number, items)
            else:
                items = _AppliedStage(self, number, stage).run(items)
        return items

    def ranks_may_differ(self, number: int) -> bool:
        """Say whether ranks may see unequally many items at a stage: there are several, and something ends before it."""
        return self.context.world_size > 1 and (self.epoch_of is None or any(take < number for take in self.takes))

    def _counted(self, count: int, number: int, items: Iterator[Positioned]) -> Iterator[Positioned]:
        """Give items until ``count`` were given since the pass began; too few on one of several ranks are an error."""
        given = self.start.given.get(str(number), 0)
        while given < count:
            for position, item in islice(items, 1):
                given += 1
                yield replace(position, given={**position.given, str(number): given}), item
                break
            else:
                if self.dropping is not None and self.ranks_may_differ(number):
                    raise ConfigError(
                        f"the stream ended after {given} of the {count} items of .take() on rank {self.context.rank} of "
                        f"{self.context.world_size}, since stage {self.dropping} drops items and the stream is bounded; make "
                        "it endless (no epochs=), or take fewer, else ranks take unequally many steps"
                    )
                return


def _mapped(function: Callable[[Any], Any], items: Iterator[Positioned]) -> Iterator[Positioned]:
    for position, item in items:
        yield position, function(item)


class _AppliedStage:
    """A stage of the user in one iteration: each item that it gives gets the position after the last item that it took.

    A state is saved between two items that the stage gives, so a stage that has more than one for an item is an error. What a
    stage keeps of items that it took ahead is lost by a resume, which `assert_resumes` shows. The position of a stage that
    drops items belongs to one rank. On several ranks of a bounded stream such a stage is an error, since a rank that ends early
    leaves the others waiting forever.
    """

    def __init__(self, stages: UserStages, number: int, stage: Any) -> None:
        self._stages = stages
        self._stage = stage
        self._name = stage_name(number, stage)
        self._position = self._gave_at = stages.start  # after the last item that was taken, and that was given
        self._taken = 0  # items since the last that was given
        self._bound = stages.start.bound_to == self._name
        self._search = LongSearch()
        self._since: int | None = None  # the epoch in which it gave its last item
        later = any(take > number for take in stages.takes)
        self._must_be_even = stages.ranks_may_differ(number) and not later

    def run(self, items: Iterator[Positioned]) -> Iterator[Positioned]:
        """Give the items of the stage."""
        exhausted = False

        def feed() -> Iterator[Any]:
            nonlocal exhausted
            for self._position, item in items:
                self._taken += 1
                self._refuse_fruitless()
                yield item
            exhausted = True

        for item in self._stage(feed()):
            if self._taken == 0:
                raise ConfigError(
                    f"stage {self._name} gave two items for one, so a state between them would lose the second; give one item "
                    "that holds both"
                )
            self._bound |= self._taken > 1  # ranks that gave equally many may have taken unequally many
            if self._taken > 1:
                self._dropped()
            self._taken, self._gave_at, self._since = 0, self._position, None
            self._search.restart()
            position = replace(self._position, skip=0)
            yield replace(position, bound_to=self._name) if self._bound else position, item
        if self._taken and exhausted:  # a stage that stops by itself may stop equally on all ranks
            self._dropped()
            if self._gave_at is self._stages.start:
                log.warning("stage %s took all %d items that were left, and gave none", self._name, self._taken)

    def _dropped(self) -> None:
        """Note that items were dropped; ``ConfigError`` where ranks would then take unequally many steps."""
        self._stages.dropping = self._name
        if self._must_be_even:
            ranks = self._stages.context.world_size
            raise ConfigError(
                f"stage {self._name} drops or adds items of a bounded stream, so its {ranks} ranks would take unequally many "
                "steps and some wait forever; make the stream endless (no epochs=) and end it by .take(n) after that stage, "
                "or use .filter() on documents"
            )

    def _refuse_fruitless(self) -> None:
        """Warn of a stage that has given nothing for seconds; an epoch of an endless stream without an item is an error."""
        if self._taken % _ITEMS_A_CHECK:
            return
        if (seconds := self._search.overdue()) is not None:
            log.warning("stage %s gave no item for %d seconds, in which it took %d", self._name, seconds, self._taken)
        if (epoch_of := self._stages.epoch_of) is None:
            return
        if self._since is None:  # of the epoch that the search begins in, a part may be over
            self._since = epoch_of(self._gave_at) - (self._gave_at.sequence_index == 0)
        patience = 1 if self._stages.context.world_size == 1 else _EPOCHS_OF_A_PART
        if epoch_of(self._position) - self._since > patience:
            epochs = "a whole epoch" if patience == 1 else f"{patience} epochs"
            raise ConfigError(
                f"stage {self._name} took {self._taken} items, those of {epochs}, and gave none: it drops everything; loosen "
                "it, or end the stream by epochs="
            )
