from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.stream.order import (
    Sequences,
    ShardOrder,
    default_lanes,
    default_window,
    derive_key,
    mix64,
    permutation,
)
from scripts.bench_stream import near_pairs


def test_the_mix_is_bijective_and_equals_splitmix64() -> None:
    # First outputs of SplitMix64 with seed 0, from the reference implementation by Sebastiano Vigna.
    golden = 0x9E3779B97F4A7C15
    states = np.array([golden * k % 2**64 for k in (1, 2, 3)], dtype=np.uint64)
    assert [hex(int(x)) for x in mix64(states)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]
    numbers = np.arange(1 << 16, dtype=np.uint64)
    assert len(np.unique(mix64(numbers))) == len(numbers)


@given(st.integers(0, 300), st.integers(0, 2**64 - 1))
def test_a_permutation_holds_every_index_once(n: int, key: int) -> None:
    assert sorted(permutation(n, key).tolist()) == list(range(n))


def test_a_permutation_is_the_same_on_every_machine() -> None:
    assert permutation(8, derive_key("documents", "", 0, 0, 0)).tolist() == [1, 2, 6, 5, 0, 4, 3, 7]


def test_keys_come_from_named_parts_not_from_sums() -> None:
    keys = {derive_key("shards", "", seed, epoch) for seed in range(20) for epoch in range(20)}
    assert len(keys) == 400
    assert derive_key("a", 1, 23) != derive_key("a", 12, 3)
    assert derive_key("a", "1") != derive_key("a", 1)


def test_positions_under_many_keys_are_uniform_and_independent() -> None:
    orders = np.array([permutation(10, derive_key("test", k)) for k in range(4000)])
    counts = np.array([np.bincount(column, minlength=10) for column in orders.T])
    chi = ((counts - 400) ** 2 / 400).sum()
    assert 40 < chi < 140  # 81 degrees of freedom: mean 81, standard deviation 12.7
    pairs = np.bincount(orders[:-1, 0] * 10 + orders[1:, 0], minlength=100)
    assert 50 < ((pairs - 40) ** 2 / 40).sum() < 160


@given(
    tokens=st.integers(1, 200),
    stride=st.integers(1, 60),
    lanes=st.integers(1, 30),
    epoch=st.sampled_from([0, 1, 2, 7, 10**6, 10**15]),
)
def test_lanes_visit_every_sequence_of_an_epoch_once_at_equal_spacing(
    tokens: int, stride: int, lanes: int, epoch: int
) -> None:
    order = Sequences(tokens, stride, lanes)
    first, after = order.first(epoch), order.first(epoch + 1)
    located = [order.locate(i) for i in range(first, after)]
    assert sorted(n for _, n in located) == list(range(first, after))
    assert {e for e, _ in located} <= {epoch}
    assert all(epoch * tokens <= n * stride < (epoch + 1) * tokens for _, n in located)
    starts = [order.lane_start(epoch, lane) for lane in range(lanes)] + [after]
    sizes = [b - a for a, b in itertools.pairwise(starts)]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 5))
def test_windows_are_near_equal_runs_that_cover_all_shards(shards: int, window: int, epoch: int) -> None:
    order = ShardOrder([1] * shards, [2] * shards, window, seed=3).epoch(epoch)
    windows = len(order.cuts) - 1
    assert windows == -(-shards // window)
    sizes = [len(order.window_shards(w)) for w in range(windows)]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= window
    assert sorted(s for w in range(windows) for s in order.window_shards(w)) == list(range(shards))
    assert [order.window_of_token(2 * k) for k in range(shards)] == [order.window_of_document(k) for k in range(shards)]


def test_without_a_seed_shards_and_documents_keep_their_order() -> None:
    order = ShardOrder([3, 2, 5], [9, 9, 9], 2, seed=None)
    assert order.epoch(4).shards.tolist() == [0, 1, 2]
    assert order.document_order(0, 0, 5) is None


def test_sources_of_other_names_are_shuffled_apart() -> None:
    web, wiki = (ShardOrder([5] * 40, [5] * 40, 8, seed=0, name=name) for name in ("web", "wiki"))
    assert web.epoch(0).shards.tolist() != wiki.epoch(0).shards.tolist()


@pytest.mark.parametrize(
    ("shards", "documents", "window", "lanes"),
    [
        (1, 10, 1, 48),
        (16, 100_000, 16, 48),
        (100, 1_000_000, 12, 48),
        (1_000, 10_000_000, 12, 48),
        (10_000, 10_000_000, 64, 384),
        (100_000, 10**9, 12, 192),
        (100, 200_000_000, 4, 3),
    ],
)
def test_defaults_grow_with_the_data_and_stay_in_memory(shards: int, documents: int, window: int, lanes: int) -> None:
    assert default_window(shards, documents) == window
    assert default_lanes(shards, documents, window) == lanes
    assert lanes * window * documents / shards <= 32_000_000


def test_the_next_epoch_is_another_order() -> None:
    order = ShardOrder([4] * 50, [4] * 50, 8, seed=0)
    first, second = order.epoch(0).shards, order.epoch(1).shards
    assert (first == second).mean() < 0.2
    documents = [order.document_order(epoch, 0, 100) for epoch in (0, 1)]
    assert (documents[0] == documents[1]).mean() < 0.2


@pytest.mark.parametrize(("shards", "documents"), [(16, 20_000), (100, 60_000), (1000, 200_000)])
def test_neighbours_come_from_all_over_the_corpus_at_the_start_and_the_end(shards: int, documents: int) -> None:
    for tenth in (0, 9):
        assert near_pairs(shards, documents, epoch=0, tenth=tenth, draws=8) < 0.03


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 700), key=st.integers(0, 2**64 - 1))
def test_a_permutation_sorts_the_mixes_of_its_definition(n: int, key: int) -> None:
    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    expected = sorted(range(n), key=lambda number: mix(mix(number * 0x9E3779B97F4A7C15 % 2**64) ^ key))
    assert permutation(n, key).tolist() == expected


def test_a_permutation_of_millions_has_every_number_once() -> None:
    n = 3_000_000
    found = permutation(n, derive_key("large"))
    hashes = mix64(mix64(found.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(derive_key("large")))
    assert bool((hashes[1:] > hashes[:-1]).all())


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 500),
    stride=st.integers(1, 60),
    lanes=st.integers(1, 9),
    epoch=st.integers(0, 5) | st.just(10**12),
)
def test_places_of_an_epoch_are_those_located_one_by_one(tokens: int, stride: int, lanes: int, epoch: int) -> None:
    order = Sequences(tokens, stride, lanes)
    first = order.first(epoch)
    before, lane_of = order.places(epoch, np.arange(order.first(epoch + 1) - first))
    for inside, (token, lane) in enumerate(zip(before.tolist(), lane_of.tolist(), strict=True)):
        found, n = order.locate(first + inside)
        assert (found, n * stride - epoch * tokens) == (epoch, token)
        assert lane == inside % lanes
