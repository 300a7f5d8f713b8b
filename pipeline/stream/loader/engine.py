"""One iteration of a stream: the items of one rank and worker, each with the position after it.

    core -> collate -> the user's stages -> batches of what they changed -> read ahead -> device

A position rides with every item, so nothing needs to know how far ahead of the consumer its source is.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from ...errors import ConfigError
from ..batch.collate import row_of, stack
from ..batch.device import place_on_device, read_ahead, to_numpy, to_torch
from ..batch.label_shift import DrawnShifts
from ..config import Plan
from ..indexed.core import Core
from ..order import Step
from ..sequential.reader import SequentialReader
from .epochs import item_count, pass_bounds
from .even_steps import EvenSteps
from .position import Position
from .user_stages import Map, Take, counts_items
from .worker_context import WorkerContext

Item = Any
Positioned = tuple[Position, Item]

log = logging.getLogger("pipeline")


def share_of(plan: Plan, position: Position, context: WorkerContext) -> tuple[int, int]:
    """Return which of its rank's items a loader's worker makes: how many it passes over, then every how many-th."""
    return (position.skip, context.workers) if _can_divide(plan) else (0, 1)


def _can_divide(plan: Plan) -> bool:
    """Say whether each worker of a loader can make its own items alone.

    A stage that may drop or add must see all of its rank's items, in every worker; so must who does not know ahead which
    lanes end first.
    """
    return counts_items(plan) and not (plan.by_cursors and plan.epochs is not None)


def run(plan: Plan, core: Core | SequentialReader, position: Position, context: WorkerContext) -> Iterator[Positioned]:
    """Yield the items of one worker from ``position`` on."""
    by_sample = plan.batch_size is None or bool(plan.steps)
    skip, every = share_of(plan, position, context)
    if isinstance(core, SequentialReader):
        items = _from_reader(plan, core, position, context, skip, every, by_sample)
    else:
        items = _from_core(plan, core, position, context, skip, every, by_sample)
    if not plan.numpy:
        items = ((after, to_torch(item)) for after, item in items)
    takes = [n for n, step in enumerate((*plan.steps, *plan.batch_steps)) if isinstance(step, Take)]
    even = EvenSteps(plan, takes, context)
    if by_sample:
        items = _stages(plan.steps, 0, items, position, even)
    if plan.batch_size is not None:
        items = _stacked(items, plan) if by_sample else items
        items = _stages(plan.batch_steps, len(plan.steps), items, position, even)
    if not _can_divide(plan):
        items = islice(items, position.skip, None, context.workers)
    ahead = plan.prefetch
    if ahead is None:
        ahead = 2 if plan.device is not None and plan.device.startswith("cuda") else 0
    if ahead:
        items = read_ahead(items, ahead)
    if plan.device is None or plan.device == "cpu":
        return items
    # After the thread, so that the copies are ordered against the consumer's own CUDA stream.
    return place_on_device(items, plan.device)


def _from_core(
    plan: Plan, core: Core, position: Position, context: WorkerContext, skip: int, every: int, by_sample: bool
) -> Iterator[Positioned]:
    """Yield batches, or the samples that make them one by one, passing over ``skip`` and then taking every n-th."""
    collator: Any = plan.collator()
    start = position.sequence_index
    after_item = partial(Position, weights=position.weights, start_epoch=position.start_epoch)
    rank, world_size = context.rank, context.world_size
    size = plan.batch_size or 1
    step = size * world_size
    begin_of_pass, end = pass_bounds(plan, core.first, position, world_size)
    batches = None if end is None else item_count(plan, start, end, context, core.lanes)
    if batches is not None and plan.drop_last and rank == skip == 0 and end is not None and end > start:
        lost = (end - start) % step
        log.warning(
            "last='drop' drops the last %d of %d sequences, %d batches a rank remain",
            lost,
            end - begin_of_pass,
            batches,
        )
    number, taken = skip, position.taken
    try:
        while batches is None or number < batches:
            after = start + number * step
            length = step if end is None else max(0, min(step, end - after))
            numbers = Step(after, length, rank, world_size, core.lanes)
            collate = collator.of_step(after) if isinstance(collator, DrawnShifts) else collator
            end_of_step = after_item(after + length)
            if by_sample:
                for row in range(taken, size):
                    sample = row_of(collate(core, numbers.rows(row, row + 1), 1))
                    yield after_item(after, taken=row + 1) if row + 1 < size else end_of_step, sample
                taken = 0
            else:
                yield end_of_step, collate(core, numbers, size)
            number += every
    finally:
        core.close()


def _from_reader(
    plan: Plan,
    reader: SequentialReader,
    position: Position,
    context: WorkerContext,
    skip: int,
    every: int,
    by_sample: bool,
) -> Iterator[Positioned]:
    """Yield the batches of this rank's rows of each step, or their samples, passing over ``skip`` and then taking every n-th."""
    collator: Any = plan.collator()
    size = plan.batch_size or 1
    rows = size * context.world_size
    begin, row = position.sequence_index // rows, position.taken
    _, end = pass_bounds(plan, lambda epoch: 0, position, context.world_size)
    batches = None if end is None else item_count(plan, begin * rows, end, context, lanes=1)
    number = skip
    try:
        while batches is None or number < batches:
            step = begin + number
            first = step * rows + context.rank * size
            wanted = size if end is None else max(0, min(size, end - first))
            drawn, expected = [], max(0, wanted - row)
            for counts in [1] * (size - row) if by_sample else [size]:
                part = reader.read(step, row, max(0, min(counts, wanted - row)))
                row += counts
                taken = row % size
                after = Position(
                    (step + (not taken)) * rows, lanes=reader.cursors, start_epoch=position.start_epoch, taken=taken
                )
                drawn.append((after, part))
            found = sum(part.count for _, part in drawn)
            if found < expected and (plan.drop_last or found == 0):
                if found:
                    log.warning("last='drop' drops the last %d sequences, short of a batch", found)
                return
            collate: Any = collator.of_step(step * rows) if isinstance(collator, DrawnShifts) else collator
            for after, part in drawn:
                batch = collate(part, range(part.count), 1 if by_sample else size)
                yield after, row_of(batch) if by_sample else batch
            number, row = number + every, 0
    finally:
        reader.close()


