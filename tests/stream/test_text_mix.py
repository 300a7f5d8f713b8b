"""A mix of texts: its rows by the letter of the definition, exact shares, and the same rows on any ranks after any stop."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.helpers.text_samples import jsonl, write_sources
from tests.helpers.tokenizer_samples import train
from tests.stream.order_oracle import key
from tests.stream.order_oracle_mixes import PERIOD, served
from tests.stream.sequential_oracle import Case, sequences_of

COUNTS = {"web": 200, "wiki": 60, "tiny": 5}
WEIGHTS = {"web": 0.6, "wiki": 0.3, "tiny": 0.1}
SEQ_LEN, LANES, ROWS = 24, 12, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sources(tmp_path_factory.mktemp("texts"), COUNTS)


def bare(folder: Path, weights: Any = None) -> pipeline.Stream:
    sources = {name: pipeline.TextDataset(folder / f"{name}.jsonl", "bytes") for name in COUNTS}
    return pipeline.mix(sources, weights or WEIGHTS)


def mixed(folder: Path, ranks: int = 1, seed: int = 3, weights: Any = None) -> pipeline.Stream:
    return bare(folder, weights).shuffle(seed=seed, lanes=LANES).pack(SEQ_LEN).batch(ROWS // ranks)


def padded(ids: Any) -> Any:
    return torch.nn.functional.pad(ids, (0, SEQ_LEN - len(ids)))


def rows(batches: Any) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in batches]


def on_ranks(streams: list[pipeline.Stream], count: int) -> list[list[list[int]]]:
    """Return global batches: the rows of all ranks, rank after rank."""
    parts = [rows(islice(stream, count)) for stream in streams]
    return [[row for batch in step for row in batch] for step in zip(*parts, strict=True)]


def sources_of(batches: list[list[list[int]]], folder: Path) -> dict[str, int]:
    """Return how many rows each source gave; texts of source ``n`` begin with ``n.``, and "bytes" adds 3 to each byte."""
    counts = dict.fromkeys(COUNTS, 0)
    for row in (row for batch in batches for row in batch):
        text = bytes(max(0, token - 3) for token in row).decode(errors="replace")
        found = {name for seed, name in enumerate(COUNTS) if f"\0{seed}." in text}
        assert len(found) <= 1
        for name in found:
            counts[name] += 1
    return counts


@settings(max_examples=6, deadline=None)
@given(
    st.integers(0, 9),
    st.lists(st.integers(1, 5), min_size=3, max_size=3),
    st.sampled_from(["pack", "documents", "best_fit"]),
)
def test_a_mix_of_texts_is_its_plain_definition(folder: Path, seed: int, weights: list[int], kind: str) -> None:
    stated = dict(zip(COUNTS, weights, strict=True))
    exact = {name: Fraction(weight, sum(weights)) for name, weight in stated.items()}
    sequences: dict[tuple[str, int], Any] = {}
    for name in COUNTS:
        texts = [json.loads(line)["text"] for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for lane in range(LANES):
            alone = len(texts) < LANES
            case = Case(
                corpus=[("jsonl", texts)], seed=key("text source", seed, name, *([lane] if alone else [])),
                lanes_a_row=1 if alone else LANES // ROWS, window=None, eos=True, modulus=0, kind=kind,
                seq_len=SEQ_LEN, stride=SEQ_LEN, shift=1, rows=1 if alone else ROWS, epochs=None, take=None, last="pad",
                files=[folder / f"{name}.jsonl"], of_mix=(seed, lane),
            )  # fmt: skip
            sequences[name, lane] = sequences_of(case, 0 if alone else lane)
    drawn = [served(list(COUNTS), {0: exact}, seed, lane) for lane in range(LANES)]
    expected = [next(sequences[next(drawn[i % LANES])[0], i % LANES])[0] for i in range(20 * ROWS)]
    stream = bare(folder, stated).shuffle(seed=seed, lanes=LANES)
    stream = stream.documents() if kind == "documents" else stream.pack(SEQ_LEN, best_fit=kind == "best_fit")
    found = [row for batch in islice(stream.batch(ROWS), 20) for row in batch["input_ids"].tolist()]
    padding = 0 if kind == "pack" else 1  # the id that ends documents fills rows
    assert [row[: len(own)] for row, own in zip(found, expected, strict=True)] == expected
    assert all(set(row[len(own) :]) <= {padding} for row, own in zip(found, expected, strict=True))


@pytest.mark.parametrize("kind", ["pack", "documents", "best_fit"])
def test_a_mix_goes_on_with_the_same_rows_on_any_ranks(folder: Path, kind: str) -> None:
    def mixed(folder: Path, ranks: int = 1) -> pipeline.Stream:
        stream = bare(folder).shuffle(seed=3, lanes=LANES)
        stream = stream.documents(SEQ_LEN) if kind == "documents" else stream.pack(SEQ_LEN, best_fit=kind == "best_fit")
        return stream.map(lambda row: {"input_ids": padded(row["input_ids"])}).batch(ROWS // ranks)

    whole = rows(islice(mixed(folder), 30))
    states: list[dict[str, Any]] = []
    at = 0
    for ranks, steps in ((2, 4), (3, 5), (1, 6), (6, 3), (2, 12)):
        streams = [mixed(folder, ranks).shard(rank, ranks) for rank in range(ranks)]
        for stream in streams:
            if states:
                stream.load_state_dict(pipeline.merge_states(states))
        assert on_ranks(streams, steps) == whole[at : at + steps]
        at += steps
        states = [json.loads(json.dumps(stream.state_dict())) for stream in streams]
    assert at == 30


def test_each_source_serves_its_share_of_a_period_and_each_document_as_often_as_its_epochs(tmp_path: Path) -> None:
    for name, count in (("one", 40), ("two", 30)):
        jsonl(tmp_path / f"{name}.jsonl", [f"{name[0]}{n:02}" for n in range(count)])
    sources = {name: pipeline.TextDataset(tmp_path / f"{name}.jsonl", "bytes") for name in ("one", "two")}
    stream = pipeline.mix(sources, {"one": 3, "two": 1}).shuffle(seed=1, lanes=2).pack(4).batch(2)  # a document a row
    found = torch.cat([batch["input_ids"] for batch in islice(stream, PERIOD)])[:, :3] - 3
    texts = ["".join(map(chr, row)) for row in found.tolist()]
    stats = stream.stats()["sources"]
    for name, count, share in (("one", 40, 3 / 4), ("two", 30, 1 / 4)):
        own = [text for text in texts if text[0] == name[0]]
        assert len(own) == stats[name]["sequences"] == 2 * PERIOD * share
        assert stats[name] == {
            "sequences": len(own), "asked": share, "served": share, "tokens": 4 * len(own), "epoch": stats[name]["epoch"],
        }  # fmt: skip
        times = np.unique_counts(own).counts
        assert len(times) == count
        assert times.max() - times.min() <= 4  # the two lanes may be in neighbouring epochs
        assert abs(stats[name]["epoch"] - len(own) / count) <= 4


def test_weights_change_by_a_schedule_and_by_set_weights_and_a_state_keeps_the_change(folder: Path) -> None:
    first, second = {"web": 1, "wiki": 0, "tiny": 0}, {"web": 0, "wiki": 1, "tiny": 0}
    stream = mixed(folder, weights=[(0, first), (10 * LANES, second)])
    found = rows(islice(stream, 40))
    assert sources_of(found[:20], folder)["wiki"] == sources_of(found[20:], folder)["web"] == 0
    stream.set_weights({"web": 0, "wiki": 0, "tiny": 1})
    whole = rows(islice(stream, 8))
    assert sources_of(whole, folder) == {"web": 0, "wiki": 0, "tiny": sources_of(whole, folder)["tiny"]}
    again = mixed(folder, weights=[(0, first), (10 * LANES, second)])
    _ = list(islice(stream, 5))
    again.load_state_dict(stream.state_dict())
    assert rows(islice(again, 3)) == whole[5:]
    assert again.stats()["sources"]["tiny"]["asked"] == 1


def test_workers_make_the_batches_of_a_mix(folder: Path) -> None:
    whole = rows(islice(mixed(folder), 12))
    assert rows(islice(DataLoader(mixed(folder), batch_size=None, num_workers=2), 12)) == whole


def test_a_mix_of_texts_is_filtered_and_mapped_as_one_text_is(folder: Path) -> None:
    stream = bare(folder).filter(lambda record: not record.text.startswith("1."), name="no wiki but")
    with pytest.raises(ConfigError, match="of source 'wiki', in any of the 12 lanes"):
        next(iter(stream.shuffle(lanes=LANES).pack(SEQ_LEN).batch(ROWS)))
    masked = bare(folder).map_documents(lambda ids, mask: (ids, ids > 50), name="masked").shuffle().pack(SEQ_LEN)
    row = next(iter(masked))
    assert ((row["labels"] == -100) | (row["labels"] > 50)).all()


def test_what_cannot_be_mixed_is_an_error_that_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    other = pipeline.TextDataset(folder / "wiki.jsonl", train("wordpiece", tmp_path / "bpe"))
    text, tokens = pipeline.TextDataset(folder / "web.jsonl", "bytes"), pipeline.ShardDataset.from_tokens(range(9))
    for sources, options, message in (
        ({"a": text, "b": tokens}, {"weights": {"a": 1, "b": 1}}, "'b' has int64, others uint16"),
        ({"a": text}, {"temperature": 1}, "give weights"),
        ({"a": text.shuffle()}, {"weights": {"a": 1}}, "must be a bare dataset"),
        ({"a": text.split(val=0.5)[0], "b": other}, {"weights": {"a": 1, "b": 1}}, "share one tokenizer"),
    ):
        with pytest.raises(ConfigError, match=message):
            pipeline.mix(sources, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs to know in advance where tokens are"):
        bare(folder).sample(8)
    state = mixed(folder).state_dict()
    state["lanes"]["0"] = [0, 0, 0, 0]
    with pytest.raises(StateError, match="must be 12 numbers"):
        mixed(folder).load_state_dict(state)
