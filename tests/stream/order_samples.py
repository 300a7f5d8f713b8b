"""Streams beside the oracle of the order: one dataset for both, and the comparison of their rows."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import pipeline
from pipeline.shards.extents.table_file import payload_bytes
from pipeline.stream.order import RankStep
from tests.helpers.shard_samples import EOS, index_extents, read_index, write_dataset
from tests.stream.order_oracle import (
    EXTENT_BYTES,
    Row,
    Rows,
    Shard,
    Source,
    is_held_out,
    mark,
    memory_shard,
    shard_extents,
    steps,
)

Documents = list[list[list[int]]]  # of each shard, the tokens of each document


def numbered(sizes: list[list[int]], first: int = 1) -> Documents:
    """Return documents of these sizes whose tokens are all different, and none the end-of-text id."""
    token = iter(range(first, first + sum(map(sum, sizes))))
    return [[[next(token) for _ in range(size)] for size in shard] for shard in sizes]


def written(
    directory: Path,
    shards: Documents,
    dtype: str = "<u2",
    extent_bytes: int | None = None,
    tokens_per_sample: int = 0,
    **options: Any,
) -> tuple[Path, Source]:
    """Write a dataset, with a table of extents of its own if their size is given; return it as both sides take it."""
    arrays = [[np.array(document, dtype) for document in shard] for shard in shards]
    manifest = write_dataset(directory, arrays, tokens_per_sample=tokens_per_sample, **options)
    if extent_bytes is not None:
        index_extents(directory, extent_bytes)
    source = Source([], manifest.token_dtype.itemsize, extent_bytes or EXTENT_BYTES)
    for info, documents in zip(manifest.shards, shards, strict=True):
        index = read_index(directory / info.name)
        source.shards.append(Shard(documents, index.starts.tolist(), payload_bytes(index)))
    return directory, source


def in_memory(documents: list[list[int]], dtype: str) -> tuple[pipeline.Stream, Source]:
    """Return documents in memory as both sides take them."""
    tokens = np.array([token for document in documents for token in document], dtype)
    lengths = np.array([len(document) for document in documents], np.int64)
    data = pipeline.ShardDataset.from_tokens(tokens, lengths=lengths)
    return data, Source([memory_shard(documents, tokens.itemsize)], tokens.itemsize)


def halved(source: Source, names: list[str], *splits: tuple[float, int]) -> Source:
    """Return what is left of shards of these names by splits, the second of a half of the first, and so on.

    A split is its share and the half that is meant, 0 the rest, 1 what is held out. Of up to 1,000 extents it is of documents.
    """

    def kept(marks: list[int]) -> list[int]:
        """Return the places of the marks that all splits leave."""
        return [
            k
            for k, each in enumerate(marks)
            if all(
                is_held_out(each, Fraction(str(val)), level) == bool(half) for level, (val, half) in enumerate(splits)
            )
        ]

    runs = [shard_extents(shard, source.itemsize, source.extent_bytes) for shard in source.shards]
    if sum(map(len, runs)) <= 1000:
        pairs = list(zip(source.shards, names, strict=True))
        marks = [mark(n, name) for shard, name in pairs for n in range(len(shard.documents))]
        documents = [document for shard in source.shards for document in shard.documents]
        return Source([memory_shard([documents[k] for k in kept(marks)], source.itemsize)], source.itemsize)
    shards = []
    for shard, extents, name in zip(source.shards, runs, names, strict=True):
        left = {*kept([mark(n, name) for n in range(len(extents))])}
        shards.append(replace(shard, kept=[n in left for n in range(len(extents))]))
    return replace(source, shards=shards)


def state_at(stream: pipeline.Stream, ranks: int, batch: int, count: int) -> dict[str, Any]:
    """Return the state of the first of ``ranks`` ranks after ``count`` batches, as a file would hold it."""
    run = stream.shard(0, ranks).batch(batch)
    list(islice(run, count))
    return json.loads(json.dumps(run.state_dict()))


def assert_follows(
    stream: pipeline.Stream,
    oracle: Rows,
    ranks: int,
    batch: int | None,
    *,
    state: dict[str, Any] | None = None,
    end: int | None = None,
    number: int = 40,
    last: str = "pad",
    pass_begin: int = 0,
) -> None:
    """Compare the batches (rows, if ``batch`` is None) of ranks with the oracle's rows.

    They begin at ``state``, else where the stream stands, in the pass from ``pass_begin`` to ``end`` (None: pass 0).
    """
    first = stream.state_dict()["sequence_index"] if state is None else state["sequence_index"]
    end = oracle.count() if end is None else end
    until = first + number * ranks * (batch or 1) if end is None else end
    expected = steps(first, until, ranks, batch or 1, oracle.lanes, last if batch else "pad", pass_begin)[:number]
    for rank in range(ranks) if ranks <= 2 else {0, ranks // 2, ranks - 1}:
        own = stream.shard(rank, ranks)
        own = own if batch is None else own.batch(batch, last=last)
        own.load_state_dict(stream.state_dict() if state is None else state)
        indices = [step[rank] for step in expected if batch or step[rank]]
        found = list(islice(own, number)) if len(expected) == number else list(own)
        assert len(found) == len(indices)
        for item, wanted in zip(found, indices, strict=True):
            assert_rows(item, [oracle.row(i) for i in wanted], batch)


def assert_rows(item: dict[str, Any], rows: list[Row], batch: int | None) -> None:
    """Compare a batch with its rows, or a single row: missing inputs are the end-of-text id, missing labels -100."""
    ids, labels = item["input_ids"].tolist(), item["labels"].tolist()
    if batch is None:
        ids, labels = [ids], [labels]
    width = max([1, *(len(inputs) for inputs, _ in rows)]) if rows else len(ids[0])
    full = [*rows, *[([], [])] * ((batch or 1) - len(rows))]
    for column, missing, found in ((0, EOS, ids), (1, -100, labels)):
        given = [[missing if token is None else token for token in row[column]] for row in full]
        assert found == [[*row, *[missing] * (width - len(row))] for row in given]
    assert int(item["valid_tokens"]) == sum(token is not None for _, targets in rows for token in targets)


def global_rows(ranks: list[list[Any]], batch: int, lanes: int, *, start: int = 0, end: int | None = None) -> list[Any]:
    """Return the rows of all ranks in global order, step by step. The rows that fill up a step follow its own rows.

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
