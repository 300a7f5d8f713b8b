"""One iteration of a stream: the items of one rank and worker, each with the position after it.

    reader -> collate -> the user's stages -> batches of what they changed -> read ahead -> device

Every item comes with its position, so nothing needs to know how far ahead of the consumer its source is.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

from ..assemble import make_collator
from ..batch.collate import row_of, stack
from ..batch.device import place_on_device, read_ahead, to_numpy, to_torch
from ..config import StreamConfig
from ..order import Step
from ..position import Position, WorkerContext
from ..reader import Reader, Share
from .passes import Passes, item_count
from .stages import Positioned, UserStages, counts_items
from .stream_end import StreamEnd, ranks_agree

log = logging.getLogger("pipeline")


def share_of(config: StreamConfig, position: Position, context: WorkerContext) -> Share:
    """Return which of its rank's items a loader's worker makes."""
    return Share(position.skip, context.workers) if _can_divide(config) else Share(0, 1)


def _can_divide(config: StreamConfig) -> bool:
    """Say whether each worker of a loader can make its own items alone.

    Every worker makes all of its rank's items where a stage may drop items, and for a bounded sequential stream, of
    which it is unknown in advance which lanes end first.
    """
    return counts_items(config) and not (config.sequential and config.epochs is not None)


def items_from(
    config: StreamConfig, reader: Reader[Any], position: Position, context: WorkerContext
) -> Iterator[Positioned]:
    """Yield the items of one worker from ``position`` on."""
    end = StreamEnd(config, context)
    passes = Passes(config, context.world_size)
    stages = UserStages(config, position, context, None if passes.bounded else passes.epoch)
    if config.batch_size is None or config.steps:
        items = stages.run(config.steps, 0, _samples(config, reader, end, position, context))
        if config.batch_size is not None:
            items = _stacked(items, config)
    else:
        items = _batches(config, reader, end, position, context)
    items = stages.run(config.batch_steps, len(config.steps), items)
    if not _can_divide(config):
        items = islice(items, position.skip, None, context.workers)
    ahead = config.prefetch
    if ahead is None:
        on_gpu = config.device is not None and config.device.startswith("cuda")
        ahead = 2 if on_gpu and not ranks_agree(config, context) else 0
    if ahead:
        items = read_ahead(items, ahead)
    if config.device is None or config.device == "cpu":
        return items
    # After the thread, so that the copies are ordered against the consumer's own CUDA stream.
    return place_on_device(items, config.device)


def _batches(
    config: StreamConfig, reader: Reader[Any], end: StreamEnd, position: Position, context: WorkerContext
) -> Iterator[Positioned]:
    """Yield the batches of a rank, or of one worker of its loader, each with the position after it."""
    assert config.batch_size is not None
    collate = make_collator(config, config.batch_size)
    after = partial(Position, weights=position.weights, start_epoch=position.start_epoch)
    try:
        for step, end_of_step in _steps(config, reader, position, context):
            rows = end.read(partial(reader.read, step))
            if not end.goes_on(rows.filled, rows.missing):
                return
            batch = collate(rows, step.begin)
            yield after(end_of_step, lanes=reader.cursors), batch if config.numpy else to_torch(batch)
            del rows, batch  # so that the next batch can reuse their memory
    finally:
        reader.close()


def _samples(
    config: StreamConfig, reader: Reader[Any], end: StreamEnd, position: Position, context: WorkerContext
) -> Iterator[Positioned]:
    """Yield the samples that make the batches of a rank or of one worker, each with the position after it."""
    collate = make_collator(config, 1)
    after = partial(Position, weights=position.weights, start_epoch=position.start_epoch)
    size, taken = config.batch_size or 1, position.taken
    try:
        for step, end_of_step in _steps(config, reader, position, context):
            samples: deque[Positioned] = deque()
            filled = missing = 0
            for row in range(taken, size):
                rows = end.read(partial(reader.read, step.rows(row, row + 1)))
                filled, missing = filled + rows.filled, missing + rows.missing
                sample, lanes = row_of(collate(rows, step.begin)), reader.cursors
                last = row + 1 == size
                behind = after(end_of_step, lanes=lanes) if last else after(step.begin, taken=row + 1, lanes=lanes)
                samples.append((behind, sample if config.numpy else to_torch(sample)))
            if not end.goes_on(filled, missing):
                return
            taken = 0
            while samples:  # none is kept that a stage drops
                yield samples.popleft()
    finally:
        reader.close()


def _steps(
    config: StreamConfig, reader: Reader[Any], position: Position, context: WorkerContext
) -> Iterator[tuple[Step, int]]:
    """Yield the steps of one worker, each with the sequence index of the position after it."""
    skip, every = share_of(config, position, context)
    size = (config.batch_size or 1) * context.world_size
    start, count = position.sequence_index, None
    begin_of_pass, end = Passes(config, context.world_size).bounds(position)
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


def _stacked(samples: Iterator[Positioned], config: StreamConfig) -> Iterator[Positioned]:
    """Group samples into batches; where stages dropped some, the last batch of a bounded stream is smaller."""
    while rows := list(islice(samples, config.batch_size)):
        batch = stack([item for _, item in rows])
        yield rows[-1][0], to_numpy(batch) if config.numpy else to_torch(batch)
