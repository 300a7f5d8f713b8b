"""Buckets put documents of similar length side by side, and keep all else that documents() promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import StateError
from tests.helpers.shard_samples import make_documents, write_dataset

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


@pytest.mark.parametrize("world_size", [1, 2])
def test_batches_that_divide_the_bucket_hold_documents_of_similar_length(dataset: Path, world_size: int) -> None:
    for rank in range(world_size):
        plain, close = (list(bucketed(dataset, b).shard(rank, world_size).batch(8 // world_size)) for b in (None, 8))
        assert padding_of(plain) > 0.3
        assert padding_of(close) < 0.05
        lengths = [batch["input_ids"].shape[1] for batch in close]
        assert abs(float(np.corrcoef(lengths[:-1], lengths[1:])[0, 1])) < 0.25


def test_bucketed_documents_resume_exactly_in_workers(dataset: Path) -> None:
    stream = bucketed(dataset).batch(8)
    stream.load_state_dict(bucketed(dataset).batch(8).state_dict(batches=DOCUMENTS // 8 - 3))
    loaded = list(DataLoader(stream, batch_size=None, num_workers=2))
    for a, b in zip(list(bucketed(dataset).batch(8))[-len(loaded) :], loaded, strict=True):
        assert torch.equal(a["input_ids"], b["input_ids"])


def test_another_bucket_is_another_shape(dataset: Path) -> None:
    state = bucketed(dataset, 8).state_dict()
    with pytest.raises(StateError, match="bucket was 8 when the state was saved, but is None"):
        bucketed(dataset, None).load_state_dict(state)
