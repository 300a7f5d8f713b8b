"""A trace says what a step is made of: its documents' tokens are those of the batch, for every layout, rank and pass."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.progress import Progress
from pipeline.stream.sequential.token_numbers import TokenNumbers
from pipeline.stream.windows.window import Window
from tests.helpers.shard_samples import EOS
from tests.helpers.text_samples import make_texts
from tests.stream.order_samples import numbered, written
from tests.stream.streams import odd

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
                assert_is(rows := own.trace(step, rank, with_ids=True), batches[step])
                assert [(row["rank"], row["row"]) for row in rows] == [(rank, number) for number in range(len(rows))]
    if passes == 1 and len(batches) > (step := steps[0]):
        found = sorted(row["sequence_index"] for row in own.trace(step))
        assert found == [*range(step * ranks * size, step * ranks * size + len(found))]


def assert_is(rows: list[dict[str, Any]], batch: Any, pad: int = EOS) -> None:
    """Hold the rows of a trace to a batch: the same tokens, without gaps, and padding after them; the documents' numbers."""
    found, numbers = batch["input_ids"].tolist(), batch["document_ids"].tolist() if "document_ids" in batch else None
    assert len(rows) <= len(found)
    for row, ids in zip(rows, found, strict=False):
        spans = row["documents"]
        assert [span["row_begin"] for span in spans] == [0, *(span["row_end"] for span in spans)][: len(spans)]
        tokens = list(chain.from_iterable(span["ids"] for span in spans))
        assert tokens + [pad] * (len(ids) - len(tokens)) == ids
        assert all(span["document_end"] - span["document_begin"] == len(span["ids"]) for span in spans)
        assert all(span["ids"] for span in spans) or not tokens
        if numbers is not None:
            own = chain.from_iterable([number] * len(span["ids"]) for number, span in enumerate(spans))
            assert numbers.pop(0) == [*own] + [-1] * (len(ids) - len(tokens))
    assert all({*row} == {pad} for row in found[len(rows) :])
    assert all({*row} == {-1} for row in numbers or ())


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
        stride, options = (
            draw(st.none() | st.integers(1, seq_len)),
            {"document_ids": True, "boundaries": draw(st.booleans())},
        )
        stream = stream.pack(seq_len, stride=stride, shift=draw(st.integers(1, 2)), **options)
    elif kind == "sample":
        stream = stream.sample(draw(st.integers(1, 24)), document_ids=True)
    else:
        bucket = draw(st.none() | st.integers(1, 3))
        stream = stream.documents(draw(st.none() | st.integers(1, 20)), bucket=bucket, document_ids=True)
    passes = draw(st.integers(1, 3)) if epochs == 1 else 1
    assert_traces(stream, draw(st.integers(1, 3)), draw(st.integers(1, 3)), [0, 1, draw(st.integers(2, 30))], passes)


def test_a_step_after_the_end_is_refused_and_after_an_epoch_is_not(dataset: Path) -> None:
    twice = pipeline.ShardDataset(dataset, epochs=2).pack(16).batch(2)
    with pytest.raises(pipeline.ConfigError, match=f"step 99 .* {len(twice)} steps"):
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


def test_rows_that_are_not_batched_are_counted_over_the_ranks(dataset: Path, texts: list[Path]) -> None:
    for source in (pipeline.ShardDataset(dataset), of_texts(texts)):
        rows = source.shuffle(seed=0).pack(16).shard(0, 2).trace(3)
        assert [(row["rank"], row["sequence_index"]) for row in rows] == [(0, 6), (1, 7)]


@pytest.mark.parametrize("kind", ["shards", "texts"])
def test_a_trace_leaves_the_stream_where_it_stands(dataset: Path, texts: list[Path], kind: str) -> None:
    data: Any = pipeline.ShardDataset(dataset) if kind == "shards" else of_texts(texts)
    stream = data.shuffle(seed=1).pack(6).batch(2)
    iterator = iter(stream)
    next(iterator)
    state = stream.state_dict()
    assert "ids" not in stream.trace(7)[0]["documents"][0]
    assert stream.state_dict() == state
    assert next(iterator)["input_ids"].shape == (2, 6)


# Of a sequential stream, whose steps are found by reading on from a state


