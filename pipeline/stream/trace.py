"""What a global step is made of: of every row its documents, and which tokens of each, found by arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import ConfigError
from ..weak_methods import weak_lru_cache
from .assemble import make_reader
from .config import StreamConfig
from .data.counted_data import CountedData
from .indexed import IndexedReader, Location
from .iteration.passes import Passes
from .iteration.stages import counts_items
from .layout import DocumentLayout, PackLayout, SampleLayout
from .order import RankStep
from .position import Position, WorkerContext
from .protocols import WorkerShare
from .windows.indexed_lanes import IndexedLanes
from .windows.window import WindowListing

_WINDOWS = 64  # whose documents stay listed: rows of one lane lie in one window


class _Origin(NamedTuple):
    """A document of a row: its source, shard and number there, and the span that gets what the shard says of it."""

    source: str
    shard: int
    document: int
    data: CountedData
    span: dict[str, Any]


class Trace:
    """Finds the documents of the rows of any step, on ``world_size`` ranks, for a run that stands at ``position``.

    Raises ``ConfigError`` for a stream whose rows are known only when they are read.
    """

    def __init__(self, config: StreamConfig, world_size: int, position: Position) -> None:
        if config.sequential:
            raise ConfigError(
                "the rows of a sequential stream (texts, filters, best fit) follow from what was read before them, so a step "
                "cannot be traced by arithmetic; trace a stream of shards"
            )
        if not counts_items(config):
            raise ConfigError("a stage given to .apply() may drop items, so steps behind it cannot be traced")
        self._config, self._world_size, self._position = config, world_size, position
        self._listing = weak_lru_cache(self._list, _WINDOWS)

    def step(self, number: int, rank: int | None, *, with_ids: bool) -> list[dict[str, Any]]:
        """Return the rows of a step, of all ranks or of one, as `Stream.trace` gives them."""
        config, ranks = self._config, self._world_size
        begin, size, start = Passes(config, ranks).step(number, self._position)
        reader: Any = make_reader(config, start, WorkerContext(0, ranks), WorkerShare(0, 1))
        try:
            traced, origins = list[dict[str, Any]](), list[_Origin]()
            for each in range(ranks) if rank is None else [rank]:
                indices = RankStep(begin, size, each, ranks, config.rank_period(ranks)).indices()
                for row, (index, location) in enumerate(zip(indices.tolist(), reader.locate(indices), strict=True)):
                    name, data = self._source(reader, location)
                    traced.append({"rank": each, "row": row, "sequence_index": index} | name | {"documents": []})
                    at = 0
                    for shard, document, first, last, length in self._spans(location):
                        span: dict[str, Any] = {"row_begin": at, "row_end": at + last - first}
                        span |= {"document_begin": first, "document_end": last, "document_tokens": length}
                        at += last - first
                        traced[-1]["documents"].append(span)
                        origins.append(_Origin(name.get("source", ""), shard, document, data, span))
            for origin in sorted(origins, key=lambda origin: origin[:3]):  # so that each table is read once
                span = origin.span
                if with_ids:
                    ids = origin.data.document(origin.shard, origin.document)
                    span["ids"] = ids[span["document_begin"] : span["document_end"]].tolist()
                span["origin"] = origin.data.origin(origin.shard, origin.document)
            return traced
        finally:
            reader.close()

    def _source(self, reader: IndexedReader, location: Location) -> tuple[dict[str, str], CountedData]:
        """Return the data that a sequence is of, and of a mix its name."""
        name, source = list(self._config.sources.by_name.items())[reader.source_of(location.lanes)]
        assert isinstance(source, CountedData)
        return {"source": name} if self._config.sources.is_mix else {}, source

    def _spans(self, location: Location) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield shard, number, first token, the one behind the last, and the length of each document in a row."""
        layout, position = self._config.stated_layout(), location.position
        if isinstance(layout, DocumentLayout):
            listing, at = self._listing_at(location.lanes, position)
            length = int(listing.ends[at + 1] - listing.ends[at])
            kept = length if layout.max_length is None else min(length, layout.max_length)
            yield int(listing.shards[at]), int(listing.numbers[at]), 0, kept, length
            return
        assert isinstance(layout, PackLayout | SampleLayout)
        left = min(location.units, layout.seq_len)
        while left > 0:
            listing, at = self._listing_at(location.lanes, position)
            ends = listing.ends
            for number in range(int(ends.searchsorted(at, side="right")) - 1, len(ends) - 1):
                first, last = int(ends[number]), int(ends[number + 1])
                count = min(last - at, left)
                if count:
                    shard, own = int(listing.shards[number]), int(listing.numbers[number])
                    yield shard, own, at - first, at - first + count, last - first
                at, position, left = at + count, position + count, left - count
                if not left:
                    return

    def _listing_at(self, lanes: IndexedLanes, position: int) -> tuple[WindowListing, int]:
        """Return the documents of the window that holds a position, and the position's place there."""
        epoch, number, begin, _ = lanes.window_of(position)
        return self._listing(lanes, epoch, number), position - begin

    def _list(self, lanes: IndexedLanes, epoch: int, number: int) -> WindowListing:
        return lanes.windows.maker.listing(epoch, number)
