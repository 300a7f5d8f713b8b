"""The order of a stream is its definition's, and it goes on exactly after any stop, on any ranks, batches and workers."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline
from tests.helpers.shard_samples import Shard
from tests.stream.global_order import global_rows
from tests.stream.global_order import rows_in_order as run


def shards_of(directory: Path) -> list[list[list[int]]]:
    shards = [Shard(path) for path in sorted(directory.glob("train-*.tar"))]
    return [[shard.document(j).tolist() for j in range(len(shard))] for shard in shards]


def test_epochs_differ_and_a_late_epoch_starts_as_fast(dataset: Path) -> None:
    stream = pipeline.ShardDataset(dataset).shuffle(lanes=2).pack(16).batch(2)
    seen = set()
    for epoch in (0, 1, 1000, 10**9):
        stream.set_epoch(epoch)
        seen.add(json.dumps(next(iter(stream))["input_ids"].tolist()))
    assert len(seen) == 4


def test_changes_of_world_size_and_batch_in_a_row_lose_and_double_nothing(dataset: Path) -> None:
    def make() -> pipeline.Stream:
        return pipeline.ShardDataset(dataset, epochs=3).shuffle(seed=5, lanes=6).pack(16)

    whole = run(make, 1, 1)
    got: list[list[int]] = []
    state: dict[str, Any] | None = None
    for world_size, batch, steps in ((4, 2, 3), (2, 3, 5), (8, 1, 4), (3, 5, 2), (1, 7, 3)):
        start = state["sequence_index"] if state else 0
        ranks = []
        for rank in range(world_size):
            stream = make().shard(rank, world_size).batch(batch)
            if state:
                stream.load_state_dict(state)
            taken = list(islice(stream, steps))
            ranks.append([row for b in taken for row in b["input_ids"].tolist()])
            latest = stream.state_dict()
        assert latest["sequence_index"] == start + world_size * batch * steps
        got += global_rows(ranks, batch, 6, start=start)
        state = json.loads(json.dumps(latest))
    assert got == whole[: len(got)]


@pytest.mark.parametrize(("raised", "seq_len", "stride", "lanes"), [(3, 16, 16, 6), (None, 16, 7, 6), (3, 16, 16, 1)])
def test_epochs_may_be_raised_on_resume(
    dataset: Path, raised: int | None, seq_len: int, stride: int, lanes: int
) -> None:
    def make(epochs: int | None) -> pipeline.Stream:
        source = pipeline.ShardDataset(dataset, epochs=epochs)
        return source.shuffle(seed=5, lanes=lanes).pack(seq_len, stride=stride).batch(1)

    bounded = list(make(2))
    count = len(bounded)
    whole = list(islice(make(raised), count + 12))
    starts = [n for n, item in enumerate(bounded) if int(item["valid_tokens"]) < seq_len]
    # The sequence that begins last holds the fewest tokens.
    last = min(starts, key=lambda n: int(bounded[n]["valid_tokens"]))
    for stop in (0, last, last + 1, count):
        stream = make(2)
        list(islice(stream, stop))
        state = json.loads(json.dumps(stream.state_dict()))
        resumed = make(raised)
        resumed.load_state_dict(state)
        following = list(islice(resumed, len(whole) - stop))
        assert all(torch.equal(a["labels"], b["labels"]) for a, b in zip(whole[stop:], following, strict=True))
