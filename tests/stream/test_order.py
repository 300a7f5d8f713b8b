from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.stream.order import (
    Blocks,
    Sequences,
    Shuffle,
    Step,
    default_window,
    derive_key,
    mix64,
    permutation,
    sequential_window,
)
from pipeline.stream.order.shuffle import window_count
from scripts.bench.shuffle import near_pairs
from tests.order_oracle import keyed_hash


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


def test_keys_come_from_named_parts_not_from_sums() -> None:
    keys = {derive_key("blocks", "", seed, epoch) for seed in range(20) for epoch in range(20)}
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


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 700), key=st.integers(0, 2**64 - 1))
def test_a_permutation_sorts_the_mixes_of_its_definition(n: int, key: int) -> None:
    expected = sorted(range(n), key=lambda number: keyed_hash(number, key))
    assert permutation(n, key).tolist() == expected


def test_a_permutation_of_millions_has_every_number_once() -> None:
    n = 3_000_000
    found = permutation(n, derive_key("large"))
    hashes = mix64(mix64(found.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(derive_key("large")))
    assert bool((hashes[1:] > hashes[:-1]).all())


def blocks_of(counts: list[int], size: int = 200_000, **options: bool) -> Blocks:
    """Blocks of shards with so many extents each, all of one size."""
    extents = sum(counts)
    sums = np.arange(extents + 1)
    return Blocks.of_extents(np.array(counts), sums * size, sums * 10, sums * 2, **options)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.integers(1, 2_000_000), st.booleans())
