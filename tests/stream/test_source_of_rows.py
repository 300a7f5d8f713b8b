"""``source=True``: a batch of a mix says which source gave each of its rows, in every layout, on any ranks, after any stop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError
from tests.helpers.shard_samples import write_named
from tests.helpers.text_samples import write_sources

LENGTHS = [3, 9, 5, 7, 2, 11] * 40
FIRST = {"web": 1, "code": 10_000, "wiki": 20_000}  # a token tells its source, which are numbered by their names
NUMBERS = {"code": 0, "web": 1, "wiki": 2}
WEIGHTS = {"web": 5, "code": 2, "wiki": 1}

Chain = Callable[[pipeline.Stream], pipeline.Stream]
LAYOUTS: dict[str, Chain] = {
    "packed": lambda mix: mix.pack(8, source=True),
    "of drawn shifts": lambda mix: mix.pack(8, shift="divisors", source=True),
    "with boundaries": lambda mix: mix.pack(8, boundaries=True, source=True),
    "best fit": lambda mix: mix.pack(16, best_fit=True, source=True),
    "samples": lambda mix: mix.sample(8, source=True),
    "documents": lambda mix: mix.documents(8, pad_to_multiple_of=8, source=True),
    "buckets": lambda mix: mix.documents(8, pad_to_multiple_of=8, bucket=4, source=True),
    "filtered": lambda mix: mix.filter(lambda ids: len(ids) > 2, name="long").documents(8, source=True),
    "mapped": lambda mix: mix.map_documents(lambda ids, mask: ids[1:], name="later").pack(8, source=True),
}


def mixed() -> pipeline.Stream:
    def source(first: int) -> Any:
        tokens = np.arange(first, first + sum(LENGTHS), dtype=np.uint16)
        return pipeline.ShardDataset.from_tokens(tokens, lengths=LENGTHS, eos_id=0)

    return pipeline.mix({name: source(first) for name, first in FIRST.items()}, WEIGHTS).shuffle(seed=4)


def assert_sources_of_rows(batches: Iterable[dict[str, Any]]) -> list[int]:
    """Assert that each row names its source; return the numbers."""
    found: list[int] = []
    for batch in batches:
        first_tokens = batch["input_ids"].reshape(len(batch["input_ids"]), -1)[:, 0].tolist()
        begun = [[name for name in FIRST if FIRST[name] <= token] for token in first_tokens]
        expected = [NUMBERS[max(names, key=FIRST.__getitem__)] for names in begun]
        assert batch["source"].dtype == torch.int64
        assert batch["source"].tolist() == expected
        found += expected
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_row_of_a_mix_names_its_source_in_every_layout(name: str) -> None:
    def stream_of(size: int) -> pipeline.Stream:
        return LAYOUTS[name](mixed()).batch(size)

    assert stream_of(1).source_names == ("code", "web", "wiki")
    whole = assert_sources_of_rows(islice(stream_of(12), 12))
    assert {*whole} == {0, 1, 2}
    parts = [assert_sources_of_rows(islice(stream_of(6).shard(rank, 2), 12)) for rank in range(2)]
    assert sorted(parts[0] + parts[1]) == sorted(whole)
    stopped, other = stream_of(12), stream_of(12)
    begun = assert_sources_of_rows(islice(stopped, 5))
    other.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert begun + assert_sources_of_rows(islice(other, 7)) == whole


def test_rows_before_batches_and_of_workers_name_their_sources() -> None:
    stream = mixed().pack(8, source=True)
    by_hand = [torch.utils.data.default_collate(list(islice(stream, 6)))]
    mapped = islice(stream.map(lambda row: {**row, "twice": 2 * row["source"]}).batch(6), 4)
    workers = islice(DataLoader(stream.batch(6), batch_size=None, num_workers=2), 4)
    assert assert_sources_of_rows(by_hand) == assert_sources_of_rows(mapped)[:6] == assert_sources_of_rows(workers)[:6]
    batch = next(iter(stream.numpy().batch(6)))
    assert (batch["source"].dtype, batch["source"].shape) == (np.int64, (6,))


def test_rows_of_texts_in_a_mix_name_their_sources(tmp_path: Path) -> None:
    folder = write_sources(tmp_path, {"text": 60, "other": 40})
    lines = {name: (folder / f"{name}.jsonl").read_text().splitlines() for name in ("text", "other")}
    texts = {name: [json.loads(line)["text"] for line in some] for name, some in lines.items()}
    others = pipeline.ShardDataset.from_texts(texts["other"], "bytes")
    sources = {"text": pipeline.TextDataset(folder / "text.jsonl", "bytes"), "other": others}
    stream = pipeline.mix(sources, {"text": 2, "other": 1}).shuffle(seed=0, lanes=8).documents(source=True)
    tokenizer = stream.tokenizer
    for row in islice(stream, 40):
        text = tokenizer.decode(row["input_ids"].tolist()[:-1])
        assert text in texts[stream.source_names[row["source"]]]


def test_rows_that_fill_the_last_batch_have_the_number_zero() -> None:
    *_, last = mixed().pack(8, source=True).take(10).batch(4)
    assert (last["labels"][2:] == -100).all()
    assert last["source"][2:].tolist() == [0, 0]
    assert_sources_of_rows([{key: last[key][:2] for key in ("input_ids", "source")}])


def test_sources_are_given_only_where_they_are_asked_for() -> None:
    assert "source" not in next(iter(mixed().pack(8).batch(2)))
    asked = mixed().pack(8, source=True)
    for rows in (asked.rows(keys="hf"), asked.batch(2).loader(keys="hf")):
        assert next(iter(rows)).keys() == {"input_ids", "labels"}
    assert pipeline.ShardDataset.from_tokens(range(9)).source_names == ()


# Sources within a dataset


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two named sources in three shards; an odd token is from the second."""
    lengths = np.random.default_rng(0).integers(0, 9, 120).tolist()
    shards: list[tuple[str, list[Any]]] = []
    for number, name in enumerate(("web", "code", "web")):
        begin = 2 * sum(lengths) * number + 2 + (name == "code")
        ends = np.cumsum([0, *lengths]) * 2 + begin
        shards.append((name, [np.arange(*pair, 2).astype("<u2") for pair in pairwise(ends)]))
    return write_named(tmp_path_factory.mktemp("named") / "data", shards, extent_bytes=4096)


