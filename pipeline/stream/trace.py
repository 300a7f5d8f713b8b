"""The documents in each row of a global step, and which tokens of each.

Rows of an indexed stream are computed. A sequential stream is read from its position to the step, with a number in place of
each token (`sequential.token_numbers`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..progress import Progress
from .assemble import make_reader
from .batch.rows import DocumentRows, Rows
from .order import RankStep
from .position import MAX_NUMBER, Position, Topology, WorkerShare
from .sequential.token_numbers import TokenNumbers, TokenSpan
from .stream_plan import StreamPlan

Found = Mapping[str, list[tuple[int, int]]]  # documents of each source, by shard and number there


def trace_steps(
    plan: StreamPlan,
    position: Position,
    steps: Collection[int],
    ranks: Sequence[int],
    *,
    with_ids: bool,
    progress: Progress | None = None,
) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of some ranks in each of ``steps``. A sequential stream is read once for all of them."""
    check_traceable(plan)
    if plan.sequential:
        traced = ReadTrace(plan, position, progress or Progress(quiet=True)).steps(steps, ranks, with_ids=with_ids)
    else:
        traced = {step: _computed(plan, position, step, ranks, with_ids=with_ids) for step in steps}
    if (texts := plan.inserted) is None:
        return traced
    return {step: [texts.shown(row, with_ids=with_ids) for row in rows] for step, rows in traced.items()}


def check_traceable(plan: StreamPlan) -> None:
    """Raise ``ConfigError`` if a stage of the user may drop items."""
    if not plan.settings.counts_items:
        raise ConfigError(
            "a stage given to .apply() may drop items, so steps after it cannot be traced; remove .apply()"
        )


def refuse_unreadable(plan: StreamPlan, position: Position) -> None:
    """Raise ``ConfigError`` if the steps of a sequential stream cannot be read from a position on."""
    if any(plan.sources.live):
        raise ConfigError("a live source cannot be read again, so the steps of its stream cannot be traced")
    if position.rows_taken:
        raise ConfigError(
            f"the state was saved inside a step, after {position.rows_taken} rows of it; load a state saved between two steps"
        )


def span_of(at: int, first: int, last: int, length: int) -> dict[str, Any]:
    """Return the entry of tokens ``first`` to ``last`` (exclusive) of a document of ``length``, which begin at token ``at``."""
    span = {"row_begin": at, "row_end": at + last - first, "document_begin": first, "document_end": last}
    return span | {"document_tokens": length}


def _computed(
    plan: StreamPlan, position: Position, number: int, ranks: Sequence[int], *, with_ids: bool
) -> list[dict[str, Any]]:
    """Return the rows of some ranks in a step of an indexed stream, in the run of ``position``."""
    sources, traced = plan.sources, list[dict[str, Any]]()
    begin, size, start = plan.passes.step(number, position)
    reader: Any = make_reader(plan, start, Topology(0, plan.world_size), WorkerShare(0, 1))
    spans = list[tuple[str, int, int, dict[str, Any]]]()  # source, shard and number of each document, and its entry
    try:
        for rank in ranks:
            indices = RankStep(begin, size, rank, plan.world_size, plan.rank_period, start.sequence_index).indices()
            for row, (index, place) in enumerate(zip(indices.tolist(), reader.places(indices), strict=True)):
                source, documents = reader.sources[place[0]], list[dict[str, Any]]()
                for shard, document, first, last, length in source.documents_of(place[1], plan.layout.longest):
                    at = documents[-1]["row_end"] if documents else 0
                    documents.append(span_of(at, first, last, length))
                    spans.append((source.name, shard, document, documents[-1]))
                named = {"source": source.name} if sources.is_mix else {}
                traced.append({"rank": rank, "row": row, "sequence_index": index, **named, "documents": documents})
    finally:
        reader.close()
    for name, shard, document, span in sorted(spans, key=lambda span: span[:3]):  # so that each table is read once
        data = sources.counted[name]
        if with_ids:
            is_withheld = data.selection.reason(shard, document) is not None
            ids = data.document(shard, document)
            ids = np.full_like(ids, data.eos_id) if is_withheld else ids
            span["ids"] = ids[span["document_begin"] : span["document_end"]].tolist()
        span["origin"] = data.origin((shard, document))
    return traced