def test_blocks_are_near_equal_runs_of_extents_of_one_shard(counts: list[int], size: int, in_mix: bool) -> None:
    blocks = blocks_of(counts, size, in_mix=in_mix)
    most = 1 if in_mix else max(1, min(4, 786_432 // size))
    assert blocks.extents == most or not sum(counts)
    bounds, borders = blocks.bounds.tolist(), list(itertools.accumulate(counts, initial=0))
    assert set(borders) <= set(bounds) or not sum(counts)
    for count, border in zip(counts, borders, strict=False):
        cuts = [bound - border for bound in bounds if border <= bound <= border + count]
        sizes = [b - a for a, b in itertools.pairwise(cuts)]
        assert sum(sizes) == count
        assert max(sizes, default=0) <= most
        assert max(sizes, default=0) - min(sizes, default=0) <= 1
        assert len(sizes) == -(-count // most)
    assert blocks.tokens.sum() == 10 * sum(counts)
    assert blocks.documents.sum() == 2 * sum(counts)


@given(st.integers(1, 5000), st.integers(1, 100), st.integers(1, 20))
def test_windows_are_one_or_as_many_as_are_coprime_to_the_lanes(blocks: int, lanes: int, window: int) -> None:
    count = window_count(blocks, lanes, window)
    if blocks <= lanes * window:
        assert count == 1
    else:
        assert math.gcd(count, lanes) == 1
        assert count <= blocks // window
        assert all(math.gcd(more, lanes) > 1 for more in range(count + 1, blocks // window + 1))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 5), st.integers(1, 6), st.integers(0, 5))
def test_every_block_is_in_one_window_of_an_epoch(counts: list[int], lanes: int, window: int, epoch: int) -> None:
    shuffle = Shuffle(blocks_of(counts), lanes, window, seed=3)
    order = shuffle.epoch(epoch)
    windows = [order.window_blocks(w) for w in range(shuffle.windows)]
    assert sorted(block for each in windows for block in each.tolist()) == list(range(len(shuffle.blocks)))
    assert max(map(len, windows)) - min(map(len, windows)) <= 1
    assert order.starts.tolist() == [
        0,
        *itertools.accumulate(int(shuffle.blocks.tokens[each].sum()) for each in windows),
    ]
    documents = [int(shuffle.blocks.documents[each].sum()) for each in windows]
    assert order.document_starts.tolist() == [0, *itertools.accumulate(documents)]


def test_without_a_seed_blocks_and_documents_keep_their_order() -> None:
    order = Shuffle(blocks_of([9, 7]), 1, 1, seed=None)
    assert order.epoch(4).blocks.tolist() == list(range(len(order.blocks)))
    assert order.document_order(0, 0, 5) is None


def test_epochs_and_sources_of_other_names_are_shuffled_apart() -> None:
    web, wiki = (Shuffle(blocks_of([200]), 4, 2, seed=0, name=name) for name in ("web", "wiki"))
    assert (web.epoch(0).blocks == wiki.epoch(0).blocks).mean() < 0.2
    assert (web.epoch(0).blocks == web.epoch(1).blocks).mean() < 0.2
    assert (web.document_order(0, 0, 100) == web.document_order(1, 0, 100)).mean() < 0.2
    assert (web.document_order(0, 0, 100) == web.document_order(0, 1, 100)).mean() < 0.2


@pytest.mark.parametrize(
    ("size", "extents", "window"),
    [(196_608, 4, 8), (300_000, 2, 8), (1_000_000, 1, 8), (1_000, 4, 1049), (50_000, 4, 21)],
)
def test_default_windows_hold_four_megabytes_and_eight_blocks_at_least(size: int, extents: int, window: int) -> None:
    blocks = blocks_of([4000], size)
    assert blocks.extents == extents
    assert default_window(blocks) == window
    assert sequential_window(blocks, 4 << 20) == max(1, round((4 << 20) / (blocks.bytes / len(blocks))))
    assert sequential_window(blocks, 1) == 1


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
    assert order.lane_bounds(epoch).tolist() == [start * stride - epoch * tokens for start in starts]


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


def shares(begin: int, size: int, ranks: int, lanes: int) -> list[list[int]]:
    """What each rank takes of a step, by a sort."""
    if lanes % ranks == 0:
        return [[i for i in range(begin, begin + size) if i % ranks == rank] for rank in range(ranks)]
    spread = next(s for s in range((39 * lanes + 50) // 100, 2 * lanes + 1) if math.gcd(s, lanes) == 1)
    step = sorted(range(begin, begin + size), key=lambda i: (i * spread % lanes, i))
    return [step[rank * size // ranks : (rank + 1) * size // ranks] for rank in range(ranks)]


@settings(max_examples=300, deadline=None)
@given(
    begin=st.integers(0, 500) | st.integers(10**17, 10**17 + 500),
    size=st.integers(0, 300),
    ranks=st.sampled_from([1, 2, 3, 5, 7, 8, 24, 100]),
    lanes=st.sampled_from([1, 2, 3, 5, 6, 16, 63, 64]),
)
def test_ranks_take_every_index_of_a_step_once_as_a_sort_gives_them(
    begin: int, size: int, ranks: int, lanes: int
) -> None:
    steps = [Step(begin, size, rank, ranks, lanes) for rank in range(ranks)]
    expected = shares(begin, size, ranks, lanes)
    assert [list(step) for step in steps] == expected
    assert [len(step) for step in steps] == [len(each) for each in expected]
    assert sorted(i for step in steps for i in step) == list(range(begin, begin + size))
    for step, indices in zip(steps, expected, strict=True):
        assert list(step.rows(1, 3)) == indices[1:3]
        assert len(step.rows(1, 3)) == len(indices[1:3])


@pytest.mark.parametrize("ranks", [3, 5, 7, 24, 100])
@pytest.mark.parametrize("batch", [8, 32])
def test_each_lane_is_read_by_few_ranks(ranks: int, batch: int) -> None:
    lanes, readers = 64, set()
    for number in range(64):
        for rank in range(ranks):
            step = Step(number * ranks * batch, ranks * batch, rank, ranks, lanes)
            readers |= {(rank, i % lanes) for i in step}
    least = (lanes + ranks - math.gcd(ranks, lanes)) / lanes
    assert len(readers) / lanes <= 2 * least


@pytest.mark.parametrize(("shards", "documents"), [(16, 20_000), (100, 60_000), (1000, 200_000)])
def test_neighbours_come_from_all_over_the_corpus_at_the_start_and_the_end(shards: int, documents: int) -> None:
    for tenth in (0, 9):
        assert near_pairs(shards, documents, epoch=0, tenth=tenth, draws=8) < 0.03
