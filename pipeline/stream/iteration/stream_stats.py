"""What an iteration counted, and where its position is, as a dict that prints as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..config import StreamConfig
from ..data.counted_data import CountedData
from ..order.mixture import Mixture
from ..position import Position
from ..protocols import Reader
from ..sequential.cursor import NUMBERS, beginning
from ..sequential.sequential_reader import lane_stats
from .passes import Passes


class Stats(dict[str, Any]):
    """Counts and times by name: plain numbers, and dicts of them, so that they are JSON.

    >>> Stats(tokens=8192, waited_share=0.012345, sources={"web": {"asked": 0.75, "epoch": 3}})
    tokens        8,192
    waited_share  0.01235
    sources
      web         asked 0.75, epoch 3
    """

    def __repr__(self) -> str:
        rows = list(_rows(self))
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join(f"{name:{width}}  {value}".rstrip() for name, value in rows)


def _rows(stats: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in stats.items():
        yield name, "" if isinstance(value, dict) else _written(value)
        if isinstance(value, dict):
            yield from (("  " + inner, _written(item)) for inner, item in value.items())


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_written(item)}" for name, item in value.items())
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def metrics_of(stats: Mapping[str, Any], prefix: str = "data") -> dict[str, float]:
    """Return the numbers of stats under flat names.

    >>> metrics_of({"tokens": 8, "waited_share": 0.5, "sources": {"web": {"asked": 0.75, "served": 0.7}}})
    {'data/tokens': 8, 'data/waited_share': 0.5, 'data/source/web/asked': 0.75, 'data/source/web/served': 0.7}
    """
    found: dict[str, float] = {}
    for name, value in stats.items():
        path = f"{prefix}/{'source' if name == 'sources' else name}"
        found |= metrics_of(value, path) if isinstance(value, Mapping) else {path: value}
    return found


def stats_of_workers(workers: Sequence[Mapping[str, Any]]) -> Stats:
    """Return the sums of what workers of a loader counted. They do not know how long their consumer waits.

    >>> one, two = ({"items": 2, "tokens": 8, "seconds": s, "sequence_index": i, "epoch": 0} for s, i in ((1.0, 8), (2.0, 10)))
    >>> stats_of_workers([one, two])
    items              4
    tokens             16
    seconds            2
    sequence_index     10
    epoch              0
    tokens_per_second  8
    """
    furthest = max(workers, key=lambda stats: stats["sequence_index"])
    shared = set.intersection(*(set(stats) for stats in workers))  # a worker leaves out what is too long
    merged = Stats({name: furthest[name] for name in furthest if name in shared and not name.startswith("waited")})
    for name in merged.keys() & {
        "items",
        "tokens",
        "bytes_read",
        "documents",
        "rejected",
        "bad_records",
        "damaged_files",
    }:
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


def stats_of(reader: Reader[Any] | None, config: StreamConfig) -> dict[str, Any]:
    """Return what a reader counts, or what it would count before it reads anything."""
    if reader is not None:
        return reader.stats()
    return lane_stats(Counter(), 0) if config.sequential else {"bytes_read": 0}


def stats_at(
    position: Position,
    config: StreamConfig,
    world_size: int,
    mixture: Mixture | None,
    tokens_read: Sequence[int] | None,
) -> dict[str, Any]:
    """Return the epoch of a position; of a mix, that of the source that is least far, and what each source served."""
    if mixture is None:
        return {"epoch": Passes(config, world_size).epoch(position)}
    shares = mixture.shares(position.sequence_index)
    if config.sequential:
        cursors = position.lanes or beginning(position.start_epoch or 0, 1, len(shares))
        epochs = [min(cursor[NUMBERS * number] for cursor in cursors.values()) for number in range(len(shares))]
    else:
        sources = [source for source in config.sources.by_name.values() if isinstance(source, CountedData)]
        shared = zip(sources, shares.values(), strict=True)
        epochs = [config.sequences_of(source).epoch(share["sequences"]) for source, share in shared]
    columns = zip(shares.items(), tokens_read or [0] * len(shares), epochs, strict=True)
    served = {name: {**share, "tokens": tokens, "epoch": epoch} for (name, share), tokens, epoch in columns}
    return {"epoch": min(epochs), "sources": served}
