"""The oracle of the order keeps what the order promises, counted by brute force: so does what equals the oracle."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stream import order_oracle as oracle
from tests.stream.order_oracle import Options, Shard, Source, Stream
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


@few
@given(sources(selected=True), options(), st.integers(0, 5))
def test_an_epoch_holds_every_kept_document_once(source: Source, chosen: Options, e: int) -> None:
    documents = oracle.kept_documents(source)
    assert sorted(Stream(source, chosen, sequential=e == 5).epoch_documents(e)) == sorted(documents)
    plain = Stream(source, replace(chosen, seed=None))
    assert plain.lanes == 1
    assert plain.epoch_documents(e) == documents


# Sections 4 to 7


@few
@given(sources(), options(), st.none() | st.integers(1, 3))
def test_lanes_read_near_equal_runs_of_the_sequences_of_an_epoch(source: Source, chosen: Options, bucket: int) -> None:
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


@few
@given(sources(), options(), st.integers(1, 3))
def test_every_token_is_an_input_once_an_epoch(source: Source, chosen: Options, epochs: int) -> None:
    endless, ending = Stream(source, chosen), Stream(source, replace(chosen, epochs=epochs))
    bounded = oracle.first_rows(ending, 10**6)
    for i, (ours, theirs) in enumerate(zip(bounded, oracle.first_rows(endless, len(bounded)), strict=True)):
        if ending.stream_sequence(i) != endless.stream_sequence(i):
            continue  # it takes the place of one without a label
        for some, every in zip(ours, theirs, strict=True):
            present = [token for token in some if token is not None]
            assert present == every[: len(present)]
    rows = oracle.first_rows(Stream(source, replace(chosen, stride=None, epochs=epochs, shift=1)), 10**6)
    inputs = Counter(token for tokens, _ in rows for token in tokens if token is not None)
    tokens = Counter(all_tokens(source) * epochs)
    assert inputs <= tokens
    assert tokens.total() - inputs.total() <= (not chosen.whole_documents)  # a last sequence of one token has no label
    assert sum(None in tokens for tokens, _ in rows) <= 1
    if not chosen.whole_documents:
        assert sum(label is not None for _, labels in rows for label in labels) == tokens.total() - 1


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
def test_streams_without_tokens_and_too_long_strides_are_refused(documents: list[list[int]], chosen: Options) -> None:
    with pytest.raises(ValueError, match="no tokens"):
        Stream(Source([oracle.memory_shard(documents, 2)], 2), chosen)