ALIKE = {"same_length": True, "name": "alike"}
WITHIN: dict[str, Chain] = {
    "packed": lambda data: data.pack(12, boundaries=True, source=True).batch(6),
    "of drawn shifts": lambda data: data.pack(12, shift="divisors", boundaries=True, source=True).batch(6),
    "mapped": lambda data: (
        data.map_documents(lambda ids, mask: ids, **ALIKE).pack(12, boundaries=True, source=True).batch(6)
    ),
    "padded": lambda data: data.pack(12, boundaries=True, source=True, pad_to_multiple_of=4).batch(6),
    "cut": lambda data: data.pack(12, boundaries=True, source=True).batch(3, cut=6),
    "joined later": lambda data: data.pack(12, boundaries=True, source=True).map(dict).batch(6),
}


@pytest.mark.parametrize("name", WITHIN)
def test_each_document_within_a_row_names_its_source(named: Path, name: str) -> None:
    def stream_of(epochs: int | None = 1) -> pipeline.Stream:
        return WITHIN[name](pipeline.ShardDataset(named, epochs=epochs).shuffle(seed=1, lanes=3, window=2))

    assert stream_of().source_names == ("web", "code")
    for batches in (stream_of(), stream_of().shard(1, 2), islice(stream_of(None), 60)):
        for batch in batches:
            begins, ids = batch["cu_seqlens"].tolist(), batch["input_ids"].reshape(-1)
            assert batch["source_ids"].dtype == torch.int64
            assert len(batch["source_ids"]) == len(begins) - 1
            for begin, end, number in zip(begins, begins[1:], batch["source_ids"].tolist(), strict=False):
                own = {int(token) % 2 for token in ids[begin:end] if token}  # 0 fills
                assert own <= {number}


def test_whole_documents_and_samples_of_a_dataset_name_their_sources(named: Path) -> None:
    data = pipeline.ShardDataset(named, epochs=1).shuffle(seed=1)
    rows = list(data.documents(source=True, bucket=4))
    assert {int(row["source"]) for row in rows} == {0, 1}
    assert all(int(row["input_ids"][0]) % 2 == row["source"] for row in rows if row["input_ids"][0])
    for row in pipeline.ShardDataset(named, epochs=1).shuffle(seed=1).sample(10, boundaries=True, source=True):
        found = row["source_ids"].repeat_interleave(row["cu_seqlens"].diff())
        assert found.tolist() == [int(token) % 2 for token in row["input_ids"]]


def test_what_cannot_name_the_sources_within_a_dataset_says_what_can(named: Path) -> None:
    data = pipeline.ShardDataset(named)
    with pytest.raises(ConfigError, match=r"several sources; add boundaries=True"):
        data.pack(8, source=True)
    for stream in (data.pack(8, boundaries=True, source=True, best_fit=True), data.filter(len).documents(source=True)):
        with pytest.raises(ConfigError, match=r"remove the filter.*or mix the sources"):
            next(iter(stream))


@pytest.mark.parametrize("method", ["pack", "sample", "documents"])
def test_a_stream_of_one_source_refuses_to_number_it(method: str, tmp_path: Path) -> None:
    named = pipeline.ShardDataset(write_named(tmp_path / "one", [("web", [np.arange(9, dtype="<u2")])]))
    for stream in (named, pipeline.ShardDataset.from_tokens(range(64), lengths=[8] * 8)):
        assert stream.source_names == ()
        with pytest.raises(ConfigError, match=r"remove it, or name several"):
            getattr(stream, method)(8, source=True)
    with pytest.raises(ConfigError, match=r"source must be .*True or False.*'yes'"):
        getattr(mixed(), method)(8, source="yes")
