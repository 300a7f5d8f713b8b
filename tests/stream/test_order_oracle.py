"""The oracle of the order keeps what the order promises, counted by brute force: so does what equals the oracle."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import gcd

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import order_oracle as oracle
from tests.order_oracle import WORD, Options, Shard, Source, Stream
from tests.stream.order_oracle_mixes import Mix, Samples, quotas

few = settings(max_examples=40, deadline=None)
fewest = settings(max_examples=12, deadline=None)  # a period of a mix takes milliseconds

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


def all_tokens(source: Source) -> list[int]:
    return [token for document in oracle.kept_documents(source) for token in document]


# Sections 1 to 3


def unmix64(x: int) -> int:
    x ^= x >> 31 ^ x >> 62
    x = x * pow(0x94D049BB133111EB, -1, WORD) % WORD
    x ^= x >> 27 ^ x >> 54
    x = x * pow(0xBF58476D1CE4E5B9, -1, WORD) % WORD
    return x ^ x >> 30 ^ x >> 60


@given(st.integers(0, WORD - 1), st.integers(0, 300))
def test_the_hash_can_be_undone_so_a_permutation_has_no_ties_and_holds_every_integer_once(x: int, n: int) -> None:
    assert unmix64(oracle.mix64(x)) == x
    assert sorted(oracle.permutation(n, oracle.key("blocks", "", x, 0))) == list(range(n))


def test_keys_tell_apart_tags_names_and_numbers() -> None:
    parts = [("a", "b", 1), ("a", "b", "1"), ("ab", 1), ("a", "b1"), ("b", "a", 1), ("a", "b", 1, 0), ("a", "é", 1)]
    assert len({oracle.key(*part) for part in parts}) == len(parts)


def test_a_selection_parts_a_shard_into_runs_of_neighbours_and_a_block_holds_up_to_four_extents() -> None:
    documents = [[k] * 100 for k in range(6)]
    shard = oracle.memory_shard(documents, 4096)
    shard.kept = [True, True, False, True, False, False]
    source = Source([shard], itemsize=4096, extent_bytes=4096 * 100)
    runs = [[extent.documents for extent in run] for run in oracle.source_runs(source)]
    assert runs == [[[documents[0]], [documents[1]]], [[documents[3]]]]
    means = [0, 128 * KIB, 129 * KIB, 192 * KIB, 256 * KIB, 257 * KIB, 768 * KIB, 5000 * KIB]
    assert [oracle.extents_a_block(10, max(1, 10 * mean), in_mix=False) for mean in means] == [4, 4, 3, 2, 2, 1, 1, 1]
    assert oracle.extents_a_block(10, 1, in_mix=True) == 1


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

    assert windows(64) == windows(64, sequential=True) == [4 * mebibyte, 42, 16, 4, 1]
    assert windows(16, sources=5) == [3 * mebibyte, 31, 12, 3, 1]
    assert windows(16, sources=16) == windows(64, sources=4) == [mebibyte, 10, 4, 1, 1]
    assert oracle.blocks_a_window(Options(seed=0, window=5), 7, 7, 3) == 5


@few
@given(sources(selected=True), options(), st.integers(0, 5))
def test_an_epoch_holds_every_kept_document_once_and_without_shuffle_in_file_order(
    source: Source, chosen: Options, e: int
) -> None:
    documents = oracle.kept_documents(source)
    assert sorted(Stream(source, chosen, sequential=e == 5).epoch_documents(e)) == sorted(documents)
    plain = Stream(source, replace(chosen, seed=None))
    assert plain.lanes == 1
    assert plain.epoch_documents(e) == documents


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


# Sections 4 to 7


@few
@given(sources(), options(), st.none() | st.integers(1, 3))
def test_indices_of_an_epoch_are_its_sequences_and_lanes_read_near_equal_runs_of_them(
    source: Source, chosen: Options, bucket: int
) -> None:
    stream = Stream(source, replace(chosen, bucket=bucket if chosen.whole_documents else None))
    for e in range(4):
        begin, end = stream.A(e), stream.A(e + 1)
        assert sorted(stream.stream_sequence(i) for i in range(begin, end)) == list(range(begin, end))
        assert all(stream.epoch(i) == e for i in range(begin, end))
        assert all(e * stream.T <= i * stream.stride < (e + 1) * stream.T for i in range(begin, end))
        lanes = [[stream.in_lanes(i) for i in range(begin + lane, end, stream.lanes)] for lane in range(stream.lanes)]
        assert [n for lane in lanes for n in lane] == list(range(begin, end))
        assert max(map(len, lanes)) - min(map(len, lanes)) <= 1


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
    assert oracle.step_of_ranks(3, 7, 4, 1) == [[3], [4, 5], [6, 7], [8, 9]]
    assert [oracle.multiplier(C) for C in (1, 2, 4, 16, 24, 64)] == [0, 1, 3, 7, 11, 25]


@given(st.integers(0, 30), st.integers(0, 90), st.integers(1, 5), st.integers(1, 4), st.integers(1, 8))
def test_steps_go_on_from_any_step_and_only_the_last_is_short(first: int, count: int, R: int, B: int, C: int) -> None:
    padded = oracle.steps(first, first + count, R, B, C)
    assert sorted(i for step in padded for rank in step for i in rank) == list(range(first, first + count))
    assert oracle.steps(first, first + count, R, B, C, last="drop") == padded[: count // (R * B)]
    assert padded[1:] == oracle.steps(first + R * B, first + count, R, B, C)


@few
@given(sources(), options(), st.integers(1, 3))
def test_every_token_is_an_input_once_an_epoch_and_a_bounded_stream_begins_an_endless_one(
    source: Source, chosen: Options, epochs: int
) -> None:
    bounded = oracle.first_rows(Stream(source, replace(chosen, epochs=epochs)), 10**6)
    for ours, theirs in zip(bounded, oracle.first_rows(Stream(source, chosen), len(bounded)), strict=True):
        for some, every in zip(ours, theirs, strict=True):
            present = [token for token in some if token is not None]
            assert present == every[: len(present)]
    rows = oracle.first_rows(Stream(source, replace(chosen, stride=None, epochs=epochs, shift=1)), 10**6)
    inputs = Counter(token for tokens, _ in rows for token in tokens if token is not None)
    assert inputs == dict.fromkeys(all_tokens(source), epochs)
    assert sum(None in tokens for tokens, _ in rows) <= 1
    if not chosen.whole_documents:
        assert sum(label is not None for _, labels in rows for label in labels) == inputs.total() - 1


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


# Section 8. Mixes

NAMES = ("code", "web", "wiki")


@st.composite
def weightings(draw: st.DrawFn) -> dict[str, Fraction]:
    parts = draw(st.lists(st.integers(0, 5000) | st.sampled_from([0, 1]), min_size=3, max_size=3).filter(any))
    return {name: Fraction(part, sum(parts)) for name, part in zip(NAMES, parts, strict=True)}


@given(st.lists(st.integers(0, 10**6) | st.sampled_from([0, 1]), min_size=1, max_size=60).filter(any))
def test_quotas_sum_to_a_period_and_give_every_positive_weight_a_row(parts: list[int]) -> None:
    weights = {f"{j:02}": Fraction(part, sum(parts)) for j, part in enumerate(parts)}
    rows = quotas(weights)
    assert sum(rows.values()) == 4096
    assert all((rows[name] >= 1) == (weight > 0) for name, weight in weights.items())
    if all(weight == 0 or weight * 4096 >= 1 for weight in weights.values()):
        assert all(abs(rows[name] - weight * 4096) < 1 for name, weight in weights.items())


def mix(changes: list[tuple[int, dict[str, Fraction]]], chosen: Options) -> Mix:
    corpora = {
        name: Source([oracle.memory_shard([[100 * j + k] * (k + 1) for k in range(9)], 2)], 2)
        for j, name in enumerate(NAMES, 1)
    }
    return Mix(corpora, changes, chosen)


@fewest
@given(weightings(), weightings(), st.integers(0, 14_000), st.integers(1, 3), seeds)
def test_sources_serve_their_own_indices_without_gaps_across_a_change(
    first: dict[str, Fraction], second: dict[str, Fraction], x: int, C: int, seed: int | None
) -> None:
    chosen = Options(lanes=C, seed=seed)
    changed, unchanged = mix([(0, first), (x, second)], chosen), mix([(0, first)], chosen)
    C = changed.lanes
    row_of_change = -(-x // C)
    rows = row_of_change + 4096
    served: Counter[tuple[str, int]] = Counter()
    for row in range(rows):
        for lane in range(C):
            i = row * C + lane
            name, index = changed.source_index(i)
            assert index == served[name, lane] * C + lane
            served[name, lane] += 1
            if row < row_of_change:
                assert (name, index) == unchanged.source_index(i)
    for lane in range(C):
        names = [changed.source_index(row * C + lane)[0] for row in range(rows)]
        for begin in [*range(0, row_of_change - 4095, 4096), row_of_change]:
            counted = Counter(names[begin : begin + 4096])
            assert counted == +Counter(quotas(second if begin == row_of_change else first))


def test_of_changes_at_one_row_the_last_holds() -> None:
    only = {name: {other: Fraction(other == name) for other in NAMES} for name in NAMES}
    changed = mix([(0, only["web"]), (9, only["wiki"]), (11, only["code"])], Options(seed=0, lanes=4))
    assert [changed.source_index(i)[0] for i in range(16)] == ["web"] * 12 + ["code"] * 4


@fewest
@given(sources(), options())
def test_a_mix_of_one_source_is_the_stream_of_this_source(source: Source, chosen: Options) -> None:
    alone = Stream(source, chosen, name="web", sources=1)
    mixed = Mix({"web": source}, [(0, {"web": Fraction(1)})], chosen)
    assert mixed.lanes == alone.lanes
    assert oracle.first_rows(mixed, 40) == oracle.first_rows(alone, 40)


# Section 9. Samples


@few
@given(sources(selected=True), options(), st.integers(0, 10**9))
def test_a_sample_is_a_run_of_the_ring_of_kept_tokens(source: Source, chosen: Options, i: int) -> None:
    samples = Samples(source, chosen)
    ring = all_tokens(source) * 15
    begin = samples.begin(i)
    assert begin in range(len(samples.ring))
    end = begin + chosen.seq_len
    assert samples.row(i) == (ring[begin:end], ring[begin + chosen.shift : end + chosen.shift])


def test_samples_begin_everywhere_alike() -> None:
    samples = Samples(Source([oracle.memory_shard([list(range(10))], 2)], 2), Options(seed=1))
    counts = Counter(samples.begin(i) for i in range(5000))
    assert sorted(counts) == list(range(10))
    assert max(counts.values()) < 1.2 * min(counts.values())


@pytest.mark.parametrize(
    ("documents", "chosen"),
    [([[]], Options()), ([[1, 2]], Options(seq_len=2, stride=3)), ([], Options(whole_documents=True))],
)
def test_streams_without_tokens_and_strides_beyond_a_sequence_are_refused(
    documents: list[list[int]], chosen: Options
) -> None:
    with pytest.raises(ValueError, match="no tokens"):
        Stream(Source([oracle.memory_shard(documents, 2)], 2), chosen)
