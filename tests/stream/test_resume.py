"""The order of a stream is its definition's, and it goes on exactly after any stop, on any ranks, batches and workers."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pipeline
from tests.shard_samples import Shard
from tests.stream.global_order import global_rows
from tests.stream.global_order import rows_in_order as run


def shards_of(directory: Path) -> list[list[list[int]]]:
    shards = [Shard(path) for path in sorted(directory.glob("train-*.tar"))]
    return [[shard.document(j).tolist() for j in range(len(shard))] for shard in shards]


def test_a_state_saved_after_any_batch_continues_exactly_on_any_number_of_ranks(dataset: Path) -> None:
    def make() -> pipeline.Stream:
        return pipeline.ShardDataset(dataset, epochs=2).shuffle(seed=5, lanes=6).pack(32)

    whole = run(make, 1, 1)
    stream = make().shard(1, 2).batch(3)
    states = [json.loads(json.dumps(stream.state_dict()))]
    states += [json.loads(json.dumps(stream.state_dict())) for _ in stream]
    topologies = ((1, 4), (2, 3), (3, 1), (4, 2), (8, 1))
    assert len(states) > len(topologies)
    for number, state in enumerate(states):
        for world_size, batch in (topologies[number % 5], topologies[(number + 2) % 5]):
            rest = run(make, world_size, batch, state)
            assert [row for row in rest if any(row)] == whole[state["sequence_index"] :]


def test_second_and_third_resume_and_saving_without_a_step(dataset: Path) -> None:
    def make() -> pipeline.Stream:
        return pipeline.ShardDataset(dataset).shuffle(seed=5, lanes=4).pack(8).batch(2)

    reference = [b["input_ids"].tolist() for b in make().take(60)]
    got, state, chooser = [], None, random.Random(0)
    while len(got) < 60:
        stream = make()
        if state:
            stream.load_state_dict(state)
            assert stream.state_dict() == state
        for _, b in zip(range(chooser.randint(0, 9)), stream, strict=False):
            got.append(b["input_ids"].tolist())
            state = stream.state_dict()
    assert got[:60] == reference


def test_a_document_of_many_sequences_and_the_rest_of_one_go_on_after_a_resume_inside_them() -> None:
    def make(boundaries: bool = False) -> pipeline.Stream:
        data = pipeline.ShardDataset.from_tokens(np.arange(1, 301), lengths=[3, 200, 0, 90, 7], epochs=2)
        return data.pack(16, boundaries=boundaries).batch(1)

    for boundaries in (False, True):
        whole = list(make(boundaries))
        assert [t for b in whole for t in b["input_ids"][0].tolist() if t] == [*range(1, 301)] * 2
        for stop in range(len(whole)):
            stream = make(boundaries)
            list(islice(stream, stop))
            resumed = make(boundaries)
            resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
            for a, b in zip(whole[stop:], resumed, strict=True):
                assert all(torch.equal(torch.as_tensor(a[key]), torch.as_tensor(b[key])) for key in a)


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


def test_the_end_of_one_epoch_and_the_start_of_the_next_are_where_they_should_be(dataset: Path) -> None:
    def make(epochs: int | None) -> pipeline.Stream:
        return pipeline.ShardDataset(dataset, epochs=epochs).shuffle(seed=5, lanes=6).pack(16)

    bounded = make(2)
    rows = [s["input_ids"].tolist() for s in bounded]
    assert bounded.state_dict()["sequence_index"] == len(rows)
    stream = make(None)
    stream.set_epoch(1)
    start = stream.state_dict()["sequence_index"]
    following = [s["input_ids"].tolist() for s in islice(stream, len(rows) - start)]
    short = [n for n, (row, cut) in enumerate(zip(following, rows[start:], strict=True)) if row != cut]
    assert len(short) <= 1  # the sequence that is cut at the last token of the bounded stream
    tokens = sum(len(d) for s in shards_of(dataset) for d in s)
    assert start == -(-tokens // 16)


@pytest.mark.parametrize(("raised", "seq_len", "stride", "lanes"), [(3, 16, 16, 6), (None, 16, 7, 6), (3, 16, 16, 1)])
def test_epochs_may_be_raised_on_resume_and_tokens_behind_a_cut_that_was_handed_out_are_told(
    dataset: Path, caplog: pytest.LogCaptureFixture, raised: int | None, seq_len: int, stride: int, lanes: int
) -> None:
    def make(epochs: int | None) -> pipeline.Stream:
        source = pipeline.ShardDataset(dataset, epochs=epochs)
        return source.shuffle(seed=5, lanes=lanes).pack(seq_len, stride=stride).batch(1)

    tokens = sum(len(d) for s in shards_of(dataset) for d in s)
    bounded = list(make(2))
    count = len(bounded)
    whole = list(islice(make(raised), count + 12))
    lost = count * stride - 2 * tokens
    assert lost > 0
    starts = [n for n, item in enumerate(bounded) if int(item["valid_tokens"]) < seq_len]
    # The sequence that begins last holds the fewest tokens.
    last = min(starts, key=lambda n: int(bounded[n]["valid_tokens"]))
    for stop in (0, last, last + 1, count):
        stream = make(2)
        list(islice(stream, stop))
        state = json.loads(json.dumps(stream.state_dict()))
        caplog.clear()
        resumed = make(raised)
        resumed.load_state_dict(state)
        assert [record.getMessage() for record in caplog.records] == (
            [f"epochs was raised from 2 to {raised} after the last sequence, cut at the last token, was handed out: the "
             f"{lost} tokens behind the cut are lost"] if stop > last else []
        )  # fmt: skip
        following = list(islice(resumed, len(whole) - stop))
        assert all(torch.equal(a["labels"], b["labels"]) for a, b in zip(whole[stop:], following, strict=True))
