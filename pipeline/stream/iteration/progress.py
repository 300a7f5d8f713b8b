"""The counts of an iteration: its position, items, tokens and times, and the counts of its reader and its mix."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from ..assemble import make_mixture
from ..batch.rows import Reader
from ..lanes import NUMBERS
from ..order.mixture import Mixture
from ..position import Position
from ..sequential.lane_reader import lane_stats
from ..stream_plan import StreamPlan


class IterationProgress:
    """The position, counts and times of an iterator. They remain after the iterator is gone."""

    def __init__(self, plan: StreamPlan, position: Position, reader: Reader[Any] | None) -> None:
        self.position = position
        self.items = 0
        self.expected: int | None = None  # items of this process in the pass, if their number is known
        self.tokens = 0
        self.waited = 0.0
        self.began: float | None = None
        self.ended: float | None = None
        self.finished = False  # whether the iterator has handed out all items without an error
        self.reader = reader
        self._plan = plan

    @property
    def has_ended(self) -> bool:
        """Whether the items of the pass were handed out. A loop that knows their number asks for none after the last."""
        return self.finished or self.items == self.expected

    @cached_property
    def _mixture(self) -> Mixture | None:
        return make_mixture(self._plan)

    def stats(self) -> dict[str, Any]:
        """Return counts, times and rates, and the counts of the reader."""
        seconds = ((self.ended or time.perf_counter()) - self.began) if self.began is not None else 0.0
        tokens_read = None if self.reader is None else self.reader.tokens_read
        return dict(
            items=self.items,
            tokens=self.tokens,
            seconds=seconds,
            tokens_per_second=self.tokens / seconds if seconds else 0.0,
            waited_seconds=self.waited,
            waited_share=self.waited / seconds if seconds else 0.0,
            sequence_index=self.position.sequence_index,
            **stats_of(self.reader, self._plan),
            **stats_at(self.position, self._plan, self._mixture, tokens_read),
        )


def metrics_of(stats: Mapping[str, Any], prefix: str = "data") -> dict[str, float]:
    """Return the numbers of stats under flat names.

    >>> metrics_of({"tokens": 8, "waited_share": 0.5, "sources": {"web": {"asked": 0.75, "served": 0.7}}})
    {'data/tokens': 8, 'data/waited_share': 0.5, 'data/source/web/asked': 0.75, 'data/source/web/served': 0.7}
    """
    metrics: dict[str, float] = {}
    for name, value in stats.items():
        path = f"{prefix}/{'source' if name == 'sources' else name}"
        metrics |= metrics_of(value, path) if isinstance(value, Mapping) else {path: value}
    return metrics


def stats_of_workers(workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums of the counts of a loader's workers. Workers do not know how long their consumer waits.

    >>> one = {"items": 2, "tokens": 8, "seconds": 1.0, "waited_seconds": 0.1, "sequence_index": 8, "epoch": 0}
    >>> stats_of_workers([one, one | {"seconds": 2.0, "sequence_index": 10, "documents": 3}])
    {'items': 4, 'tokens': 16, 'seconds': 2.0, 'sequence_index': 10, 'epoch': 0, 'tokens_per_second': 8.0}
    """
    furthest = max(workers, key=lambda stats: stats["sequence_index"])
    shared = set.intersection(*(set(stats) for stats in workers))  # a worker leaves out counts that are too long
    merged = {name: furthest[name] for name in furthest if name in shared and not name.startswith("waited")}
    for name in merged.keys() & {*"items tokens bytes_read documents rejected bad_records damaged_files".split()}:
        merged[name] = sum(stats[name] for stats in workers)
    merged["seconds"] = max(stats["seconds"] for stats in workers)
    merged["tokens_per_second"] = merged["tokens"] / merged["seconds"] if merged["seconds"] else 0.0
    if "rejected_by" in merged:
        reasons = sum((Counter(stats["rejected_by"]) for stats in workers), Counter[str]())
        merged["rejected_by"] = dict(sorted(reasons.items()))
    if "sources" in merged:
        merged["sources"] = {
            name: source | {"tokens": sum(stats["sources"][name]["tokens"] for stats in workers)}
            for name, source in merged["sources"].items()
        }
    return merged


def stats_of(reader: Reader[Any] | None, plan: StreamPlan) -> dict[str, Any]:
    """Return the counts of a reader, or zeros without a reader."""
    if reader is not None:
        return reader.stats()
    return lane_stats(Counter(), 0) if plan.sequential else {"bytes_read": 0}


def stats_at(
    position: Position,
    plan: StreamPlan,
    mixture: Mixture | None,
    tokens_read: Sequence[int] | None,
) -> dict[str, Any]:
    """Return the epoch of a position; for a mix, the lowest epoch of its sources, and the shares of each, also by phase."""
    if mixture is None:
        return {"epoch": plan.passes.epoch(position)}
    shares = mixture.shares(position.sequence_index)
    if plan.sequential:
        cursors = plan.cursors(position)
        epochs = [min(cursor[NUMBERS * number] for cursor in cursors.values()) for number in range(len(shares))]
    else:
        shared = zip(plan.sources.counted.values(), shares.values(), strict=True)
        epochs = [plan.sequences_of(source).epoch(share["sequences"]) for source, share in shared]
    columns = zip(shares.items(), tokens_read or [0] * len(shares), epochs, strict=True)
    served = {name: {**share, "tokens": tokens, "epoch": epoch} for (name, share), tokens, epoch in columns}
    if len(plan.phases) > 1:
        phases = {
            str(number): mixture.shares_between(*phase)
            for number, phase in enumerate(plan.phases_until(position.sequence_index, mixture.lanes))
            if phase[0] >= mixture.starts[0] * mixture.lanes
        }
        for name, source in served.items():
            source["phases"] = {number: phase[name] for number, phase in phases.items()}
    return {"epoch": min(epochs), "sources": served}
