"""Buckets put documents of similar length side by side, and keep all else that documents() promises."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from pipeline.stream.order.buckets import GROUP, arrange
from tests.shard_samples import make_documents, write_dataset

DOCUMENTS = 1500


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bucketing") / "data"
    write_dataset(directory, [make_documents(n, seed=n, longest=300) for n in (400, 1, 599, 500)])
    return directory


def bucketed(dataset: Path, bucket: int | None = 8, epochs: int | None = 1, seed: int | None = 2) -> pipeline.Stream:
    data = pipeline.ShardDataset(dataset, epochs=epochs)
    return (data if seed is None else data.shuffle(seed=seed, lanes=6)).documents(bucket=bucket)


def padding_of(batches: Any) -> float:
    """The share of places that hold no token."""
    masks = [batch["attention_mask"] for batch in batches]
    return 1 - sum(int(mask.sum()) for mask in masks) / sum(mask.numel() for mask in masks)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=60),
    st.integers(0, 100),
    st.integers(1, 9),
    st.one_of(st.none(), st.integers(0, 2**64 - 1)),
)
def test_buckets_partition_a_group_into_runs_of_the_sorted_documents(
    lengths: list[int], first: int, bucket: int, key: int | None
) -> None:
    arranged = arrange(np.array(lengths), first, bucket, key).tolist()
    assert sorted(arranged) == list(range(len(lengths)))
    by_bucket: dict[int, list[int]] = {}
    for place, document in enumerate(arranged):
        by_bucket.setdefault((first + place) // bucket, []).append(lengths[document])
    runs = sorted(by_bucket.values(), key=lambda run: (run[0], run[-1]))
    assert [length for run in runs for length in run] == sorted(lengths)
    if key is None:
        assert [lengths[document] for document in arranged] == sorted(lengths)


@pytest.mark.parametrize("world_size", [1, 2])
def test_batches_that_divide_the_bucket_hold_documents_of_similar_length(dataset: Path, world_size: int) -> None:
    for rank in range(world_size):
        plain, close = (list(bucketed(dataset, b).shard(rank, world_size).batch(8 // world_size)) for b in (None, 8))
        assert padding_of(plain) > 0.3
        assert padding_of(close) < 0.05
        lengths = [batch["input_ids"].shape[1] for batch in close]
        assert abs(float(np.corrcoef(lengths[:-1], lengths[1:])[0, 1])) < 0.25


def test_every_document_comes_once_per_epoch_in_an_order_that_is_a_prefix_of_the_endless_one(dataset: Path) -> None:
    plain = sorted(sample["input_ids"].tolist() for sample in bucketed(dataset, None))
    endless = [s["input_ids"].tolist() for s in islice(bucketed(dataset, 8, None), 3 * DOCUMENTS)]
    for epoch in range(3):
        assert sorted(endless[epoch * DOCUMENTS : (epoch + 1) * DOCUMENTS]) == plain
    for epochs in (1, 3):
        rows = [sample["input_ids"].tolist() for sample in bucketed(dataset, 8, epochs)]
        assert rows == endless[: epochs * DOCUMENTS]
    stream = bucketed(dataset, 8, None)
    stream.set_epoch(2)
    assert next(iter(stream))["input_ids"].tolist() == endless[2 * DOCUMENTS]


def test_which_bucket_is_the_longest_differs_by_group_epoch_and_seed(dataset: Path) -> None:
    def turns(seed: int, first: int) -> tuple[int, ...]:
        """The buckets of the group that begins an epoch, or of the next one, by the length of their documents."""
        stream = bucketed(dataset, 2, None, seed)
        lengths = [len(sample["input_ids"]) for sample in islice(stream, first, first + GROUP * 2)]
        return tuple(np.argsort([sum(lengths[place : place + 2]) for place in range(0, len(lengths), 2)]).tolist())

    # 1,536 documents further begins the second group of the second epoch.
    seen = {turns(2, 0), turns(2, GROUP * 2), turns(2, 1536), turns(3, 0)}
    assert len(seen) == 4
    ranks = [np.argsort(each) for each in seen]
    assert all(abs(np.corrcoef(a, b)[0, 1]) < 0.5 for n, a in enumerate(ranks) for b in ranks[:n])


def test_only_documents_of_one_group_change_places(dataset: Path) -> None:
    group = GROUP * 2
    plain, close = ([s["input_ids"].tolist() for s in bucketed(dataset, bucket)] for bucket in (None, 2))
    for begin in range(0, DOCUMENTS, group):
        assert sorted(plain[begin : begin + group]) == sorted(close[begin : begin + group])
    assert plain != close


def test_bucketed_documents_resume_exactly_on_any_number_of_ranks_and_workers(dataset: Path) -> None:
    pipeline.assert_resumes(lambda: bucketed(dataset, 8, None))
    pipeline.assert_resumes(lambda: bucketed(dataset, 3, None, seed=None))
    stream = bucketed(dataset).batch(8)
    stream.load_state_dict(bucketed(dataset).batch(8).state_dict(batches=DOCUMENTS // 8 - 3))
    loaded = list(DataLoader(stream, batch_size=None, num_workers=2))
    for a, b in zip(list(bucketed(dataset).batch(8))[-len(loaded) :], loaded, strict=True):
        assert torch.equal(a["input_ids"], b["input_ids"])


def test_another_bucket_is_another_shape_and_none_below_one_exists(dataset: Path) -> None:
    state = bucketed(dataset, 8).state_dict()
    with pytest.raises(StateError, match="bucket was 8 when the state was saved, but is None"):
        bucketed(dataset, None).load_state_dict(state)
    with pytest.raises(ConfigError, match="bucket must be an integer of at least 1, got 0"):
        bucketed(dataset, 0)
