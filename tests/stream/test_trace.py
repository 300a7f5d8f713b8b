"""A trace says what a step is made of: its documents' tokens are those of the batch, for every layout, rank and pass."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from tests.helpers.shard_samples import EOS
from tests.stream.order_samples import numbered, written

SIZES = [[5, 0, 17, 9, 1], [30, 2, 2], [], [8, 8, 8, 0, 0, 41, 3]]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("trace") / "set", numbered(SIZES), extent_bytes=64)[0]


def assert_traces(stream: pipeline.Stream, ranks: int, size: int, steps: list[int], passes: int = 1) -> None:
    """Hold the trace of steps to what the ranks iterate."""
    for rank in range(ranks):
        own = stream.shard(rank, ranks).batch(size)
        batches: list[Any] = []
        for number in range(passes):
            if passes > 1:
                own.set_epoch(number)
            batches += islice(own, max(steps) + 1)
        for step in steps:
            if step < len(batches):
                assert_is(own.trace(step, rank, with_ids=True), batches[step])


def assert_is(rows: list[dict[str, Any]], batch: dict[str, Any]) -> None:
    ids = batch["input_ids"].tolist()
    for row, found in zip(rows, ids, strict=False):
        spans = row["documents"]
        assert [span["row_begin"] for span in spans[1:]] == [span["row_end"] for span in spans[:-1]]
        tokens = list(chain.from_iterable(span["ids"] for span in spans))
        assert [*tokens, *[EOS] * (len(found) - len(tokens))] == found
        assert all(
            span["document_end"] - span["document_begin"] == len(span["ids"]) > 0 or len(tokens) == 0 for span in spans
        )
    assert all(set(row) == {EOS} for row in ids[len(rows) :])


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_documents_of_a_step_are_those_of_its_rows(dataset: Path, data: st.DataObject) -> None:
    draw = data.draw
    epochs = draw(st.none() | st.integers(1, 2))
    stream: Any = pipeline.ShardDataset(dataset, epochs=epochs)
    kind = draw(st.sampled_from(["pack", "documents", "sample"]))
    seed = draw(st.none() | st.integers(0, 3))
    if seed is not None:
        options = (
            {}
            if kind == "sample"
            else {"window": draw(st.none() | st.integers(1, 3)), "lanes": draw(st.integers(1, 5))}
        )
        stream = stream.shuffle(seed=seed, **options)
    if kind == "pack":
        seq_len = draw(st.integers(1, 24))
        stream = stream.pack(seq_len, stride=draw(st.none() | st.integers(1, seq_len)), shift=draw(st.integers(1, 2)))
    elif kind == "sample":
        stream = stream.sample(draw(st.integers(1, 24)))
    else:
        stream = stream.documents(draw(st.none() | st.integers(1, 20)), bucket=draw(st.none() | st.integers(1, 3)))
    passes = draw(st.integers(1, 3)) if epochs == 1 else 1
    assert_traces(stream, draw(st.integers(1, 3)), draw(st.integers(1, 3)), [0, 1, draw(st.integers(2, 30))], passes)


def test_a_step_behind_the_end_is_refused_and_one_behind_an_epoch_is_of_the_next(dataset: Path) -> None:
    twice = pipeline.ShardDataset(dataset, epochs=2).pack(16).batch(2)
    with pytest.raises(pipeline.ConfigError, match=f"step 99 is after the end: the stream has {len(twice)} steps"):
        twice.trace(99)
    once = pipeline.ShardDataset(dataset, epochs=1).pack(16).batch(2)
    before = 0
    for epoch in range(3):
        once.set_epoch(epoch)
        before += len(list(once))
    once.set_epoch(3)
    assert_is(once.trace(before, with_ids=True), next(iter(once)))


def test_a_mix_is_traced_to_its_sources_under_weights_that_changed(tmp_path: Path) -> None:
    first, _ = written(tmp_path / "a", numbered(SIZES), extent_bytes=64)
    second, _ = written(tmp_path / "b", numbered(SIZES, first=1000), extent_bytes=64)
    sources = {"a": pipeline.ShardDataset(first), "b": pipeline.ShardDataset(second)}
    stream = pipeline.mix(sources, weights={"a": 3, "b": 1}).shuffle(seed=5).pack(7).batch(4)
    batches = list(islice(stream, 10))
    stream.set_weights({"a": 1, "b": 1})
    batches += islice(stream, 30)
    for step in (0, 9, 10, 39):
        rows = stream.trace(step, with_ids=True)
        assert_is(rows, batches[step])
        assert all((row["source"] == "b") == (row["documents"][0]["ids"][0] >= 1000) for row in rows)


@pytest.mark.parametrize(
    "layout", [lambda mix: mix.documents(11), lambda mix: mix.documents(bucket=3), lambda mix: mix.sample(9)]
)
def test_a_mix_of_documents_and_of_samples_is_traced_too(tmp_path: Path, layout: Any) -> None:
    first, _ = written(tmp_path / "a", numbered(SIZES), extent_bytes=64)
    second, _ = written(tmp_path / "b", numbered(SIZES, first=1000), extent_bytes=64)
    sources = {"a": pipeline.ShardDataset(first), "b": pipeline.ShardDataset(second)}
    stream = layout(pipeline.mix(sources, weights={"a": 3, "b": 1}).shuffle(seed=5)).batch(4)
    for step, batch in enumerate(islice(stream, 12)):
        assert_is(stream.trace(step, with_ids=True), batch)


def test_an_origin_names_the_shard_the_key_and_the_id_of_a_document(dataset: Path) -> None:
    stream = pipeline.ShardDataset(dataset).shuffle(seed=1).documents().batch(8)
    manifest = pipeline.Manifest.read(dataset)
    for row in stream.trace(1, with_ids=True):
        [span] = row["documents"]
        origin = span["origin"]
        info = next(info for info in manifest.shards if info.name == origin["shard"])
        before = sum(other.documents for other in manifest.shards[: manifest.shards.index(info)])
        assert origin["key"] == f"{before + origin['document']:012d}"
        assert span["document_tokens"] == len(span["ids"]) == SIZES[manifest.shards.index(info)][origin["document"]]


def test_a_trace_needs_no_tokens_and_leaves_the_stream_where_it_stands(dataset: Path) -> None:
    stream = pipeline.ShardDataset(dataset).shuffle(seed=1).pack(6).batch(2)
    iterator = iter(stream)
    next(iterator)
    state = stream.state_dict()
    assert "ids" not in stream.trace(7)[0]["documents"][0]
    assert stream.state_dict() == state
    assert next(iterator)["input_ids"].shape == (2, 6)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (lambda data: data.pack(4).apply(iter), "may drop items"),
    ],
)
def test_what_only_reading_tells_is_refused(stream: Any, message: str) -> None:
    data = pipeline.ShardDataset.from_tokens(range(64), lengths=[32, 32])
    with pytest.raises(pipeline.ConfigError, match=message):
        stream(data).trace(0)
