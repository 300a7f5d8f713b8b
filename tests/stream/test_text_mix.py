"""A mix of texts: exact shares, weights that change, filters and functions of its documents."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.helpers.text_samples import jsonl, write_sources
from tests.helpers.tokenizer_samples import train
from tests.stream.order_oracle_mixes import PERIOD

COUNTS = {"web": 200, "wiki": 60, "tiny": 5}
WEIGHTS = {"web": 0.6, "wiki": 0.3, "tiny": 0.1}
SEQ_LEN, LANES, ROWS = 24, 12, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sources(tmp_path_factory.mktemp("texts"), COUNTS)


def bare(folder: Path, weights: Any = None) -> pipeline.Stream:
    sources = {name: pipeline.TextDataset(folder / f"{name}.jsonl", "bytes") for name in COUNTS}
    return pipeline.mix(sources, weights or WEIGHTS)


def mixed(folder: Path, weights: Any = None) -> pipeline.Stream:
    return bare(folder, weights).shuffle(seed=3, lanes=LANES).pack(SEQ_LEN).batch(ROWS)


def rows(batches: Any) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in batches]


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


def test_each_source_serves_its_share_of_a_period(tmp_path: Path) -> None:
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


def test_a_state_keeps_a_change_of_weights_by_schedule_and_by_hand(folder: Path) -> None:
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


def test_a_mix_of_texts_is_filtered_and_mapped_as_one_text_is(folder: Path) -> None:
    stream = bare(folder).filter(lambda record: not record.text.startswith("1."), name="no wiki but")
    with pytest.raises(ConfigError, match=r"of source 'wiki'.* 12 lanes"):
        next(iter(stream.shuffle(lanes=LANES).pack(SEQ_LEN).batch(ROWS)))
    masked = bare(folder).map_documents(lambda ids, mask: (ids, ids > 50), name="masked").shuffle().pack(SEQ_LEN)
    row = next(iter(masked))
    assert ((row["labels"] == -100) | (row["labels"] > 50)).all()


def test_what_cannot_be_mixed_is_an_error_that_says_what_to_do(folder: Path, tmp_path: Path) -> None:
    other = pipeline.TextDataset(folder / "wiki.jsonl", train("wordpiece", tmp_path / "bpe"))
    text, tokens = pipeline.TextDataset(folder / "web.jsonl", "bytes"), pipeline.ShardDataset.from_tokens(range(9))
    for sources, options, message in (
        (
            {"a": text, "b": tokens},
            {"weights": {"a": 1, "b": 1}},
            r"tokenizer, but 'b' has an unknown one, and 'a' has bytes \(",
        ),
        (
            {
                "a": pipeline.ShardDataset.from_tokens(np.arange(9)),
                "b": pipeline.ShardDataset.from_tokens(np.arange(9, dtype=np.uint16)),
            },
            {"weights": {"a": 1, "b": 1}},
            "'b' has uint16, and 'a' has int64",
        ),
        ({"a": text}, {"temperature": 1}, "give weights"),
        ({"a": text.shuffle()}, {"weights": {"a": 1}}, "'a' must be a bare dataset"),
        (
            {"a": text.split(val=0.5)[0], "b": other},
            {"weights": {"a": 1, "b": 1}},
            r"one tokenizer, but 'b' has .*bpe \(SHA-256 .{8}\.\.\.\), and 'a' has bytes",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            pipeline.mix(sources, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="know in advance where tokens are"):
        bare(folder).sample(8)
    state = mixed(folder).state_dict()
    state["lanes"]["0"] = [0, 0, 0, 0]
    with pytest.raises(StateError, match="must be 12 numbers"):
        mixed(folder).load_state_dict(state)