class ReadTrace:
    """Reads a sequential stream from ``position`` on, to find the documents in the rows of a step.

    ``progress`` shows how many steps were read. Raises ``ConfigError`` for live sources, which cannot be read again.
    """

    def __init__(self, plan: StreamPlan, position: Position, progress: Progress) -> None:
        refuse_unreadable(plan, position)
        self._plan, self._position = plan, position
        self._progress = progress
        passes = plan.passes
        self._size = plan.step_size
        self._first = position.sequence_index // self._size  # the step at the stream's position
        self._end = passes.bounds(position)[1]
        self._most = MAX_NUMBER if passes.pass_steps is None else passes.pass_steps

    def steps(
        self, numbers: Collection[int], ranks: Sequence[int], *, with_ids: bool
    ) -> dict[int, list[dict[str, Any]]]:
        """Return the rows of some ranks in each step. Steps count from the beginning of the position's pass."""
        if (first := min(numbers)) < self._first:
            raise ConfigError(
                f"step {first} was read before the stream's position, step {self._first}: load a state of an earlier step"
            )
        if (last := max(numbers)) >= self._most:
            raise ConfigError(f"step {last} is after the end: the stream has {self._most:,} steps, counted from 0")
        traced, missing = {number: list[dict[str, Any]]() for number in numbers}, dict.fromkeys(numbers, 0)
        with self._progress.bar("trace", len(ranks) * (last + 1 - self._first), "steps") as advance:
            for rank in ranks:
                for step, rows, token_numbers in self._steps(rank, last + 1):
                    advance(1)
                    if step not in traced:
                        continue
                    missing[step] += rows.missing
                    for where, spans in self._rows(rank, step, rows, token_numbers):
                        traced[step].append(where | {"documents": self._documents(spans, with_ids=with_ids)})
        for step, of_step in traced.items():
            if not of_step or (self._plan.settings.drop_last and missing[step]):
                raise ConfigError(f"step {step} is after the end of the stream")
        return traced

    def seen(self, documents: Collection[str], found: Found, steps: int) -> list[dict[str, Any]]:
        """Return the spans of documents in the steps before ``steps``.

        ``found`` has their places in counted sources; in a source of text, they are found by their ids.
        """
        places, ids = {name: set(of_source) for name, of_source in found.items()}, set(documents)
        end, drop_last, traced = min(steps, self._most), self._plan.settings.drop_last, list[dict[str, Any]]()
        with self._progress.bar("read", end * self._plan.world_size, "steps") as advance:
            for rank in range(self._plan.world_size):
                for step, rows, token_numbers in self._steps(rank, end):
                    advance(1)
                    if rows.missing and (drop_last or not rows.existing):
                        end = step if drop_last else end  # the first rank that lacks a row ends the stream of all ranks
                        break
                    for where, spans in self._rows(rank, step, rows, token_numbers):
                        own = [
                            span.origin in places[span.source] if span.source in places else span.origin.id in ids
                            for span in spans
                        ]
                        if any(own):
                            pairs = zip(self._documents(spans, with_ids=False), own, strict=True)
                            traced += ({"step": step} | where | each for each, is_it in pairs if is_it)
        return [span for span in traced if span["step"] < end]

    def _steps(self, rank: int, stop: int) -> Iterator[tuple[int, Rows | DocumentRows, TokenNumbers]]:
        """Yield a rank's rows of each step before ``stop``, with numbers in place of ids, and these numbers."""
        plan, world_size, token_numbers = self._plan, self._plan.world_size, TokenNumbers()
        reader: Any = make_reader(plan, self._position, Topology(rank, world_size), WorkerShare(0, 1), token_numbers)
        try:
            for step in range(self._first, stop):
                token_numbers.begin_step()
                begin = step * self._size
                length = self._size if self._end is None else min(self._size, self._end - begin)
                rows = reader.read(RankStep(begin, length, rank, world_size, plan.rank_period))
                yield step, rows, token_numbers
        finally:
            reader.close()

    def _rows(
        self, rank: int, step: int, rows: Rows | DocumentRows, token_numbers: TokenNumbers
    ) -> Iterator[tuple[dict[str, Any], list[TokenSpan]]]:
        begin, longest = step * self._size + rank * (self._plan.step_rows), self._plan.layout.longest
        for row, numbers in enumerate(rows.existing):
            spans = list(token_numbers.spans(numbers[:longest]))
            name = {"source": spans[0].source} if self._plan.sources.is_mix and spans else {}
            yield {"rank": rank, "row": row, "sequence_index": begin + row, **name}, spans

    def _documents(self, spans: list[TokenSpan], *, with_ids: bool) -> list[dict[str, Any]]:
        """Return the entries of the documents of a row."""
        documents, at = list[dict[str, Any]](), 0
        for span in spans:
            document = span_of(at, span.first, span.last, span.length)
            at = document["row_end"]
            if with_ids:
                document["ids"] = span.ids.tolist()
            documents.append(document | {"origin": self._plan.sources.by_name[span.source].origin(span.origin)})
        return documents
