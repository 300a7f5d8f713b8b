"""len() of a stream is the count of its items on every rank, or an error that says why there is none."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import pipeline
from tests.stream.streams import batched, ids


def layouts(small: Path, epochs: int | None, name: str, lanes: int | None) -> pipeline.Stream:
    source = pipeline.ShardDataset(small, epochs=epochs).shuffle(
        seed=4, **({} if name == "sample" else {"lanes": lanes})
    )
    if name == "documents":
        return source.documents()
    return source.sample(7) if name == "sample" else source.pack(9, stride=4) if name == "stride" else source.pack(9)


@settings(max_examples=40)
@given(
    name=st.sampled_from(["pack", "stride", "documents", "sample"]),
    epochs=st.none() | st.integers(1, 3),
    epoch=st.none() | st.integers(0, 2),
    take=st.none() | st.integers(0, 60),
    batch=st.none() | st.integers(1, 5),
    last=st.sampled_from(["pad", "drop"]),
    take_batches=st.none() | st.integers(0, 9),
    world_size=st.integers(1, 5),
    lanes=st.none() | st.integers(1, 5),
    mapped=st.booleans(),
)
def test_len_is_the_count_of_items_of_every_pass_on_every_rank(
    small: Path,
    name: str,
    epochs: int | None,
    epoch: int | None,
    take: int | None,
    batch: int | None,
    last: str,
    take_batches: int | None,
    world_size: int,
    lanes: int | None,
    mapped: bool,
) -> None:
    for rank in range(world_size):
        stream = layouts(small, epochs, name, lanes).shard(rank, world_size)
        stream = stream.map(dict) if mapped and name != "documents" else stream  # whose rows are not stacked
        stream = stream if take is None else stream.take(take)
        stream = stream if batch is None else stream.batch(batch, last=last)
        stream = stream if batch is None or take_batches is None else stream.take(take_batches)
        if epoch is not None and (epochs in (None, 1) or epoch == 0):
            stream.set_epoch(epoch)
        assert stream  # also where there are no items
        if epochs is None and take is None and (batch is None or take_batches is None):
            with pytest.raises(TypeError, match="endless"):
                len(stream)
            continue
        count = len(stream)
        assert count == len(list(stream))
        if count and not mapped:
            loader = stream.loader()
            assert [len(ids(loader)) for _ in range(2)] == [count] * 2 == [len(loader)] * 2
            stream.load_state_dict(loader.state_dict())
            assert len(stream) == count


def drop_some(items: Iterator[Any]) -> Iterator[Any]:
    yield from islice(items, 0, None, 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d, t: pipeline.ShardDataset(d, epochs=1), r"before \.pack"),
        (lambda d, t: batched(d), "endless"),
        (lambda d, t: batched(d, 1).apply(drop_some), r"\.apply"),
        (lambda d, t: batched(d).apply(drop_some).take(5), r"\.apply"),
        (lambda d, t: pipeline.ShardDataset(d, epochs=1).filter(len).pack(8), "unknown"),
        (lambda d, t: pipeline.ShardDataset(d, epochs=1).pack(8, best_fit=True), "unknown"),
        (lambda d, t: pipeline.TextDataset(t, "bytes", epochs=1).pack(8), "unknown"),
        (lambda d, t: pipeline.TextDataset(t, "bytes").pack(8), "endless"),
    ],
)
def test_an_endless_or_unknown_len_is_an_error_that_says_why(
    small: Path, texts: Path, change: Any, reason: str
) -> None:
    stream = change(small, texts)
    assert bool(stream) is True
    with pytest.raises(TypeError, match=reason):
        len(stream)


def test_a_take_of_an_endless_sequential_stream_or_mix_has_a_len(texts: Path) -> None:
    stream = pipeline.TextDataset(texts, "bytes").shuffle(seed=3, lanes=4).pack(24)
    for rank in range(2):
        for some in (stream.batch(2).take(5), stream.take(11).batch(2, last="drop")):
            assert len(some.shard(rank, 2)) == len(list(some.shard(rank, 2)))
    mixed = pipeline.mix({"a": pipeline.ShardDataset.from_tokens(range(99))}, {"a": 1}).pack(8)
    assert len(mixed.take(7)) == len(list(mixed.take(7))) == 7


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_neither_warns_of_the_len_nor_ends_by_it(small: Path, workers: int) -> None:
    whole = ids(batched(small, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream = batched(small, 1)
        loader = DataLoader(stream, batch_size=None, num_workers=workers)
        assert len(loader) == len(whole)
        assert ids(loader) == whole
        stream.load_state_dict(stream.state_dict(batches=2))
        assert len(loader) == len(whole)
        assert ids(loader) == whole[2:]
        for epoch in (0, 1, 4):
            stream.set_epoch(epoch)
            assert len(loader) == len(stream) == len(ids(loader))
