"""What a global step is made of: of every row its documents, and which tokens of each.

Rows of an indexed stream are found by arithmetic. A sequential one is read on, from where it stands to the step, with a number in
place of each token (`sequential.catalogue`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..weak_methods import weak_lru_cache
from .assemble import make_reader
from .batch.row_buffer import DocumentRows, Rows
from .config import StreamConfig
from .data.counted_data import CountedData
from .indexed import IndexedReader, Location
from .iteration.passes import Passes
from .layout import DocumentLayout, PackLayout, SampleLayout
from .order import RankStep
from .position import Position, WorkerContext, WorkerShare
from .sequential.catalogue import Catalogue, Span
from .windows.indexed_lanes import IndexedLanes
from .windows.window import WindowListing

if TYPE_CHECKING:
    from ..text.document import Document

Progress = Callable[[int, int], object]  # of steps that were read, and of those to read

_WINDOWS = 64  # whose documents stay listed: rows of one lane lie in one window


class _Origin(NamedTuple):
    """A document of a row: its source, shard and number there, and the span that gets what the shard says of it."""

    source: str
    shard: int
    document: int
    data: CountedData
    span: dict[str, Any]


def trace(
    config: StreamConfig,
    world_size: int,
    position: Position,
    step: int,
    rank: int | None,
    *,
    with_ids: bool,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of a step, of all ranks or of one, as `Stream.trace` gives them."""
    ranks = range(world_size) if rank is None else [rank]
    if config.sequential:
        return ReadTrace(config, world_size, position, progress).step(step, ranks, with_ids=with_ids)
    return Trace(config, world_size, position).step(step, ranks, with_ids=with_ids)


class Trace:
    """Finds the documents of the rows of any step of an indexed stream, on ``world_size`` ranks, for a run at ``position``."""

    def __init__(self, config: StreamConfig, world_size: int, position: Position) -> None:
        if not config.counts_items:
            raise ConfigError("a stage given to .apply() may drop items, so steps behind it cannot be traced")
        self._config, self._world_size, self._position = config, world_size, position
        self._listing = weak_lru_cache(self._list, _WINDOWS)

    def step(self, number: int, own_ranks: Iterable[int], *, with_ids: bool) -> list[dict[str, Any]]:
        """Return the rows of some ranks in a step."""
        config, ranks = self._config, self._world_size
        begin, size, start = Passes(config, ranks).step(number, self._position)
        reader: Any = make_reader(config, start, WorkerContext(0, ranks), WorkerShare(0, 1))
        try:
            traced, origins = list[dict[str, Any]](), list[_Origin]()
            for each in own_ranks:
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


class ReadTrace:
    """Finds the documents of the rows of a step of a sequential stream, which it reads from ``position`` on.

    ``progress`` is told how many steps were read, of how many. Raises ``ConfigError`` for live sources, which cannot be read
    again.
    """

    def __init__(
        self, config: StreamConfig, world_size: int, position: Position, progress: Progress | None = None
    ) -> None:
        if any(config.sources.live):
            raise ConfigError("a live source cannot be read again, so the steps of its stream cannot be traced")
        if not config.counts_items:
            raise ConfigError("a stage given to .apply() may drop items, so steps behind it cannot be traced")
        if position.taken:
            raise ConfigError(
                f"the state stands inside a step, of which {position.taken} rows were taken; load one from between two steps"
            )
        self._config, self._world_size, self._position = config, world_size, position
        self._progress = progress

    def step(self, number: int, own_ranks: Iterable[int], *, with_ids: bool) -> list[dict[str, Any]]:
        """Return the rows of some ranks in a step. Steps count from the beginning of the pass that the position is in."""
        size = (self._config.batch_size or 1) * self._world_size
        first, end = (
            self._position.sequence_index // size,
            Passes(self._config, self._world_size).bounds(self._position)[1],
        )
        if number < first:
            raise ConfigError(
                f"step {number} was read before the stream came to where it stands, step {first}: load a state of an earlier step"
            )
        if end is not None and number >= (end // size if self._config.drop_last else -(-end // size)):
            raise ConfigError(f"step {number} lies behind the end: the stream has {-(-end // size):,} steps")
        ranks, traced, is_whole = list(own_ranks), list[dict[str, Any]](), True
        for of_rank, rank in enumerate(ranks):
            told = (of_rank * (number + 1 - first), len(ranks) * (number + 1 - first))
            rows, missing = self._rows(first, number, rank, end, told, with_ids=with_ids)
            traced, is_whole = traced + rows, is_whole and not missing
        if not traced or (self._config.drop_last and not is_whole):
            raise ConfigError(f"step {number} lies behind the end of the stream")
        return traced

    def _rows(
        self, first: int, number: int, rank: int, end: int | None, told: tuple[int, int], *, with_ids: bool
    ) -> tuple[list[dict[str, Any]], int]:
        """Read the steps from ``first`` on; return the rows of a rank in the last one, ``number``, and how many it lacks."""
        config, ranks, catalogue = self._config, self._world_size, Catalogue()
        size = (config.batch_size or 1) * ranks
        reader = make_reader(config, self._position, WorkerContext(rank, ranks), WorkerShare(0, 1), catalogue)
        try:
            for step in range(first, number + 1):
                catalogue.begin_step()
                length = size if end is None else min(size, end - step * size)
                rows = reader.read(RankStep(step * size, length, rank, ranks, config.rank_period(ranks)))
                if self._progress is not None:
                    self._progress(told[0] + step + 1 - first, told[1])
            begin = number * size + rank * (config.batch_size or 1)
            traced = []
            for row, numbers in enumerate(self._numbers(rows)):
                spans = list(catalogue.spans(numbers))
                name = {"source": spans[0].source} if config.sources.is_mix and spans else {}
                documents = self._told(spans, with_ids=with_ids)
                traced.append({"rank": rank, "row": row, "sequence_index": begin + row, **name, "documents": documents})
            return traced, rows.missing
        finally:
            reader.close()

    def _numbers(self, rows: Rows | DocumentRows) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the tokens in each row, without labels behind it."""
        layout = self._config.stated_layout()
        if isinstance(rows, DocumentRows):
            assert isinstance(layout, DocumentLayout)
            yield from (document[: layout.max_length] for document in rows.documents)
            return
        assert isinstance(layout, PackLayout)
        for row, tokens in enumerate(rows.tokens):
            yield tokens[: layout.seq_len if rows.valid is None else min(layout.seq_len, int(rows.valid[row]))]

    def _told(self, spans: list[Span], *, with_ids: bool) -> list[dict[str, Any]]:
        """Return what a trace says of the documents of a row."""
        told, at = list[dict[str, Any]](), 0
        for span in spans:
            end = at + span.last - span.first
            one: dict[str, Any] = {"row_begin": at, "row_end": end, "document_begin": span.first}
            one |= {"document_end": span.last, "document_tokens": span.length}
            if with_ids:
                one["ids"] = span.ids.tolist()
            told.append(one | {"origin": self._origin(span)})
            at = end
        return told

    def _origin(self, span: Span) -> dict[str, Any]:
        """Say where a document comes from: by shard and number, or by file and line (or byte)."""
        source = self._config.sources.by_name[span.source]
        if isinstance(source, CountedData):
            return source.origin(*span.origin)
        document: Document = span.origin
        where = {"line": document.line} if document.line else {"byte": document.byte}
        return {"file": document.file, **where, "id": document.id, **document.metadata}
