"""Samples begin at drawn places, which depend on their number alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.errors import ConfigError
from pipeline.stream.indexed import draw
from tests.helpers.shard_samples import make_documents, write_dataset

SEQ_LEN = 16


@pytest.fixture(scope="module")
def shards() -> list[list[Any]]:
    return [make_documents(n, seed=n) for n in (30, 1, 0, 25, 40)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, shards: list[list[Any]]) -> Path:
    directory = tmp_path_factory.mktemp("sampling") / "data"
    write_dataset(directory, shards)
    return directory


def sampled(dataset: Path, seed: int = 3, epochs: int | None = None, **options: Any) -> pipeline.Stream:
    return pipeline.ShardDataset(dataset, epochs=epochs).shuffle(seed=seed).sample(SEQ_LEN, **options)


def test_draws_fall_alike_everywhere_and_apart_by_seed() -> None:
    first, other = (np.array(draw(range(200_000), 1000, seed)) for seed in (0, 1))
    for places in (first, other):
        expected = len(places) / 1000
        chi_squared = float(((np.bincount(places, minlength=1000) - expected) ** 2 / expected).sum())
        assert abs(chi_squared - 999) < 5 * (2 * 999) ** 0.5
    assert abs(float(np.mean(first == other)) - 0.001) < 0.0005
    assert abs(float(np.corrcoef(first[:-1], first[1:])[0, 1])) < 0.02


def test_boundaries_are_those_of_the_documents(dataset: Path, shards: list[list[Any]]) -> None:
    ends = np.cumsum([len(document) for shard in shards for document in shard])
    batches = list(sampled(dataset, boundaries=True).batch(1).take(40))
    for place, batch in zip(draw(range(40), int(ends[-1]), 3), batches, strict=True):
        inside = ends[(ends > place) & (ends < place + SEQ_LEN)] - place
        if place + SEQ_LEN > ends[-1]:
            continue
        assert batch["cu_seqlens"].tolist() == [0, *inside.tolist(), SEQ_LEN]
        assert all(batch["labels"][0, at - 1] == -100 for at in inside.tolist())


def test_an_epoch_is_as_many_sequences_as_hold_all_tokens(dataset: Path, shards: list[list[Any]]) -> None:
    tokens = sum(len(document) for shard in shards for document in shard)
    stream = sampled(dataset, epochs=1)
    assert len(list(stream)) == -(-tokens // SEQ_LEN)
    stream = sampled(dataset)
    stream.set_epoch(3)
    assert stream.state_dict()["sequence_index"] == -(-3 * tokens // SEQ_LEN)
    assert stream.stats()["epoch"] == 3


def test_no_shard_is_opened_that_no_sequence_lies_in(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    manifest = write_dataset(directory, [make_documents(50, seed=n) for n in range(40)])
    stream = pipeline.ShardDataset(directory).sample(4)
    expected = [sample["input_ids"].tolist() for sample in stream.take(5)]
    ends = np.cumsum([shard.tokens for shard in manifest.splits["train"].shards])
    starts = draw(range(5), int(ends[-1]), seed=0)
    needed = {int(np.searchsorted(ends, start + k, side="right")) for start in starts for k in range(5)}
    for number in {*range(40)} - needed:
        (directory / f"train-{number:06d}.tar").unlink()
    assert [sample["input_ids"].tolist() for sample in stream.take(5)] == expected


def test_what_sampling_cannot_do_is_refused_with_the_cure(dataset: Path) -> None:
    data = pipeline.ShardDataset(dataset)
    with pytest.raises(ConfigError, match="remove window= and lanes="):
        data.shuffle(lanes=4).sample(8)
