"""The rows of several ranks, put back into the global order."""

from __future__ import annotations

from typing import Any

import pipeline
from pipeline.stream.iteration.passes import Passes
from pipeline.stream.order import RankStep
from pipeline.stream.position import Position


def global_rows(ranks: list[list[Any]], batch: int, lanes: int, *, start: int = 0, end: int | None = None) -> list[Any]:
    """Return the rows of all ranks in global order, step by step, what fills a step's missing rows behind its own.

    ``ranks`` hold the rows of each, ``batch`` a step, from sequence index ``start`` on; ``end`` bounds the stream.
    """
    found: list[Any] = []
    size = batch * len(ranks)
    for number in range(max(map(len, ranks)) // batch):
        begin = start + number * size
        own = size if end is None else max(0, min(size, end - begin))
        placed, filling = [None] * own, []
        for rank, rows in enumerate(ranks):
            mine = rows[number * batch : (number + 1) * batch]
            indices = list(RankStep(begin, own, rank, len(ranks), lanes))
            for i, row in zip(indices, mine, strict=False):
                placed[i - begin] = row
            filling += mine[len(indices) :]
        found += placed + filling
    return found


def rows_in_order(
    make: Any, world_size: int, batch: int, state: dict[str, Any] | None = None, rows: Any = None
) -> list[Any]:
    """Return the rows that ``world_size`` ranks of ``make()`` get, in global order: the ids, or what ``rows(stream)`` gives."""
    config, ranks = make()._config, []
    for rank in range(world_size):
        stream = make().shard(rank, world_size).batch(batch)
        if state:
            stream.load_state_dict(state)
        ranks.append((rows or rows_of)(stream))
    end = Passes(config, world_size).bounds(Position(0))[1]
    start = state["sequence_index"] if state else 0
    return global_rows(ranks, batch, config.lane_count, start=start, end=end)


def rows_of(stream: pipeline.Stream) -> list[list[int]]:
    """Return the ids of the rows of all batches."""
    return [row for batch in stream for row in batch["input_ids"].tolist()]
