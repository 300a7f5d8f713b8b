"""Arrays of tokens without documents, as ``np.memmap("train.bin")``, are shuffled in pieces and mapped, not read whole."""

from __future__ import annotations

import pickle
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.helpers import interpreters
from tests.stream.order_oracle import Options, Source, Stream, memory_shard, pieces
from tests.stream.order_samples import assert_follows

ROOT = Path(__file__).resolve().parents[2]
PIECE = 4096
TOKENS = np.arange(50 * PIECE + 100, dtype=np.uint32)


def rows(stream: Any, count: int | None = None) -> list[list[int]]:
    return [row for batch in islice(stream, count) for row in np.atleast_2d(batch["input_ids"].numpy()).tolist()]


def mapped(tmp_path: Path, tokens: np.ndarray[Any, Any] = TOKENS) -> np.ndarray[Any, Any]:
    tokens.tofile(tmp_path / "train.bin")
    return np.memmap(tmp_path / "train.bin", dtype=tokens.dtype, mode="r")


@pytest.mark.parametrize(
    ("size", "seed"), [(PIECE + 1, None), *((size, 5) for size in (1, PIECE, PIECE + 1, 30 * PIECE + 7))]
)
def test_the_order_of_pieces_is_that_of_the_definition(size: int, seed: int | None) -> None:
    tokens = list(range(1, size + 1))
    data: Any = pipeline.ShardDataset.from_tokens(np.array(tokens, "<u4"))
    data = data if seed is None else data.shuffle(seed=seed, lanes=3)
    oracle = Stream(Source([memory_shard(pieces(tokens), 4)], 4), Options(seq_len=50, seed=seed, lanes=3))
    assert_follows(data.pack(50), oracle, 2, 3, number=30)


def test_an_eos_id_that_the_tokens_do_not_hold_ends_no_document() -> None:
    bare, stated = (pipeline.ShardDataset.from_tokens(TOKENS, eos_id=eos) for eos in (None, len(TOKENS)))
    assert rows(stated.shuffle().pack(64), 20) == rows(bare.shuffle().pack(64), 20)
    with pytest.raises(ConfigError, match=r"\.documents\(\) needs documents"):
        stated.documents()


@pytest.mark.parametrize(
    "stage",
    [
        lambda data: data.documents(),
        lambda data: data.filter(len),
        lambda data: data.map_documents(lambda ids, mask: ids),
        lambda data: data.map_documents(lambda ids, mask: ids, same_length=True),
        lambda data: data.pack(8, boundaries=True),
        lambda data: data.pack(8, best_fit=True),
        lambda data: data.sample(8, boundaries=True),
        lambda data: data.split(val=0.1),
        lambda data: pipeline.mix({"a": data}, {"a": 1}).pack(8, boundaries=True),
        lambda data: pipeline.mix({"a": data}, {"a": 1}).map_documents(lambda ids, mask: ids, same_length=True),
    ],
)
def test_what_needs_documents_is_an_error_with_the_cure(stage: Any) -> None:
    with pytest.raises(ConfigError, match=r"needs documents, but nothing says where .* lengths=, or the eos_id="):
        stage(pipeline.ShardDataset.from_tokens(TOKENS))
    stage(pipeline.ShardDataset.from_tokens(TOKENS, lengths=[len(TOKENS)]))


@pytest.mark.parametrize("part", [slice(None), slice(1000, -7)])
def test_a_memmap_or_a_part_of_it_streams_what_the_array_does(tmp_path: Path, part: slice) -> None:
    streams = [
        pipeline.ShardDataset.from_tokens(tokens[part]).shuffle(seed=1).pack(64).batch(4)
        for tokens in (TOKENS, mapped(tmp_path))
    ]
    expected, found = (rows(stream, 20) for stream in streams)
    assert found == expected
    again = pipeline.ShardDataset.from_tokens(mapped(tmp_path)[part]).shuffle(seed=1).pack(64).batch(4)
    again.load_state_dict(streams[1].state_dict())
    assert rows(again, 5) == rows(streams[0].shard(0, 1), 25)[80:]


@pytest.mark.parametrize("at", [0, 20 * PIECE, -1])
def test_a_memmap_with_other_tokens_is_refused_by_a_state(tmp_path: Path, at: int) -> None:
    state = pipeline.ShardDataset.from_tokens(mapped(tmp_path)).pack(64).state_dict()
    other = TOKENS.copy()
    other[at] = 9
    with pytest.raises(StateError, match="data was"):
        pipeline.ShardDataset.from_tokens(mapped(tmp_path, other)).pack(64).load_state_dict(state)
    with pytest.raises(StateError, match="data was"):
        pipeline.ShardDataset.from_tokens(mapped(tmp_path, TOKENS[:-1])).pack(64).load_state_dict(state)


@pytest.mark.skipif(sys.platform != "linux", reason="the pages of mapped files that are in memory are asked of /proc")
def test_a_memmap_is_not_read_whole(tmp_path: Path) -> None:
    size = 1 << 30
    with (tmp_path / "train.bin").open("wb") as file:
        file.truncate(size)
    code = f"""
import re, numpy as np, pipeline
def mapped():
    return int(re.search(r"RssFile:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10
tokens = np.memmap({str(tmp_path / "train.bin")!r}, dtype=np.uint16, mode="r")
warm = pipeline.ShardDataset.from_tokens(np.zeros(100_000, np.uint16)).shuffle(seed=0).pack(64).batch(64)
next(iter(warm))
before = mapped()
stream = pipeline.ShardDataset.from_tokens(tokens).shuffle(seed=0).pack(64).batch(2)
next(iter(stream)), stream.state_dict()
print(mapped() - before)
"""
    assert int(interpreters.run("-c", code).stdout) < size // 4


def test_workers_of_a_loader_map_the_file_again(tmp_path: Path) -> None:
    tokens = mapped(tmp_path)[5:]
    stream = pipeline.ShardDataset.from_tokens(tokens).shuffle(seed=1).pack(64).batch(4).take(6)
    expected = rows(stream)
    sent = pickle.dumps(stream)  # as to workers that are started by spawn
    assert len(sent) < tokens.nbytes // 10
    assert rows(pickle.loads(sent)) == rows(DataLoader(stream, batch_size=None, num_workers=2)) == expected