FULL = [[5, 1, 17, 9, 1], [30, 2, 2], [], [8, 8, 8, 3, 4, 41, 3]]
DOCUMENTS = list(chain.from_iterable(numbered(FULL)))  # by their keys
TEXTS = [make_texts(count, seed) for seed, count in enumerate((30, 1, 20))]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset without documents of no tokens."""
    return written(tmp_path_factory.mktemp("full") / "set", numbered(FULL), extent_bytes=64)[0]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("texts")
    for number, own in enumerate(TEXTS):
        lines = [json.dumps({"text": text, "id": f"{number}-{at}"}) for at, text in enumerate(own)]
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return sorted(folder.glob("*.jsonl"))


def is_long(document: Any) -> bool:
    return len(getattr(document, "text", document)) > 4


def doubled(ids: Any, mask: Any) -> Any:
    return [*ids, *ids]


def of_shards(dataset: Path) -> Any:
    return pipeline.ShardDataset(dataset).filter(is_long, name="long")


def of_texts(texts: list[Path]) -> Any:
    return pipeline.TextDataset([str(path) for path in texts], tokenizer="bytes").filter(is_long, name="long")


def assert_origins(rows: list[dict[str, Any]], dataset: pipeline.Stream) -> None:
    """Hold each span to the document that its origin names."""
    for span in chain.from_iterable(row["documents"] for row in rows):
        origin, own = span["origin"], slice(span["document_begin"], span["document_end"])
        if "shard" in origin:
            document = DOCUMENTS[int(origin["key"])]
            assert (document[own], len(document)) == (span["ids"], span["document_tokens"])
        if "file" in origin and "shard" not in origin:
            number, at = map(int, origin["id"].split("-"))
            assert Path(origin["file"]).stem == str(number)
            ids = [*dataset.tokenizer.encode(TEXTS[number][at]), dataset.tokenizer.eos_id]
            assert (ids[own], len(ids)) == (span["ids"], span["document_tokens"])


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_the_documents_of_a_step_that_is_read_are_those_of_its_rows(
    full: Path, texts: list[Path], data: st.DataObject
) -> None:
    draw = data.draw
    kind = draw(st.sampled_from(["shards", "texts", "best fit", "mix"]))
    stream: Any
    if kind == "texts":
        stream = of_texts(texts)
    elif kind == "mix":
        bare = pipeline.TextDataset([str(path) for path in texts], tokenizer="bytes")
        stream = pipeline.mix({"a": bare, "b": of_one(texts)}, weights={"a": 2, "b": 1})
    else:
        stream = pipeline.ShardDataset(full) if kind == "best fit" else of_shards(full)
    is_mapped = draw(st.booleans())
    if is_mapped:
        stream = stream.map_documents(doubled, name="doubled")
    if (seed := draw(st.none() | st.integers(0, 3))) is not None:
        stream = stream.shuffle(seed=seed)
    pad = stream._settings.sources.eos_id
    seq_len = draw(st.integers(2, 24))
    if kind == "best fit" or draw(st.booleans()):
        stream = stream.pack(seq_len, best_fit=True, document_ids=True)
    elif draw(st.booleans()):
        stride, shift = draw(st.none() | st.integers(1, seq_len)), draw(st.integers(1, 2))
        stream = stream.pack(seq_len, stride=stride, shift=shift, document_ids=True)
    else:
        stream = stream.documents(draw(st.none() | st.integers(1, 20)), document_ids=True)
    ranks, size = 1 if seed is None else draw(st.integers(1, 3)), draw(st.integers(1, 3))
    before, step = draw(st.integers(0, 4)), draw(st.integers(0, 12))
    whole: list[Any] = []
    for rank in range(ranks):
        own = stream.shard(rank, ranks).batch(size)
        batches = list(islice(own, before + step + 1))
        rows = own.trace(before + step, rank, with_ids=True)
        assert_is(rows, batches[-1], pad)
        begin = (before + step) * ranks * size + rank * size
        assert [(row["rank"], row["row"], row["sequence_index"]) for row in rows] == [
            (rank, number, begin + number) for number in range(len(rows))
        ]
        if not is_mapped:
            assert_origins(rows, own)
        iterator = iter(resumed := stream.shard(rank, ranks).batch(size))
        list(islice(iterator, before))
        state = resumed.state_dict()
        again = stream.shard(rank, ranks).batch(size)
        again.load_state_dict(state)
        assert again.trace(before + step, rank, with_ids=True) == rows
        assert next(iter(again))["input_ids"].tolist() == batches[before]["input_ids"].tolist()
        whole += rows
    assert stream.shard(0, ranks).batch(size).trace(before + step, with_ids=True) == whole


def of_one(texts: list[Path]) -> pipeline.Stream:
    return pipeline.TextDataset(str(texts[1]), tokenizer="bytes")


def test_a_row_names_its_source_and_its_documents_their_shards(full: Path) -> None:
    sources = {name: pipeline.ShardDataset(full) for name in "ab"}
    stream = pipeline.mix(sources, weights={"a": 1, "b": 1}).shuffle(seed=1).pack(8, best_fit=True).batch(4)
    rows = stream.trace(3, with_ids=True)
    assert {row["source"] for row in rows} == {"a", "b"}
    assert_origins(rows, stream)
    filtered = of_shards(full).shuffle(seed=1).pack(16).batch(4)
    assert_origins(filtered.trace(2, with_ids=True), filtered)
    assert all(span["origin"]["shard"].startswith("train-") for row in rows for span in row["documents"])


def test_a_window_is_forgotten_a_step_after_the_last_lane_dropped_it() -> None:
    numbering, ids = TokenNumbers(), np.arange(3, dtype="<u2")
    kept = weakref.ref(ids)
    window = numbering.numbered("", Window(ids, np.array([0, 3]), origins=["a"]))
    numbering.watch(window, window)
    del ids
    numbering.begin_step()
    assert [span.origin for span in numbering.spans(window.tokens)] == ["a"]
    numbers = window.tokens.copy()
    del window
    assert [span.origin for span in numbering.spans(numbers)] == ["a"]  # of rows that were read in this step
    numbering.begin_step()
    assert kept() is None


def test_progress_is_told_in_steps_that_are_read_of_all_ranks(texts: list[Path]) -> None:
    told: list[tuple[int, int]] = []

    class Told(Progress):
        @contextmanager
        def bar(self, name: str, total: int, unit: str = "units") -> Iterator[Callable[[int], None]]:
            assert unit == "steps"
            yield lambda amount: told.append((len(told) + amount, total))

    of_texts(texts).shuffle(seed=0).pack(16).shard(0, 2).batch(2).trace(2, progress=Told())
    assert told == [(1, 6), (2, 6), (3, 6), (4, 6), (5, 6), (6, 6)]
    told.clear()
    of_texts(texts).shuffle(seed=0).pack(16).shard(0, 2).batch(2).seen("x", steps=2, progress=Told())
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_step_before_the_state_or_after_the_end_is_refused(texts: list[Path]) -> None:
    stream = of_texts(texts).pack(16).batch(2)
    iterator = iter(stream)
    list(islice(iterator, 3))
    later = of_texts(texts).pack(16).batch(2)
    later.load_state_dict(stream.state_dict())
    with pytest.raises(pipeline.ConfigError, match=r"step 2 .* step 3: load a state"):
        later.trace(2)
    bounded = pipeline.TextDataset([str(path) for path in texts], tokenizer="bytes", epochs=1).pack(64).batch(8)
    count = len(list(bounded))
    assert_is(bounded.trace(count - 1, with_ids=True), list(bounded)[-1], bounded._settings.sources.eos_id)
    with pytest.raises(pipeline.ConfigError, match=f"step {count} is after the end"):
        bounded.trace(count)
    with pytest.raises(pipeline.ConfigError, match=r"step 5 .* 5 steps"):
        of_texts(texts).pack(16).batch(2).take(5).trace(5)
    assert len(of_texts(texts).pack(16).take(7).batch(2).trace(3)) == 1
    inside = of_texts(texts).pack(16).apply(odd).batch(4)
    state = next(state for _ in inside if (state := inside.state_dict())["rank_0"]["0.odd"]["step"])
    (plain := of_texts(texts).pack(16).batch(4)).load_state_dict(state)
    rows = plain._position.current.rows_taken
    with pytest.raises(pipeline.ConfigError, match=f"after {rows} rows of it; load a state"):
        plain.trace(9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda texts: pipeline.TextDataset(lambda: iter([{"text": "a"}]), tokenizer="bytes").pack(4), "a live source"),
        (lambda texts: of_texts(texts).pack(4).apply(iter), "may drop items"),
        (
            lambda texts: pipeline.ShardDataset.from_tokens(range(64), lengths=[32, 32]).pack(4).apply(iter),
            "may drop items",
        ),
    ],
)
def test_what_cannot_be_read_again_is_refused(
    texts: list[Path], make: Callable[[list[Path]], Any], message: str
) -> None:
    with pytest.raises(pipeline.ConfigError, match=message):
        make(texts).trace(0)
