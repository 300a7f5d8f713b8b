"""The rows of a run that contain a document: the inverse of `trace`.

For an indexed stream, the order is computed backwards. The document has an extent and a block; in each epoch, the block has a
window, and the document a position in the window. The sequences around this position have steps, ranks and rows. A sequential
stream is read from the beginning of its pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import Any

from ..progress import Progress
from .assemble import make_reader
from .datasets.sources.counted_data import CountedData
from .indexed import IndexedReader
from .order.interleave import GROUP
from .position import Position, Topology, WorkerShare
from .stream_plan import StreamPlan
from .trace import Found, ReadTrace, check_traceable, span_of


def seen(
    plan: StreamPlan,
    position: Position,
    documents: Collection[str],
    steps: int | None,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Return the spans of documents in the first ``steps`` steps of a run, as `Stream.seen` does."""
    check_traceable(plan)
    by_source = plan.sources.find(documents)
    found = {
        name: [place for places in of_source.values() for place in places] for name, of_source in by_source.items()
    }
    passes = plan.passes
    if plan.sequential:
        begin = passes.begin(position.pass_number, position.weights)
        before = -(-(position.sequence_index - begin.sequence_index) // plan.step_size)
        reading = ReadTrace(plan, begin, progress)
        spans = iter(reading.seen(documents, found, before if steps is None else steps))
    else:
        spans = Seen(plan, passes.steps_before(position) if steps is None else steps).spans(found)
    if plan.inserted is not None:
        spans = chain.from_iterable(map(plan.inserted.visible, spans))
    return sorted(spans, key=lambda span: (span["step"], span["rank"], span["row"], span["row_begin"]))


class Seen:
    """Finds the rows of the first ``steps`` steps of an indexed stream that contain documents."""

    def __init__(self, plan: StreamPlan, steps: int) -> None:
        self._plan, self._passes = plan, plan.passes
        self._steps = min(steps, self._passes.most_steps)
        self._layout = plan.layout
        self._held = self._layout.longest or 1 if self._layout.unit == "tokens" else 1  # units that a row holds
        self._mixture = plan.mixture()

    def spans(self, found: Found) -> Iterator[dict[str, Any]]:
        """Yield the spans of documents, each with its row."""
        reader: Any = make_reader(self._plan, Position(0), Topology(0, self._plan.world_size), WorkerShare(0, 1))
        try:
            for number, (name, places) in enumerate(found.items()):
                data = self._plan.sources.counted[name]
                named = {"source": name} if self._plan.sources.is_mix else {}
                for shard, document in sorted(set(places)):  # neighbours share a window, whose list is kept
                    origin = {"origin": data.origin((shard, document))}
                    for row, span in self._rows(reader, number, data, shard, document):
                        yield row | named | span | origin
        finally:
            reader.close()

    def _rows(
        self, reader: IndexedReader, number: int, data: CountedData, shard: int, document: int
    ) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
        """Yield each row that contains a document of a source, and the document's span in the row."""
        source, extent = reader.sources[number], data.extents.extent_of(shard, document)
        if extent is None:  # in the other part of a split
            return
        places = source.sequences_with(extent, shard, document, self._held, self._end_of(number))
        for index, position, at, length in places:
            if (in_stream := reader.index_of(number, index, position)) is None:
                continue
            if (found := self._passes.step_of(in_stream)) is None or found[0] >= self._steps:
                continue
            step, (rank, row) = found[0], found[1].rank_and_row(in_stream)
            where = {"step": step, "rank": rank, "row": row, "sequence_index": in_stream}
            if self._layout.unit == "documents":
                yield where, span_of(0, 0, min(length, self._layout.longest or length), length)
            else:
                first, last = max(at, position), min(at + length, position + self._held)
                yield where, span_of(first - position, first - at, last - at, length)

    def _end_of(self, number: int) -> int:
        """Return a bound above the sequence index, in source ``number``, of each of its sequences in the steps."""
        if not self._steps:
            return 0
        begin, size, _ = self._passes.step(self._steps - 1, Position(0))
        end, group = begin + size, GROUP * (self._layout.bucket or 0) or 1  # a group of buckets is arranged whole
        end = -(-end // group) * group
        if self._mixture is None:
            return end
        lanes = self._mixture.lanes
        rows = ((lane, -(-(end - lane) // lanes)) for lane in range(min(lanes, end)))
        return max(self._mixture.counts(row, lane)[number] for lane, row in rows) * lanes
