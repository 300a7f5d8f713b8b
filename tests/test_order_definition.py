"""Streams of every kind give what the definition of the order says, on any number of ranks, row for row."""

from __future__ import annotations

import tempfile
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.stream.splitting import held_out
from tests.order_oracle import Options, Rows, Shard, Source, Stream, memory_shard, steps
from tests.order_oracle_mixes import Mix, Samples
from tests.shard_samples import write_dataset

SIZES = st.lists(st.lists(st.integers(0, 12), max_size=12), min_size=1, max_size=9).filter(
    lambda sizes: sum(map(sum, sizes)) > 0
)
RANKS = st.sampled_from([1, 2, 3, 5, 7, 8, 24, 100])


def numbered(sizes: list[list[int]], first: int = 1) -> list[list[list[int]]]:
    token = iter(range(first, 60_000))
    return [[[next(token) for _ in range(size)] for size in shard] for shard in sizes]


def written(directory: Path, shards: list[list[list[int]]]) -> Path:
    write_dataset(directory, [[np.array(document, "<u2") for document in shard] for shard in shards])
    return directory


def source_of(shards: list[list[list[int]]]) -> Source:
    """The shards as the oracle takes them: each is so small that it is one extent, wherever its documents lie."""
    return Source([memory_shard(shard, 2) for shard in shards], 2)