def _stages(
    steps: tuple[Any, ...], number: int, items: Iterator[Positioned], start: Position, even: EvenSteps
) -> Iterator[Positioned]:
    for n, step in enumerate(steps, number):
        items = _mapped(step.function, items) if isinstance(step, Map) else _applied(step, n, items, start, even)
    return items


def _mapped(function: Callable[[Any], Any], items: Iterator[Positioned]) -> Iterator[Positioned]:
    for position, item in items:
        yield position, function(item)


def _applied(
    step: Any, number: int, items: Iterator[Positioned], start: Position, even: EvenSteps
) -> Iterator[Positioned]:
    """Run a stage of the user's, what it gives gets the position after what it took last.

    One that remembers is copied, so that iterators do not share what it knows.
    """
    name = f"{number}.{type(step).__name__}"
    fields = getattr(step, "remembers", ())
    bound = name if start.bound_to == name or (fields and getattr(step, "per_rank", True)) else None
    if fields:
        step = copy.deepcopy(step)
        for field, value in start.stages.get(name, {}).items():
            setattr(step, field, copy.deepcopy(value))
    position, taken, exhausted = start, 0, False

    def feed() -> Iterator[Item]:
        nonlocal position, taken, exhausted
        for after, each in items:
            position, taken = after, taken + 1
            yield each
        exhausted = True

    for item in step(feed()):
        if not fields and taken == 0:
            raise ConfigError(
                f"stage {name} gave two items for one, so a state between them would lose the second; make it a class "
                "whose `remembers` names what it needs to go on there"
            )
        if not fields and taken > 1:
            bound = name  # it drops items, so ranks that gave equally many have taken differently many
        if taken != 1:
            even.upset(name, number)
        taken = 0
        stages = {**position.stages}
        if fields:
            stages[name] = {field: copy.deepcopy(getattr(step, field)) for field in fields}
        yield replace(position, skip=0, stages=stages, bound_to=bound or position.bound_to), item
    if taken and exhausted:  # one that ends by itself may well end alike on all ranks
        even.upset(name, number)
    if isinstance(step, Take):
        even.ended(number, step.taken, step.count)


def _stacked(samples: Iterator[Positioned], plan: Plan) -> Iterator[Positioned]:
    """Group samples into batches; where stages dropped some, the last batch of a bounded stream is smaller."""
    while rows := list(islice(samples, plan.batch_size)):
        batch = stack([item for _, item in rows], plan.stored_dtype)
        yield rows[-1][0], to_numpy(batch) if plan.numpy else to_torch(batch)
