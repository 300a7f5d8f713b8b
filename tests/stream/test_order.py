"""What the order promises beyond its definition: even hashes, neighbours from all over, windows of bounded memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.errors import ConfigError
from pipeline.stream.indexed import draw
from pipeline.stream.order import (
    Blocks,
    RankStep,
    Shuffle,
    default_window,
    derive_key,
    mix64,
    mix_window,
    permutation,
    sequential_window,
)
from scripts.bench.shuffle import near_pairs
from tests.helpers.shard_samples import make_documents, write_dataset
from tests.stream import order_oracle


def test_the_mix_is_bijective_and_equals_splitmix64() -> None:
    # First outputs of SplitMix64 with seed 0, from the reference implementation by Sebastiano Vigna.
    golden = 0x9E3779B97F4A7C15
    states = np.array([golden * k % 2**64 for k in (1, 2, 3)], dtype=np.uint64)
    assert [hex(int(x)) for x in mix64(states)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]
    numbers = np.arange(1 << 16, dtype=np.uint64)
    assert len(np.unique(mix64(numbers))) == len(numbers)


def test_positions_under_many_keys_are_uniform_and_independent() -> None:
    orders = np.array([permutation(10, derive_key("test", k)) for k in range(4000)])
    counts = np.array([np.bincount(column, minlength=10) for column in orders.T])
    chi = ((counts - 400) ** 2 / 400).sum()
    assert 40 < chi < 140  # 81 degrees of freedom: mean 81, standard deviation 12.7
    pairs = np.bincount(orders[:-1, 0] * 10 + orders[1:, 0], minlength=100)
    assert 50 < ((pairs - 40) ** 2 / 40).sum() < 160


def blocks_of(extents: int, size: int = 200_000, **options: bool) -> Blocks:
    """Blocks of one shard with so many extents, all of one size."""
    sums = np.arange(extents + 1)
    return Blocks.of_extents(np.array([extents]), sums * size, sums * 10, sums * 2, **options)


def test_epochs_and_sources_of_other_names_are_shuffled_apart() -> None:
    web, wiki = (Shuffle(blocks_of(200), 4, 2, seed=0, name=name) for name in ("web", "wiki"))
    assert (web.epoch(0).blocks == wiki.epoch(0).blocks).mean() < 0.2
    assert (web.epoch(0).blocks == web.epoch(1).blocks).mean() < 0.2
    assert (web.document_order(0, 0, 100) == web.document_order(1, 0, 100)).mean() < 0.2
    assert (web.document_order(0, 0, 100) == web.document_order(0, 1, 100)).mean() < 0.2


@pytest.mark.parametrize(
    ("size", "extents", "window"),
    [(196_608, 2, 11), (300_000, 1, 14), (1_000_000, 1, 4), (1_000, 4, 1049), (9_000_000, 1, 1)],
)
def test_default_windows_hold_four_mebibytes_and_a_block_at_least(size: int, extents: int, window: int) -> None:
    blocks = blocks_of(4000, size)
    assert blocks.extents == extents
    assert default_window(blocks) == window
    assert sequential_window(blocks, 1) == 1


@pytest.mark.parametrize(("lanes", "sources"), [(16, 1), (16, 5), (16, 6), (16, 20), (64, 2), (16, 1000)])
def test_windows_of_a_mix_hold_256_mib_together_for_any_sources(lanes: int, sources: int) -> None:
    blocks = blocks_of(400_000, 1000, in_mix=True)
    size = 1000 * mix_window(blocks, lanes, sources)
    assert size * lanes * sources <= (256 << 20) + 500 * lanes * sources
    assert size >= 0.97 * min(3 << 20, (256 << 20) // (lanes * sources))


@pytest.mark.parametrize("size", [128 << 20, (128 << 20) + 1])
def test_an_epoch_is_one_window_up_to_128_mebibytes(size: int) -> None:
    sums = np.array([0, 1])
    blocks = Blocks.of_extents(np.array([1]), sums * size, sums, sums)
    assert Shuffle(blocks, 64, default_window(blocks), seed=0).windows == 1  # of a block alone
    many = Blocks.of_extents(np.array([1024]), np.arange(1025) * size // 1024, *[np.arange(1025)] * 2)
    assert (Shuffle(many, 64, default_window(many), seed=0).windows == 1) == (size == 128 << 20)


@pytest.mark.parametrize(("lanes", "windows"), [(64, 511), (3, 512), (30, 511), (7, 512)])
def test_lanes_do_not_change_windows_all_at_once(lanes: int, windows: int) -> None:
    assert Shuffle(blocks_of(4096, 500_000), lanes, 8, seed=0).windows == windows  # coprime to the lanes


def test_ranks_take_the_rows_of_the_definition_for_any_lanes() -> None:
    for lanes in range(1, 131):
        for ranks in (2, 3, lanes + 1):
            taken = [list(RankStep(5, 3 * lanes, rank, ranks, lanes)) for rank in range(ranks)]
            assert taken == order_oracle.step_of_ranks(5, 3 * lanes, ranks, lanes), lanes


@pytest.mark.parametrize("ranks", [3, 5, 7, 24, 100])
@pytest.mark.parametrize("batch", [8, 32])
def test_each_lane_is_read_by_few_ranks(ranks: int, batch: int) -> None:
    lanes, readers = 64, set()
    for number in range(64):
        for rank in range(ranks):
            step = RankStep(number * ranks * batch, ranks * batch, rank, ranks, lanes)
            readers |= {(rank, i % lanes) for i in step}
    least = (lanes + ranks - math.gcd(ranks, lanes)) / lanes
    assert len(readers) / lanes <= 2 * least


@pytest.mark.parametrize(("shards", "documents"), [(16, 80_000), (100, 60_000), (1000, 200_000)])
def test_neighbours_come_from_all_over_the_corpus(shards: int, documents: int) -> None:
    for tenth in (0, 9):
        assert near_pairs(shards, documents, epoch=0, tenth=tenth, draws=8) < 0.025


# Samples begin at drawn places, which depend on their number alone.


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