def assert_follows(
    stream: pipeline.Stream, oracle: Rows, ranks: int, batch: int, *, first: int = 0, number: int = 40
) -> None:
    """Compare the batches of ranks, from sequence index ``first`` on, with the rows of the oracle."""
    end = oracle.count()
    until = first + number * ranks * batch if end is None else end
    expected = steps(first, until, ranks, batch, oracle.lanes)[:number]
    for rank in {0, ranks // 2, ranks - 1}:
        own = stream.shard(rank, ranks).batch(batch)
        if first:
            own.load_state_dict({**own.state_dict(), "sequence_index": first})
        found = list(islice(own, number)) if end is None or len(expected) == number else list(own)
        assert len(found) == len(expected)
        for item, step in zip(found, expected, strict=True):
            assert_rows(item, [oracle.row(i) for i in step[rank]])


def assert_rows(item: dict[str, Any], rows: list[Any]) -> None:
    ids, labels = item["input_ids"].tolist(), item["labels"].tolist()
    for got_ids, got_labels, (inputs, targets) in zip(ids, labels, rows, strict=False):
        width = len(got_ids)
        padded = [0 if token is None else token for token in inputs] + [0] * (width - len(inputs))
        targeted = [-100 if token is None else token for token in targets] + [-100] * (width - len(targets))
        assert (got_ids, got_labels) == (padded, targeted)
    for got in labels[len(rows) :]:
        assert set(got) == {-100}


@settings(max_examples=25, deadline=None)
@given(
    sizes=SIZES,
    seed=st.none() | st.integers(0, 3),
    lanes=st.integers(1, 9),
    window=st.integers(1, 4),
    seq_len=st.integers(1, 12),
    stride=st.integers(1, 12),
    epochs=st.none() | st.integers(1, 3),
    ranks=RANKS,
    batch=st.integers(1, 5),
    first=st.integers(0, 50),
    mapped=st.booleans(),
)
def test_packed_sequences(
    sizes: list[list[int]],
    seed: int | None,
    lanes: int,
    window: int,
    seq_len: int,
    stride: int,
    epochs: int | None,
    ranks: int,
    batch: int,
    first: int,
    mapped: bool,
) -> None:
    shards, stride = numbered(sizes), min(stride, seq_len)
    options = Options(seq_len=seq_len, stride=stride, seed=seed, lanes=lanes, window=window, epochs=epochs)
    oracle = Stream(source_of(shards), options)
    end = oracle.count()
    with tempfile.TemporaryDirectory() as folder:
        data = pipeline.ShardDataset(written(Path(folder, "data"), shards), epochs=epochs, memory_map=mapped)
        stream = (data if seed is None else data.shuffle(seed, lanes=lanes, window=window)).pack(seq_len, stride=stride)
        assert_follows(stream, oracle, ranks, batch, first=first if end is None else min(first, end), number=12)


@settings(max_examples=20, deadline=None)
@given(
    sizes=SIZES,
    seed=st.none() | st.integers(0, 3),
    lanes=st.integers(1, 9),
    window=st.integers(1, 4),
    bucket=st.none() | st.integers(1, 3),
    epochs=st.none() | st.integers(1, 3),
    ranks=RANKS,
    batch=st.integers(1, 5),
    mapped=st.booleans(),
)
def test_documents_and_buckets(
    sizes: list[list[int]],
    seed: int | None,
    lanes: int,
    window: int,
    bucket: int | None,
    epochs: int | None,
    ranks: int,
    batch: int,
    mapped: bool,
) -> None:
    shards = numbered(sizes)
    options = Options(seed=seed, lanes=lanes, window=window, bucket=bucket, epochs=epochs, whole_documents=True)
    with tempfile.TemporaryDirectory() as folder:
        data = pipeline.ShardDataset(written(Path(folder, "data"), shards), epochs=epochs, memory_map=mapped)
        data = data if seed is None else data.shuffle(seed, lanes=lanes, window=window)
        assert_follows(data.documents(bucket=bucket), Stream(source_of(shards), options), ranks, batch, number=12)


@pytest.mark.parametrize("dtype", ["<u4"])
@pytest.mark.parametrize("options", [{}, {"lanes": 3, "window": 1}, {"lanes": 4, "window": 2}])
def test_extents_of_one_shard_in_blocks(dtype: str, options: dict[str, int]) -> None:
    generator = np.random.default_rng(1)
    lengths = np.concatenate(
        [generator.integers(0, 3000, 400), [200_000, 0, 0, 70_000], generator.integers(0, 40, 999)]
    )
    tokens = np.arange(1, 1 + lengths.sum()).astype(dtype)
    documents = [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]
    source = Source([memory_shard(documents, tokens.itemsize)], tokens.itemsize)
    oracle = Stream(source, Options(seq_len=1024, seed=5, **options))
    assert len(oracle.blocks) > 4
    stream = pipeline.ShardDataset.from_tokens(tokens, lengths=lengths).shuffle(5, **options).pack(1024)
    assert_follows(stream, oracle, 1, 8)
    assert_follows(stream, oracle, 3, 4, first=oracle.A(1) - 77)


@pytest.mark.parametrize("val", [0.1, 0.4])
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("mapped", [False, True])
def test_halves_of_a_split(tmp_path: Path, val: float, half: int, mapped: bool) -> None:
    generator = np.random.default_rng(2)
    shards = numbered([generator.integers(0, 9, n).tolist() for n in (60, 5, 80, 1, 44, 70, 90)])
    keys = [f"{number:012d}" for number in range(sum(map(len, shards)))]
    held = held_out(keys, Fraction(str(val))).tolist()
    source, done = source_of(shards), 0
    for shard in source.shards:
        shard.kept = [mark == bool(half) for mark in held[done : done + len(shard.documents)]]
        done += len(shard.documents)
    data = pipeline.ShardDataset(written(tmp_path / "data", shards), memory_map=mapped).split(val=val)[half]
    for shape in ({"lanes": 2, "window": 1}, {"lanes": 5, "window": 3}):
        oracle = Stream(source, Options(seq_len=7, seed=4, **shape))
        assert_follows(data.shuffle(4, **shape).pack(7), oracle, 3, 2)


@pytest.mark.parametrize("ranks", [1, 3, 7, 8])
def test_mixes(tmp_path: Path, ranks: int) -> None:
    names, generator = ("books", "code", "web"), np.random.default_rng(3)
    shards = {
        name: numbered([generator.integers(0, 9, 8).tolist() for _ in range(5 + k)], first=1000 * k + 1)
        for k, name in enumerate(names)
    }
    sources = {name: pipeline.ShardDataset(written(tmp_path / name, shards[name])) for name in names}
    early, late = {"books": 0.5, "code": 0.25, "web": 0.25}, {"books": 0.1, "code": 0.9, "web": 0}
    exact = [(x, {name: Fraction(str(w)) for name, w in weights.items()}) for x, weights in ((0, early), (333, late))]
    for shape in ({}, {"lanes": 3, "window": 2}):
        stream = pipeline.mix(sources, [(0, early), (333, late)]).shuffle(6, **shape).pack(5)
        oracle = Mix({name: source_of(shards[name]) for name in names}, exact, Options(seq_len=5, seed=6, **shape))
        assert_follows(stream, oracle, ranks, 4, number=30)
        assert_follows(stream, oracle, ranks, 3, first=311, number=10)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("ranks", [1, 5])
def test_samples(tmp_path: Path, seed: int | None, ranks: int) -> None:
    shards = numbered([[5, 0, 3], [], [9, 1], [4]])
    oracle = Samples(source_of(shards), Options(seq_len=6, seed=seed, epochs=9))
    data = pipeline.ShardDataset(written(tmp_path / "data", shards), epochs=9)
    assert_follows((data if seed is None else data.shuffle(seed)).sample(6), oracle, ranks, 2)


def test_a_shard_of_the_oracle_is_a_shard() -> None:
    assert Shard([[1]], [0], 2) == memory_shard([[1]], 2)
