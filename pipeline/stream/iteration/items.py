"""One iteration of a stream: the items of one rank and worker, through the user's stages.

Each item carries the position after it, so no stage needs to know how far it reads ahead of the consumer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

from ...notices import say_once
from ..assemble import make_collator, make_reader
from ..batch.collate import row_of, stack
from ..batch.rows import Reader
from ..batch.transport import place_on_device, read_ahead, to_numpy, to_torch
from ..order import RankStep
from ..position import Position, Topology, WorkerShare
from ..ranks import StreamEnd
from ..settings import StreamSettings
from ..stream_plan import StreamPlan
from .user_stages import Positioned, UserStages

log = logging.getLogger("pipeline")


class Made(NamedTuple):
    """The reader of one worker, the items made from its rows, and how many items of others it passed over before its first."""

    reader: Reader[Any]
    items: Iterator[Positioned]
    passed: Callable[[], int]


def make_items(plan: StreamPlan, position: Position, topology: Topology) -> Made:
    """Make the items of one worker from ``position`` on."""
    settings, passes = plan.settings, plan.passes
    if topology.rank == topology.worker == 0:
        for warning in plan.warnings:
            say_once(warning)
    end = StreamEnd(plan)
    stages = UserStages(settings, position, topology, None if passes.bounded else passes.epoch)
    # Unless items are countable, each worker makes all items of its rank and yields every n-th: a stage may drop items, or it
    # is unknown in advance which lanes of a bounded sequential stream end first.
    share = WorkerShare(position.skip, topology.workers) if passes.countable else WorkerShare(0, 1)
    reader = make_reader(plan, position, topology, share)
    items = _made(plan, reader, end, position, _steps(plan, share, position, topology))
    items = stages.run(settings.sample_stages, 0, items)
    if settings.sample_stages and settings.batch_size is not None:
        items = _stacked(items, settings)
    items = stages.run(settings.batch_stages, len(settings.sample_stages), items)
    passed: Callable[[], int] = lambda: passes.items_left(position, topology) or 0  # noqa: E731
    if not passes.countable and topology.workers > 1:
        every = _EveryNth(items, position.skip, topology.workers)
        items, passed = every, every.passed
    ahead = settings.prefetch
    if ahead is None:
        on_gpu = settings.device is not None and settings.device.startswith("cuda")
        ahead = 2 if on_gpu and not plan.ranks_agree else 0
    if ahead:
        items = read_ahead(items, ahead)
    if settings.device not in (None, "cpu"):
        # After the thread, so that copies are ordered with the consumer's own CUDA stream.
        items = place_on_device(items, settings.device)
    return Made(reader, items, passed)


class _EveryNth:
    """Yields every n-th item after ``skip`` items."""

    def __init__(self, items: Iterator[Positioned], skip: int, every: int) -> None:
        self._items, self._skip, self._every = items, skip, every
        self._passed = 0

    def __iter__(self) -> Iterator[Positioned]:
        return self

    def __next__(self) -> Positioned:
        for _ in range(self._skip):
            next(self._items)
            self._passed += 1
        self._skip = self._every - 1
        return next(self._items)

    def passed(self) -> int:
        """Return how many items were passed over."""
        return self._passed


def _made(
    plan: StreamPlan,
    reader: Reader[Any],
    end: StreamEnd,
    position: Position,
    steps: Iterator[tuple[RankStep, int]],
) -> Iterator[Positioned]:
    """Yield a batch of each step, or its rows as samples if they are batched later, each with the position after it."""
    settings, size = plan.settings, plan.step_rows
    batches = settings.batch_size is not None and not settings.sample_stages
    collate = make_collator(settings, size if batches else 1)
    after = partial(Position, weights=position.weights, pass_number=position.pass_number)
    first, made = position.rows_taken, deque[Positioned]()
    try:
        for step, end_of_step in steps:
            filled = missing = 0
            for row, stop in pairwise([first, size] if batches else range(first, size + 1)):
                rows = end.read(partial(reader.read, step.rows(row, stop)))
                filled, missing = filled + rows.filled, missing + rows.missing
                item, lanes = collate(rows, step.begin), reader.cursors
                item = item if batches else row_of(item)
                position_after = (
                    after(end_of_step, lanes=lanes) if stop == size else after(step.begin, rows_taken=stop, lanes=lanes)
                )
                made.append((position_after, item if settings.numpy else to_torch(item)))
            if not end.has_step(filled, missing, reader.tokens_left):
                if end.gave_nothing and position.sequence_index == 0:
                    reader.refuse_nothing()
                return
            first = 0
            del rows, item  # so that the next batch can reuse their memory
            while made:
                yield made.popleft()
    finally:
        reader.close()


def _steps(
    plan: StreamPlan, share: WorkerShare, position: Position, topology: Topology
) -> Iterator[tuple[RankStep, int]]:
    """Yield the steps of one worker, each with the sequence index of the position after it."""
    size = plan.step_size
    start, count = position.sequence_index, None
    begin_of_pass, end = plan.passes.bounds(position)
    if end is None:
        begin_of_pass = 0
    else:
        count = plan.passes.item_count(begin_of_pass, start, end, topology)
        if plan.settings.drop_last and topology.rank == share.skip == 0 and end > start:
            lost, whole = (end - start) % size, end - begin_of_pass
            log.warning("last='drop' drops the last %d of %d sequences, %d batches a rank remain", lost, whole, count)
    period, aligned = plan.rank_period, size if plan.sequential else 1
    number = share.skip
    while count is None or number < count:
        begin = start + number * size
        length = size if end is None else max(0, min(size, end - begin))
        # A position of a sequential stream is a multiple of its global batch.
        after = begin + -(-length // aligned) * aligned
        yield RankStep(begin, length, topology.rank, topology.world_size, period, begin_of_pass), after
        number += share.every


def _stacked(samples: Iterator[Positioned], settings: StreamSettings) -> Iterator[Positioned]:
    """Group samples into batches; if stages dropped some, the last batch of a bounded stream is smaller."""
    while rows := list(islice(samples, settings.batch_size)):
        batch = stack([item for _, item in rows])
        yield rows[-1][0], to_numpy(batch) if settings.numpy else to_torch(batch)
