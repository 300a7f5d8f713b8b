"""One iteration of a stream: the items of one rank and worker, each with the position after it.

    reader -> collate -> the user's stages -> batches of what they changed -> read ahead -> device

Every item comes with its position, so nothing needs to know how far ahead of the consumer its source is.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from ...errors import ConfigError
from ..batch.collate import row_of, stack
from ..batch.device import place_on_device, read_ahead, to_numpy, to_torch
from ..config import StreamConfig
from ..data.base import Share
from ..order import Step
from ..reader import Collator, Reader
from .epochs import first_of, item_count, pass_bounds
from .even_steps import EvenSteps
from .fruitless_stage import FruitlessStage
from .position import Position
from .user_stages import HeldItems, Map, Take, counts_items
from .worker_context import WorkerContext

Item = Any
Positioned = tuple[Position, Item]

log = logging.getLogger("pipeline")


def share_of(config: StreamConfig, position: Position, context: WorkerContext) -> Share:
    """Return which of its rank's items a loader's worker makes."""
    return Share(position.skip, context.workers) if _can_divide(config) else Share(0, 1)


def _can_divide(config: StreamConfig) -> bool:
    """Say whether each worker of a loader can make its own items alone.

    Every worker makes all of its rank's items where a stage may drop or add items, and for a bounded sequential stream,
    of which it is unknown in advance which lanes end first.
    """
    return counts_items(config) and not (config.sequential and config.epochs is not None)


def run(config: StreamConfig, reader: Reader[Any], position: Position, context: WorkerContext) -> Iterator[Positioned]:
    """Yield the items of one worker from ``position`` on."""
    by_sample = config.batch_size is None or bool(config.steps)
    items = _samples(config, reader, position, context) if by_sample else _batches(config, reader, position, context)
    takes = [n for n, step in enumerate((*config.steps, *config.batch_steps)) if isinstance(step, Take)]
    even = EvenSteps(config, takes, context)
    if by_sample:
        items = _stages(config, config.steps, 0, items, position, even)
    if config.batch_size is not None:
        items = _stacked(items, config) if by_sample else items
        items = _stages(config, config.batch_steps, len(config.steps), items, position, even)
    if not _can_divide(config):
        items = islice(items, position.skip, None, context.workers)
    ahead = config.prefetch
    if ahead is None:
        ahead = 2 if config.device is not None and config.device.startswith("cuda") else 0
    if ahead:
        items = read_ahead(items, ahead)
    if config.device is None or config.device == "cpu":
        return items
    # After the thread, so that the copies are ordered against the consumer's own CUDA stream.
    return place_on_device(items, config.device)


def _batches(
    config: StreamConfig, reader: Reader[Any], position: Position, context: WorkerContext
) -> Iterator[Positioned]:
    """Yield the batches of a rank, or of one worker of its loader, each with the position after it."""
    assert config.batch_size is not None
    collate: Collator[Any] = config.collator(config.batch_size)
    after = partial(Position, weights=position.weights, start_epoch=position.start_epoch)
    tensors = not config.numpy
    try:
        for step, end_of_step in steps(config, reader, position, context):
            rows = reader.read(step)
            if rows.missing and (config.drop_last or not rows.filled):
                _note_end(rows.filled)
                return
            batch = collate(rows, step.begin)
            yield after(end_of_step, lanes=reader.cursors), to_torch(batch) if tensors else batch
            del rows, batch  # so that the next batch can reuse their memory
    finally:
        reader.close()


def _samples(
    config: StreamConfig, reader: Reader[Any], position: Position, context: WorkerContext
) -> Iterator[Positioned]:
    """Yield the samples that make the batches of a rank or of one worker, each with the position after it."""
    collate: Collator[Any] = config.collator(1)
    after = partial(Position, weights=position.weights, start_epoch=position.start_epoch)
    size, taken = config.batch_size or 1, position.taken
    try:
        for step, end_of_step in steps(config, reader, position, context):
            samples: deque[Positioned] = deque()
            found = missing = 0
            for row in range(taken, size):
                rows = reader.read(step.rows(row, row + 1))
                found, missing = found + rows.filled, missing + rows.missing
                sample, lanes = row_of(collate(rows, step.begin)), reader.cursors
                here = (
                    after(step.begin, taken=row + 1, lanes=lanes) if row + 1 < size else after(end_of_step, lanes=lanes)
                )
                samples.append((here, sample if config.numpy else to_torch(sample)))
            if missing and (config.drop_last or not found):
                _note_end(found)
                return
            taken = 0
            while samples:  # none is kept that a stage drops
                yield samples.popleft()
    finally:
        reader.close()


def steps(
    config: StreamConfig, reader: Reader[Any], position: Position, context: WorkerContext
) -> Iterator[tuple[Step, int]]:
    """Yield the steps of one worker, each with the sequence index of the position after it."""
    skip, every = share_of(config, position, context)
    size = (config.batch_size or 1) * context.world_size
    start, count = position.sequence_index, None
    begin_of_pass, end = pass_bounds(config, first_of(config), position, context.world_size)
    if end is not None:
        count = item_count(config, start, end, context, reader.rank_period)
        if config.drop_last and context.rank == skip == 0 and end > start:
            lost, whole = (end - start) % size, end - begin_of_pass
            log.warning("last='drop' drops the last %d of %d sequences, %d batches a rank remain", lost, whole, count)
    number = skip
    while count is None or number < count:
        begin = start + number * size
        length = size if end is None else max(0, min(size, end - begin))
        after = begin + -(-length // reader.alignment) * reader.alignment
        yield Step(begin, length, context.rank, context.world_size, reader.rank_period), after
        number += every


def _note_end(found: int) -> None:
    if found:
        log.warning("last='drop' drops the last %d sequences, short of a batch", found)


def _stages(
    config: StreamConfig,
    steps: tuple[Any, ...],
    number: int,
    items: Iterator[Positioned],
    start: Position,
    even: EvenSteps,
) -> Iterator[Positioned]:
    for n, step in enumerate(steps, number):
        items = (
            _mapped(step.function, items) if isinstance(step, Map) else _applied(config, step, n, items, start, even)
        )
    return items


def _mapped(function: Callable[[Any], Any], items: Iterator[Positioned]) -> Iterator[Positioned]:
    for position, item in items:
        yield position, function(item)


def _applied(
    config: StreamConfig, step: Any, number: int, items: Iterator[Positioned], start: Position, even: EvenSteps
) -> Iterator[Positioned]:
    """Run a stage of the user; an item that it gives gets the position after the last item that it took.

    A stage that remembers is copied, so that iterators do not share its fields.
    """
    name = f"{number}.{type(step).__name__}"
    fields = getattr(step, "remembers", ())
    bound = name if start.bound_to == name or (fields and getattr(step, "per_rank", True)) else None
    if fields:
        step = copy.deepcopy(step)
        for field, value in start.stages.get(name, {}).items():
            setattr(step, field, copy.deepcopy(value))
    position, taken, exhausted = start, 0, False
    fruitless = FruitlessStage(config, name, start, even.ranks)
    held = None if hasattr(step, "remembers") else HeldItems()

    def feed() -> Iterator[Item]:
        nonlocal position, taken, exhausted
        for after, each in items:
            position, taken = after, taken + 1
            fruitless.took(taken, position)
            if held is not None:
                held.take(each)
            yield each
        exhausted = True

    for item in step(feed()):
        fruitless.gave(position)
        if not fields and taken == 0:
            raise ConfigError(
                f"stage {name} gave two items for one, so a state between them would lose the second; make it a class "
                "whose `remembers` names what it needs to go on there"
            )
        if not fields and taken > 1:
            bound = name  # it drops items, so ranks that gave equally many may have taken unequally many
        if held is not None and held.give(item) and bound is not None:
            raise ConfigError(
                f"stage {name} takes items ahead and keeps them, so a state between the items that it gives would lose them; "
                "make it a class whose `remembers` names what it needs to go on there, or leave the order to .shuffle(); "
                "`remembers = ()` says that what it keeps does not matter"
            )
        if taken != 1:
            even.upset(name, number)
        taken = 0
        stages = {**position.stages}
        if fields:
            stages[name] = {field: copy.deepcopy(getattr(step, field)) for field in fields}
        yield replace(position, skip=0, stages=stages, bound_to=bound or position.bound_to), item
    if taken and exhausted:  # a stage that stops by itself may stop equally on all ranks
        even.upset(name, number)
    if isinstance(step, Take):
        even.ended(number, step.taken, step.count)


def _stacked(samples: Iterator[Positioned], config: StreamConfig) -> Iterator[Positioned]:
    """Group samples into batches; where stages dropped some, the last batch of a bounded stream is smaller."""
    while rows := list(islice(samples, config.batch_size)):
        batch = stack([item for _, item in rows], config.stored_dtype)
        yield rows[-1][0], to_numpy(batch) if config.numpy else to_torch(batch)
