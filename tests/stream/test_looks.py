"""Skipping batches, rows as text, and flat names of what was counted."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.helpers.text_samples import jsonl
from tests.stream.streams import KINDS, batched, ids, odd


@pytest.mark.parametrize("kind", [*KINDS, "stage"])
def test_skipped_batches_are_the_next_and_the_state_keeps_that(small: Path, texts: Path, kind: str) -> None:
    def make() -> pipeline.Stream:
        return batched(small).apply(odd).take(5) if kind == "stage" else KINDS[kind](small, texts)

    whole = ids(make())
    stream = make()
    assert ids(islice(stream, 1)) == whole[:1]
    stream.skip(2)
    state = stream.state_dict()
    assert ids(stream) == whole[3:]
    resumed = make()
    resumed.load_state_dict(state)
    assert ids(resumed) == whole[3:]


def test_skipping_ends_with_the_pass(small: Path) -> None:
    stream = batched(small, 1)
    stream.skip(10**9)
    assert ids(stream) == []
    assert ids(stream) == ids(batched(small, 1))
    stream.skip(1)  # of the next pass
    iterator = iter(stream)
    assert next(iterator)["input_ids"].tolist() == ids(batched(small, 1))[1]
    with pytest.raises(StateError, match="iterator of this stream would ignore skip"):
        stream.skip(1)


def test_rows_are_text_with_marks_where_labels_do_not_count() -> None:
    texts = ["the first one", "two", "and three of them"]
    data = pipeline.ShardDataset.from_texts(texts, "bytes")
    joined = "".join(f"{text}</s>" for text in texts)
    for options in ({}, {"shift": 3}, {"labels": "same"}):
        batch = next(iter(data.pack(12, **options).batch(2)))
        rows = data.pack(12, **options).decode(batch)
        assert rows[0] == joined[:12]
    stream = data.pack(20, boundaries=True, shift=2).batch(1)
    assert stream.decode(next(iter(stream))) == ["the first one</s>⟦tw⟧o</s>⟦an⟧"]
    stored = data.pack(20, boundaries=True, shift=2).batch(1, dtype="stored")
    assert stored.decode(next(iter(stored))) == stream.decode(next(iter(stream)))
    documents = data.documents().batch(3)
    assert documents.decode(next(iter(documents))) == [f"{text}</s>" for text in texts]
    masked = data.map_documents(lambda ids, mask: (ids, np.arange(len(ids)) >= 4), same_length=True).documents()
    assert masked.decode(next(iter(masked)))[0] == "t⟦he ⟧first one</s>"
    drawn = data.pack(24, shift="divisors").batch(1)
    assert drawn.decode(next(iter(drawn)))[0] == joined[:30]


def test_an_id_that_the_tokenizer_lacks_is_written_as_its_number() -> None:
    data = pipeline.ShardDataset.from_texts(["to be"], "bytes")
    assert data.vocab_size == 384
    marked = data.map_documents(lambda ids, mask: np.array([384, *ids, 400]), vocab_size=401).documents()
    assert marked.decode(next(iter(marked))) == ["<384>to be</s><400>"]


def test_the_tokenizer_is_that_of_the_data_or_an_error_says_what_to_do(texts: Path) -> None:
    text = pipeline.TextDataset(texts, "bytes").pack(8)
    assert text.tokenizer.name == "bytes"
    with pytest.raises(ConfigError, match=r"load it by pipeline\.load_tokenizer"):
        _ = pipeline.ShardDataset.from_tokens(range(9)).tokenizer


def test_metrics_are_numbers_under_flat_names(small: Path) -> None:
    sources = {name: pipeline.ShardDataset(small) for name in ("web", "wiki")}
    stream = pipeline.mix(sources, {"web": 3, "wiki": 1}).pack(16).batch(2)
    list(islice(stream, 4))
    metrics: dict[str, Any] = stream.metrics()
    assert metrics["data/tokens"] == 4 * 2 * 16
    assert metrics["data/source/web/served"] == stream.stats()["sources"]["web"]["served"]
    assert all(type(value) in (int, float) for value in metrics.values())


def test_a_stream_shows_its_seed(small: Path) -> None:
    assert "seed=1; epochs=1" in repr(batched(small, 1))
    assert "not shuffled; endless" in repr(pipeline.ShardDataset(small).pack(4))


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_the_parent_of_workers_sees_what_they_counted(tmp_path: Path, workers: int) -> None:
    file = jsonl(tmp_path / "texts.jsonl", [f"{n} {'x' * (n % 40)}" for n in range(400)])
    texts = pipeline.TextDataset(file, "bytes").filter(lambda record: len(record.text) % 3 > 0, name="some")
    arrays = {name: pipeline.ShardDataset.from_tokens(range(999), lengths=[9] * 111) for name in ("web", "wiki")}
    mixed = pipeline.mix(arrays, weights={"web": 3, "wiki": 1}).shuffle(seed=1).documents()
    for stream in (texts.shuffle(seed=0).pack(16).batch(2).take(40), mixed.batch(4).take(40)):
        tokens = sum(batch["valid_tokens"] for batch in DataLoader(stream, batch_size=None, num_workers=workers))
        stats = stream.stats()
        assert (stats["items"], stats["tokens"]) == (40, tokens)
        assert "waited_seconds" not in stats
        alone = [batch["valid_tokens"] for batch in stream]
        assert (sum(alone), stream.stats()["items"]) == (tokens, 40)
        for name in ("sources", "sequence_index", "epoch"):
            assert stats.get(name) == stream.stats().get(name)
    assert stats["bytes_read"] > 0


def test_bytes_read_are_those_of_the_rows_and_their_last_labels() -> None:
    stream = pipeline.ShardDataset.from_tokens(np.arange(1, 1001, dtype=np.uint16)).pack(8).batch(4)
    list(islice(stream, 3))
    assert stream.stats()["bytes_read"] == 3 * 4 * (8 + 1) * 2


@pytest.mark.parametrize("workers", [1, 2])
def test_no_item_that_workers_gave_is_missing_in_the_counts(workers: int) -> None:
    stream = pipeline.ShardDataset.from_tokens(range(999)).shuffle(seed=0).pack(8).batch(4)
    batches = iter(DataLoader(stream, batch_size=None, num_workers=workers))
    for number, batch in enumerate(islice(batches, 40), 1):
        stats = stream.stats()
        assert (stats["items"] >= number, stats["tokens"]) == (True, stats["items"] * batch["valid_tokens"])


def test_counts_of_workers_are_those_of_the_latest_pass(tmp_path: Path) -> None:
    stream = pipeline.ShardDataset.from_tokens(range(999), epochs=1).pack(8).batch(4)
    loader = DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True)
    for _ in range(3):
        count = len(list(loader))
        assert stream.stats()["items"] == count == len(stream)


def test_counts_of_workers_hold_whatever_the_number_of_sources() -> None:
    tokens = np.arange(64, dtype=np.uint16)
    sources = {f"source-{number:03d}": pipeline.ShardDataset.from_tokens(tokens) for number in range(600)}
    stream = pipeline.mix(sources, dict.fromkeys(sources, 1)).shuffle(seed=0).pack(8).batch(4).take(10)
    assert sum(len(batch["labels"]) for batch in DataLoader(stream, batch_size=None, num_workers=2)) == 40
    stats = stream.stats()
    assert (stats["items"], stats["tokens"]) == (10, 320)
    assert "sources" not in stats  # too long to be shared
