"""Streams of every kind give what the definition of the order says, on any number of ranks, row for row."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.errors import ConfigError
from pipeline.stream.order import derive_key, mix64, permutation
from tests.stream.order_oracle import Options, Source, Stream, extents_a_block, sequential_documents, source_runs
from tests.stream.order_oracle_mixes import Mix, Samples
from tests.stream.order_samples import Documents, assert_follows, halved, in_memory, numbered, state_at, written

RANKS = st.sampled_from([1, 2, 3, 5, 7, 8, 24, 100])
SIZES = st.lists(
    st.lists(st.integers(0, 12) | st.just(0) | st.sampled_from([500, 1500]), max_size=12), min_size=1, max_size=6
).filter(lambda sizes: 0 < sum(map(sum, sizes)) < 50_000)


@dataclass
class Case:
    """A dataset of small extents, how it is shuffled and bounded, and who reads it from where."""

    shards: Documents
    dtype: str
    extent_bytes: int
    tokens_per_sample: int
    options: Options
    ranks: int
    batch: int | None
    last: str
    before: tuple[int, int, int]  # ranks, batch and steps of the run that saved the state; no steps: no state

    def dataset(self, folder: str) -> tuple[pipeline.ShardDataset, Source]:
        path, source = written(Path(folder, "data"), self.shards, self.dtype, self.extent_bytes, self.tokens_per_sample)
        return pipeline.ShardDataset(path, epochs=self.options.epochs), source

    def shuffled(self, stream: pipeline.Stream) -> pipeline.Stream:
        options = self.options
        return (
            stream
            if options.seed is None
            else stream.shuffle(seed=options.seed, lanes=options.lanes, window=options.window)
        )

    def assert_follows(self, stream: pipeline.Stream, oracle: Any) -> None:
        if self.options.take is not None:
            stream = stream.take(self.options.take)
        ranks, batch, count = self.before
        state = state_at(stream, ranks, batch, count) if count else None
        if state is not None:
            end, reached = oracle.count(), ranks * batch * count
            assert state["sequence_index"] == (reached if end is None else min(end, reached))
        assert_follows(stream, oracle, self.ranks, self.batch, state=state, number=12, last=self.last)


@st.composite
def cases(draw: st.DrawFn, *, bounded: bool = True) -> Case:
    seq_len = draw(st.integers(1, 12))
    options = Options(
        seq_len=seq_len,
        stride=draw(st.none() | st.integers(1, seq_len)),
        shift=draw(st.integers(1, seq_len)),
        seed=draw(st.none() | st.sampled_from([0, 1, 2**64])),
        lanes=draw(st.none() | st.integers(1, 9)),
        window=draw(st.none() | st.integers(1, 4)),
        epochs=draw(st.none() | st.integers(1, 3)) if bounded else None,
        take=draw(st.none() | st.integers(0, 400)) if bounded else None,
    )
    return Case(
        numbered(draw(SIZES)),
        draw(st.sampled_from(["<u2", "<u4"])),
        draw(st.sampled_from([400, 1100, 3000, 9000, 196_608])),
        draw(st.sampled_from([0, 0, 20])),
        options,
        draw(RANKS),
        draw(st.none() | st.integers(1, 5)),
        draw(st.sampled_from(["pad", "drop"])),
        draw(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9))),
    )


def test_the_values_on_the_page_hold() -> None:
    assert mix64(np.array([1], np.uint64)).tolist() == [0x5692161D100B05E5]
    assert derive_key("blocks", "", 0, 0) == 11988941072446886257
    assert derive_key("blocks", "\u00e9", 7, 1) == 3377085979730679143
    assert permutation(8, derive_key("blocks", "", 0, 0)).tolist() == [6, 4, 0, 1, 7, 3, 2, 5]


@settings(max_examples=30, deadline=None)
@given(case=cases())
def test_packed_sequences(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data, source = case.dataset(folder)
        options = case.options
        stream = case.shuffled(data).pack(options.seq_len, stride=options.stride, shift=options.shift)
        if Stream(source, options).end() == 0:
            with pytest.raises(ConfigError, match="too short for a label"):
                list(stream)
        else:
            case.assert_follows(stream, Stream(source, options))


@settings(max_examples=20, deadline=None)
@given(case=cases(), bucket=st.none() | st.integers(1, 3), max_length=st.none() | st.integers(1, 9))
def test_documents_and_buckets(case: Case, bucket: int | None, max_length: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data, source = case.dataset(folder)
        options = replace(case.options, whole_documents=True, shift=1, bucket=bucket, max_length=max_length)
        stream = case.shuffled(data).documents(max_length, bucket=bucket)
        case.assert_follows(stream, Stream(source, options))


@settings(max_examples=15, deadline=None)
@given(
    case=cases(),
    val=st.sampled_from([0.05, 0.2, 0.5]),
    half=st.integers(0, 1),
    again=st.none() | st.integers(0, 1),
    documents=st.booleans(),
)
def test_halves_of_a_split_and_of_a_half(case: Case, val: float, half: int, again: int | None, documents: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data, source = case.dataset(folder)
        part: Any = data.split(val=val)[half]
        splits = [(val, half)]
        if again is not None:
            part = part.split(val=0.5)[again]
            splits.append((0.5, again))
        source = halved(source, [f"train-{number:06d}.tar" for number in range(len(case.shards))], *splits)
        options = replace(case.options, whole_documents=documents, shift=1 if documents else case.options.shift)
        stream = case.shuffled(part)
        stream = (
            stream.documents()
            if documents
            else stream.pack(options.seq_len, stride=options.stride, shift=options.shift)
        )
        try:
            oracle = Stream(source, options)
        except ValueError:
            with pytest.raises(pipeline.ConfigError, match="there is nothing to stream"):
                next(iter(stream))
        else:
            if oracle.end() == 0:
                with pytest.raises(ConfigError, match="too short for a label"):
                    list(stream)
            else:
                case.assert_follows(stream, oracle)


@settings(max_examples=20, deadline=None)
@given(case=cases())
def test_samples(case: Case) -> None:
    options = replace(case.options, lanes=None, window=None)
    case.options = options
    with tempfile.TemporaryDirectory() as folder:
        data, source = case.dataset(folder)
        case.assert_follows(case.shuffled(data).sample(options.seq_len, shift=options.shift), Samples(source, options))


@settings(max_examples=20, deadline=None)
@given(case=cases(), epochs=st.none() | st.just(1), number=st.integers(0, 5))
def test_one_pass_from_its_beginning(case: Case, epochs: int | None, number: int) -> None:
    options = case.options = replace(case.options, epochs=epochs)
    with tempfile.TemporaryDirectory() as folder:
        data, source = case.dataset(folder)
        oracle = Stream(source, replace(options, take=None))
        assume(oracle.end() != 0)  # too short for a label
        stream = case.shuffled(data).pack(options.seq_len, stride=options.stride, shift=options.shift)
        if options.take is not None:
            stream = stream.take(options.take)
        stream.set_epoch(number)
        begin, end = Stream(source, options).pass_bounds(number)
        assert stream.state_dict()["sequence_index"] == begin
        begin = 0 if end is None else begin  # an endless stream has no passes
        assert_follows(stream, oracle, case.ranks, case.batch, end=end, number=12, last=case.last, pass_begin=begin)


@settings(max_examples=25, deadline=None)
@given(case=cases(bounded=False))
def test_sequential_readers_take_a_part_of_an_epoch_for_each_lane(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data, source = case.dataset(folder)
        lanes = case.options.lanes if case.options.seed is not None and case.options.lanes else 1
        case.options = replace(case.options, lanes=lanes)
        stream = case.shuffled(data).filter(lambda document: True, name="all").documents()
        epochs = [sequential_documents(source, case.options, epoch) for epoch in range(3 * lanes + 3)]
        expected = [iter([document for epoch in epochs for document in epoch[lane]]) for lane in range(lanes)]
        count = 3 * sum(data._data.documents) if sum(data._data.documents) >= lanes else 0
        for k, item in enumerate(islice(stream, count) if count else ()):
            assert item["input_ids"].tolist() == (next(expected[k % lanes]) or [0])


@pytest.mark.parametrize("seed", range(2))
def test_lanes_that_find_nothing_in_different_epochs_go_on(seed: int) -> None:
    data, _ = in_memory([[], [], [1, 2, 3], [], []], "<u2")
    stream = data.shuffle(seed=seed, lanes=2).filter(lambda document: True, name="all").documents()
    found = [item["input_ids"].tolist() for item in islice(stream, 100)]
    assert found.count([1, 2, 3]) > 10  # about one of five: one lane has two documents of an epoch, the other three


LONG = {  # documents in extents of at least 192 KiB, by the most extents that a block of them holds
    2: [60_000, *[900] * 900, 0, 0],
    1: [100_000, 0, 9] * 25,
}


@cache
def long(most: int) -> tuple[pipeline.Stream, Source]:
    return in_memory(numbered([LONG[most]])[0], "<i8")


@pytest.mark.parametrize("most", LONG)
@pytest.mark.parametrize("options", [{}, {"lanes": 2}, {"lanes": 3, "window": 1}])
def test_extents_of_192_kib_in_memory(most: int, options: dict[str, int]) -> None:
    data, source = long(most)
    oracle = Stream(source, Options(seq_len=1024, seed=5, **options))
    (extents,) = source_runs(source)
    assert extents_a_block(len(extents), sum(extent.size for extent in extents), in_mix=False) == most
    assert oracle.M > 1 or "window" not in options
    assert oracle.M == 5 or options != {"lanes": 2} or most > 1  # windows of as many blocks as nobody stated
    stream = data.shuffle(seed=5, **options).pack(1024)
    assert_follows(stream, oracle, 1, 8, number=9)
    stream.set_epoch(1)
    state = state_at(stream, 1, 1, 0)
    assert_follows(stream, oracle, 3, 4, state={**state, "sequence_index": oracle.A(1) - 77}, number=9)


@pytest.mark.parametrize(("val", "half"), [(0.02, 0), (0.4, 1)])
def test_halves_of_more_than_1000_extents(tmp_path: Path, val: float, half: int) -> None:
    path, source = written(
        tmp_path / "data", numbered([[9] * 900, [30, 0, 1] * 100]), extent_bytes=16, tokens_per_sample=1 << 20
    )
    oracle = Stream(
        halved(source, ["train-000000.tar", "train-000001.tar"], (val, half)), Options(seq_len=16, seed=1, lanes=3)
    )
    part = pipeline.ShardDataset(path).split(val=val)[half]
    assert_follows(part.shuffle(seed=1, lanes=3).pack(16), oracle, 2, 4, number=30)


WEIGHTS = st.fixed_dictionaries({name: st.integers(0, 5) for name in "abc"}).filter(lambda w: sum(w.values()) > 0)


def exact(weights: dict[str, int]) -> dict[str, Fraction]:
    return {name: Fraction(weights[name], sum(weights.values())) for name in weights}


@settings(max_examples=12, deadline=None)
@given(
    case=cases(bounded=False),
    more=st.tuples(SIZES, SIZES),
    schedule=st.lists(WEIGHTS, min_size=1, max_size=3),
    places=st.lists(st.integers(1, 9000), min_size=2, max_size=2, unique=True).map(sorted),
    set_to=st.none() | WEIGHTS,
    take=st.none() | st.integers(0, 9000),
)
def test_mixes_with_schedules_and_changed_weights(
    case: Case,
    more: tuple[list[list[int]], list[list[int]]],
    schedule: list[dict[str, int]],
    places: list[int],
    set_to: dict[str, int] | None,
    take: int | None,
) -> None:
    options = case.options
    ranks, batch, count = case.before
    batch *= 40  # to come to the next period of a lane
    with tempfile.TemporaryDirectory() as folder:
        data, sources = {}, {}
        for name, shards in zip("abc", (case.shards, *map(numbered, more)), strict=True):
            path, sources[name] = written(Path(folder, name), shards, "<u2", case.extent_bytes)
            data[name] = pipeline.ShardDataset(path)
        given_weights = list(zip([0, *places], schedule, strict=False))
        stream = case.shuffled(pipeline.mix(data, given_weights))
        stream = stream.pack(options.seq_len, stride=options.stride, shift=options.shift)
        state = state_at(stream, ranks, batch, count)
        index = state["sequence_index"]
        changes = [(x, exact(weights)) for x, weights in given_weights]
        if set_to is not None:
            stream.load_state_dict(state)
            stream.set_weights(set_to)
            lanes = 1 if options.seed is None else options.lanes or 16
            row = -(-index // lanes)
            changes = [change for change in changes if -(-change[0] // lanes) <= row] + [(index, exact(set_to))]
            state = stream.state_dict()
        oracle = Mix(sources, changes, replace(options, take=take))
        stream = stream if take is None else stream.take(take)
        begin, end = 0, None if take is None else max(take, index)
        if take and index > take:  # saved without the take, so the pass that holds it
            begin = index // take * take
            end = begin + take
        where: dict[str, Any] = {"state": state, "end": end, "pass_begin": begin}
        assert_follows(stream, oracle, case.ranks, case.batch, **where, number=8, last=case.last)


@settings(max_examples=25, deadline=None)
@given(st.data(), st.booleans(), st.integers(0, 30), st.integers(0, 12))
def test_mixes_of_documents_and_of_samples(data: st.DataObject, samples: bool, seed: int, stop: int) -> None:
    lanes = None if samples else data.draw(st.sampled_from([None, 1, 3, 8]))
    options = Options(seq_len=5, seed=seed or None, lanes=lanes, whole_documents=not samples, shift=1)
    sizes = data.draw(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), min_size=2, max_size=3))
    held = {name: in_memory(numbered([[*own, 3]])[0], "<u2") for name, own in zip("abc", sizes, strict=False)}
    weights = {name: data.draw(st.integers(1, 5)) for name in held}
    oracle = Mix({name: source for name, (_, source) in held.items()}, [(0, exact(weights))], options, samples)
    stream = pipeline.mix({name: one for name, (one, _) in held.items()}, weights)
    if seed:
        stream = stream.shuffle(seed=seed, lanes=lanes)
    stream = stream.sample(5) if samples else stream.documents()
    ranks, batch = data.draw(RANKS), data.draw(st.integers(1, 3))
    state = state_at(stream, data.draw(RANKS), batch, stop)
    assert_follows(stream, oracle, ranks, batch, state=state, number=6)


@pytest.mark.parametrize("number", [0, 1, 7])
@pytest.mark.parametrize("take", [5, 700])
def test_a_pass_of_a_mix_from_its_beginning(take: int, number: int) -> None:
    held = {name: in_memory(numbered([[9] * 40])[0], "<u2") for name in "ab"}
    oracle = Mix(
        {name: source for name, (_, source) in held.items()},
        [(0, {"a": Fraction(1, 3), "b": Fraction(2, 3)})],
        Options(seq_len=8, seed=2, lanes=3, take=take),
    )
    stream = pipeline.mix({name: data for name, (data, _) in held.items()}, {"a": 1, "b": 2})
    stream = stream.shuffle(seed=2, lanes=3).pack(8).take(take)
    stream.set_epoch(number)
    begin, end = oracle.pass_bounds(number)
    assert stream.state_dict()["sequence_index"] == begin
    assert_follows(stream, oracle, 2, 4, end=end, pass_begin=begin)


@cache
def long_sources() -> dict[str, tuple[pipeline.Stream, Source]]:
    lengths = {"a": [1000] * 1200, "b": [0, 30_000] * 40}
    return {name: in_memory(numbered([sizes])[0], "<i8") for name, sizes in lengths.items()}


@pytest.mark.parametrize("lanes", [None, 1, 2])
def test_a_mix_of_sources_with_windows_that_nobody_stated(lanes: int | None) -> None:
    data = long_sources()
    oracle = Mix(
        {name: source for name, (_, source) in data.items()},
        [(0, {"a": Fraction(1, 3), "b": Fraction(2, 3)})],
        Options(seq_len=512, seed=2, lanes=lanes),
    )
    assert (oracle.streams["a"].M > 1) == (lanes is not None)
    stream = pipeline.mix({name: stream for name, (stream, _) in data.items()}, {"a": 1, "b": 2})
    assert_follows(stream.shuffle(seed=2, lanes=lanes).pack(512), oracle, 2, 8, number=9)


@pytest.mark.parametrize(("window", "lanes"), [(None, 1), (3, 1), (None, 50), (3, 5)])
def test_windows_of_sequential_readers_share_256_mib_unless_stated(window: int | None, lanes: int) -> None:
    data, source = long(1)
    stream = data.shuffle(seed=5, lanes=lanes, window=window).filter(lambda document: True, name="all")
    expected = sequential_documents(source, Options(seed=5, lanes=lanes, window=window), 0)
    rows = islice(stream.documents(max_length=1), min(map(len, expected)) * lanes)
    for k, item in enumerate(rows):
        assert item["input_ids"].tolist() == (expected[k % lanes][k // lanes][:1] or [0])


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("bucket", [1, 3, 7])
def test_groups_of_buckets_over_several_epochs(tmp_path: Path, seed: int | None, bucket: int) -> None:
    sizes = np.random.default_rng(4).integers(0, 30, (3, 95)).tolist()
    path, source = written(tmp_path / "data", numbered(sizes), extent_bytes=4000)
    options = Options(seed=seed, lanes=5, window=2, bucket=bucket, epochs=4, whole_documents=True)
    data = pipeline.ShardDataset(path, epochs=4)
    stream = data if seed is None else data.shuffle(seed=seed, lanes=5, window=2)
    assert_follows(stream.documents(bucket=bucket), Stream(source, options), 2, 6, number=1000)
