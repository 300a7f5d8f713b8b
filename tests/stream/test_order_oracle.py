"""The oracle keeps the promises of the order, counted by brute force."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import gcd

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import order_oracle as oracle
from tests.order_oracle import WORD, Options, Shard, Source, Stream

pytestmark = pytest.mark.filterwarnings("error")
few = settings(max_examples=60, deadline=None)

KIB = 1 << 10
seeds = st.none() | st.integers(0, 3)


@st.composite
def sources(draw: st.DrawFn, selected: bool = False) -> Source:
    """Draw shards whose tokens are all different, so wide that a few documents make several extents."""
    itemsize = draw(st.sampled_from([2, 40 * KIB, 150 * KIB]))
    token, shards = 0, []
    for lengths in draw(st.lists(st.lists(st.integers(0, 7), max_size=14), min_size=1, max_size=5)):
        byte, documents, starts = 0, [], []
        for length in lengths:
            byte += draw(st.sampled_from([0, 512, 100 * KIB]))
            starts.append(byte)
            byte += length * itemsize
            documents.append(list(range(token, token + length)))
            token += length
        kept = draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))) if selected else None
        shards.append(Shard(documents, starts, byte + draw(st.sampled_from([0, 512])), kept))  # an extent has documents
    shards.append(Shard([[token]], [512], 512 + itemsize, [True] if selected else None))  # at least one token
    return Source(shards, itemsize)


@st.composite
def options(draw: st.DrawFn) -> Options:
    seq_len = draw(st.integers(1, 12))
    return Options(
        seq_len=seq_len,
        stride=draw(st.none() | st.integers(1, seq_len)),
        shift=draw(st.integers(0, 2)),
        seed=draw(seeds),
        lanes=draw(st.none() | st.integers(1, 9)),
        window=draw(st.none() | st.integers(1, 4)),
        whole_documents=draw(st.booleans()),
    )


def file_order(source: Source) -> list[list[int]]:
    return oracle.kept_documents(source)


def all_tokens(documents: list[list[int]]) -> list[int]:
    return [token for document in documents for token in document]


# Section 1


def unmix64(x: int) -> int:
    x ^= x >> 31 ^ x >> 62
    x = x * pow(0x94D049BB133111EB, -1, WORD) % WORD
    x ^= x >> 27 ^ x >> 54
    x = x * pow(0xBF58476D1CE4E5B9, -1, WORD) % WORD
    return x ^ x >> 30 ^ x >> 60


@given(st.integers(0, WORD - 1))
def test_the_hash_can_be_undone_so_permutations_have_no_ties(x: int) -> None:
    assert unmix64(oracle.mix64(x)) == x


@given(st.integers(0, 300), st.integers(0, 3))
def test_a_permutation_holds_every_integer_once(n: int, seed: int) -> None:
    assert sorted(oracle.permutation(n, oracle.key("blocks", "", seed, 0))) == list(range(n))


def test_keys_tell_apart_tags_names_and_numbers() -> None:
    parts = [("a", "b", 1), ("a", "b", "1"), ("ab", 1), ("a", "b1"), ("b", "a", 1), ("a", "b", 1, 0), ("a", "é", 1)]
    assert len({oracle.key(*part) for part in parts}) == len(parts)


# Section 2


@few
@given(sources(selected=True), st.integers(1, 4))
def test_blocks_hold_every_document_of_the_kept_extents_once_in_file_order(source: Source, g: int) -> None:
    runs = oracle.source_runs(source)
    blocks = oracle.cut_blocks(runs, g)
    assert [document for block in blocks for document in block] == file_order(source)
    assert all(blocks)
    assert len(blocks) == sum(-(-len(run) // g) for run in runs)


def test_a_selection_parts_a_shard_into_runs_of_neighbours() -> None:
    documents = [[k] * 100 for k in range(6)]
    shard = oracle.memory_shard(documents, 4096)
    shard.kept = [True, True, False, True, False, False]
    source = Source([shard], itemsize=4096, extent_bytes=4096 * 100)
    runs = [[extent.documents for extent in run] for run in oracle.source_runs(source)]
    assert runs == [[[documents[0]], [documents[1]]], [[documents[3]]]]


def test_a_block_holds_up_to_four_extents_of_half_a_mebibyte_together() -> None:
    means = [0, 128 * KIB, 129 * KIB, 192 * KIB, 256 * KIB, 257 * KIB, 768 * KIB, 5000 * KIB]
    assert [oracle.extents_a_block(10, max(1, 10 * mean), in_mix=False) for mean in means] == [4, 4, 3, 2, 2, 1, 1, 1]
    assert oracle.extents_a_block(10, 1, in_mix=True) == 1


# Section 3


@given(st.integers(1, 700), st.integers(1, 70), st.integers(1, 9), st.sampled_from([1, 2**27, 2**27 + 1]))
def test_windows_are_one_or_the_most_that_are_coprime_to_lanes(K: int, C: int, W: int, y: int) -> None:
    M = oracle.window_count(K, C, W, y)
    coprime = [number for number in range(1, K + 1) if number * W <= K and gcd(number, C) == 1]
    assert (1 if K <= C * W and y <= 128 << 20 else max(coprime, default=1)) == M
    assert gcd(M, C) == 1


def test_lanes_and_windows_follow_from_the_kind_of_stream_and_its_bytes() -> None:
    shuffled, mebibyte = Options(seed=0), 1 << 20
    assert [oracle.lane_count(Options(), True), oracle.lane_count(shuffled, True)] == [1, 16]
    assert [oracle.lane_count(Options(), False), oracle.lane_count(shuffled, False)] == [1, 64]
    means = [1, 100_000, mebibyte // 4, mebibyte, 9 * mebibyte]

    def windows(lanes: int, **options: int) -> list[int]:
        return [oracle.blocks_a_window(shuffled, 7, 7 * mean, lanes, **options) for mean in means]

    assert windows(64) == [4 * mebibyte, 42, 16, 4, 1]
    assert windows(16, sources=5) == [3 * mebibyte, 31, 12, 3, 1]
    assert windows(16, sources=16) == windows(64, sources=4) == [mebibyte, 10, 4, 1, 1]
    assert windows(64, sequential=True) == windows(64)
    assert oracle.blocks_a_window(Options(seed=0, window=5), 7, 7, 3) == 5


@few
@given(sources(selected=True), options(), st.integers(0, 5))
def test_an_epoch_holds_every_kept_document_once(source: Source, chosen: Options, e: int) -> None:
    assert sorted(Stream(source, chosen, sequential=e == 5).epoch_documents(e)) == sorted(file_order(source))


@few
@given(sources(), options())
def test_a_window_holds_whole_blocks_and_windows_are_near_equal(source: Source, chosen: Options) -> None:
    stream = Stream(source, chosen)
    blocks = [{id(document) for document in block} for block in stream.blocks]
    counts = []
    for window in oracle.windows(stream.blocks, stream.M, "", chosen.seed, 1):
        inside = {id(document) for document in window}
        held = [block for block in blocks if block & inside]
        assert inside == set().union(*held)
        counts.append(len(held))
    assert sum(counts) == len(blocks)
    assert max(counts) - min(counts) <= 1


@few
@given(sources(selected=True), options())
def test_without_shuffle_documents_stand_in_file_order(source: Source, chosen: Options) -> None:
    stream = Stream(source, replace(chosen, seed=None))
    assert stream.lanes == 1
    assert stream.epoch_documents(3) == file_order(source)


# Section 4


@few
@given(sources(), options(), st.none() | st.integers(1, 3))
def test_sequence_indices_of_an_epoch_are_its_stream_sequences(source: Source, chosen: Options, bucket: int) -> None:
    stream = Stream(source, replace(chosen, bucket=bucket if chosen.whole_documents else None))
    for e in range(4):
        indices = range(stream.A(e), stream.A(e + 1))
        assert sorted(stream.stream_sequence(i) for i in indices) == list(indices)
        assert all(stream.epoch(i) == e for i in indices)
        assert all(e * stream.T <= i * stream.stride < (e + 1) * stream.T for i in indices)


@few
@given(sources(), options())
def test_a_lane_reads_neighbouring_sequences_and_lanes_are_near_equal(source: Source, chosen: Options) -> None:
    stream = Stream(source, chosen)
    for e in range(3):
        begin, end = stream.A(e), stream.A(e + 1)
        lanes = [[stream.in_lanes(i) for i in range(begin + lane, end, stream.lanes)] for lane in range(stream.lanes)]
        assert [n for lane in lanes for n in lane] == list(range(begin, end))
        assert max(map(len, lanes)) - min(map(len, lanes)) <= 1


# Section 5


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 6), st.integers(0, 500), st.integers(0, 60))
def test_ranks_share_every_step_whatever_their_number(C: int, R: int, B: int, a: int, short: int) -> None:
    n = max(0, R * B - short)
    ranks = oracle.step_of_ranks(a, n, R, C)
    assert sorted(i for rank in ranks for i in rank) == list(range(a, a + n))
    sizes = [len(rank) for rank in ranks]
    assert len(sizes) == R
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= B


def test_ranks_that_divide_lanes_take_residues_and_others_take_runs_of_near_lanes() -> None:
    assert oracle.step_of_ranks(3, 8, 4, 64) == [[4, 8], [5, 9], [6, 10], [3, 7]]
    assert oracle.step_of_ranks(3, 7, 4, 64) == [[4, 8], [5, 9], [6], [3, 7]]
    assert oracle.step_of_ranks(0, 6, 3, 64) == [[0, 3], [1, 4], [2, 5]]  # 0, 25, 50, 11, 36, 61: sorted 0 3 1 4 2 5
    assert oracle.step_of_ranks(3, 8, 4, 2) == [[4, 6], [8, 10], [3, 5], [7, 9]]
    assert oracle.step_of_ranks(3, 7, 4, 1) == [[3], [4, 5], [6, 7], [8, 9]]


def test_multipliers_are_the_first_coprime_integers_from_39_hundredths_on() -> None:
    assert [oracle.multiplier(C) for C in (1, 2, 4, 16, 24, 64)] == [0, 1, 3, 7, 11, 25]


# Section 6


@few
@given(sources(), options(), st.integers(1, 3))
def test_every_token_is_an_input_once_an_epoch(source: Source, chosen: Options, epochs: int) -> None:
    stream = Stream(source, replace(chosen, stride=None, epochs=epochs, shift=1))
    rows = oracle.first_rows(stream, 10**6)
    inputs = Counter(token for tokens, _ in rows for token in tokens if token is not None)
    assert inputs == dict.fromkeys(all_tokens(file_order(source)), epochs)
    short = [tokens for tokens, _ in rows if None in tokens]
    assert len(short) <= 1
    if not chosen.whole_documents:
        labels = sum(label is not None for _, of_row in rows for label in of_row)
        assert labels == inputs.total() - 1


@few
@given(sources(), options())
def test_inputs_and_labels_are_runs_of_the_token_stream(source: Source, chosen: Options) -> None:
    stream = Stream(source, replace(chosen, whole_documents=False))
    tokens = [token for e in range(8) for token in stream.epoch_tokens(e)]
    for i in range(stream.A(2)):
        begin = stream.stream_sequence(i) * stream.stride
        if begin + chosen.shift + chosen.seq_len <= len(tokens):
            inputs, labels = (tokens[at : at + chosen.seq_len] for at in (begin, begin + chosen.shift))
            assert stream.row(i) == (inputs, labels)


@few
@given(sources(), options(), st.integers(1, 3))
def test_a_bounded_stream_begins_an_endless_one(source: Source, chosen: Options, epochs: int) -> None:
    bounded = oracle.first_rows(Stream(source, replace(chosen, epochs=epochs)), 10**6)
    endless = oracle.first_rows(Stream(source, chosen), len(bounded))
    for ours, theirs in zip(bounded, endless, strict=True):
        for some, every in zip(ours, theirs, strict=True):
            present = [token for token in some if token is not None]
            assert present == every[: len(present)]


@given(st.integers(0, 30), st.integers(0, 90), st.integers(1, 5), st.integers(1, 4), st.integers(1, 8))
def test_steps_go_on_from_any_step_and_only_the_last_is_short(first: int, count: int, R: int, B: int, C: int) -> None:
    padded = oracle.steps(first, first + count, R, B, C)
    assert sorted(i for step in padded for rank in step for i in rank) == list(range(first, first + count))
    assert oracle.steps(first, first + count, R, B, C, last="drop") == padded[: count // (R * B)]
    assert padded[1:] == oracle.steps(first + R * B, first + count, R, B, C)


# Section 7


@few
@given(sources(), options(), st.integers(1, 3))
def test_a_bucket_is_a_run_of_its_group_sorted_by_tokens(source: Source, chosen: Options, b: int) -> None:
    stream = Stream(source, replace(chosen, whole_documents=True, bucket=b))
    for e in range(3):
        begin, end = stream.A(e), stream.A(e + 1)
        for q in range(begin // (64 * b), -(-end // (64 * b))):
            group = range(max(begin, 64 * b * q), min(end, 64 * b * (q + 1)))
            assert {stream.stream_sequence(i) for i in group} == {stream.in_lanes(i) for i in group}
            lengths: dict[int, list[int]] = {}
            for i in group:
                lengths.setdefault(i // b, []).append(len(stream.row(i)[0]))
            assert all(bucket == sorted(bucket) for bucket in lengths.values())
            spans = sorted((bucket[0], bucket[-1]) for bucket in lengths.values())
            assert all(longest <= shortest for (_, longest), (shortest, _) in pairwise(spans))


# All sections


@few
@given(sources(), options(), st.integers(1, 5), st.integers(1, 4), st.integers(0, 9))
def test_a_run_that_changes_ranks_reads_the_same_rows(source: Source, chosen: Options, R: int, B: int, k: int) -> None:
    stream = Stream(source, replace(chosen, epochs=2))
    count = stream.count()
    assert count is not None
    change = min(count, k * R * B)
    before = oracle.steps(0, change, R, B, stream.lanes)
    after = oracle.steps(change, count, B, R + 1, stream.lanes)
    assert sorted(i for step in before + after for rank in step for i in rank) == list(range(count))


@pytest.mark.parametrize(
    ("documents", "chosen"),
    [([[]], Options()), ([[1, 2]], Options(seq_len=2, stride=3)), ([], Options(whole_documents=True))],
)
def test_streams_without_tokens_and_strides_beyond_a_sequence_are_refused(
    documents: list[list[int]], chosen: Options
) -> None:
    with pytest.raises(ValueError, match="no tokens"):
        Stream(Source([oracle.memory_shard(documents, 2)], 2), chosen)
