"""Blocks tell their indexes by the headers of their members, and where they do not, the index of the shard is read."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline.shards.manifest import Manifest, Split
from pipeline.shards.ranges.coming_bytes import ComingBytes
from pipeline.shards.ranges.document_starts import index_by_headers
from pipeline.shards.reader import read_index
from tests.faulty_server import FaultyServer, running_server
from tests.remote_blocks import block, table_of
from tests.shard_samples import index_extents, make_documents, write_dataset

EXTENT = 4 << 10


def _folder(tmp_path: Path, dtype: str = "<u2") -> Path:
    folder = tmp_path / "data"
    documents = make_documents(200, seed=1, longest=300, dtype=dtype)
    empty = np.zeros(0, dtype)
    write_dataset(folder, [[empty, *documents, empty, empty], make_documents(3, dtype=dtype), [empty]])
    index_extents(folder, EXTENT)
    return folder


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
@pytest.mark.parametrize("extents", [1, 4])
def test_headers_tell_where_the_documents_of_any_run_of_extents_lie(tmp_path: Path, dtype: str, extents: int) -> None:
    folder = _folder(tmp_path, dtype)
    table, found = table_of(folder), 0
    for shard, info in enumerate(Manifest.read(folder).shards):
        index, (begin, end) = read_index(folder / info.name), table.shard_bounds[shard : shard + 2].tolist()
        for first in range(begin, end - extents + 1):
            part = slice(int(table.first_documents[first]), None)
            count = int(table.document_sums[first + extents] - table.document_sums[first])
            told = index_by_headers(table, first, first + extents, memoryview(block(folder, first, first + extents)))
            starts, lengths = (np.asarray(each[part][:count]) for each in (index.starts, index.lengths))
            assert told == (starts.astype("<i8").tobytes(), lengths.astype("<u4").tobytes())
            found += 1
    assert found > 10


def test_headers_of_members_that_hold_many_documents_tell_nothing(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [make_documents(200, longest=300)], tokens_per_sample=1000)
    index_extents(tmp_path / "data", EXTENT)
    table = table_of(tmp_path / "data")
    blocks = [memoryview(block(tmp_path / "data", row, row + 1)) for row in range(len(table))]
    assert all(index_by_headers(table, row, row + 1, each) is None for row, each in enumerate(blocks))


def _index_requests(server: FaultyServer, folder: Path, of: str = "starts_at") -> int:
    """Return how many requests were for parts of the indexes of shards, from where these parts begin on."""
    firsts = dict(zip([info.name for info in Manifest.read(folder).shards], getattr(table_of(folder), of), strict=True))
    asked = [(path.rpartition("/")[2], str(wanted)) for path, wanted in server.requests]
    return sum(int(wanted[6:].split("-")[0]) >= firsts[name] for name, wanted in asked if name in firsts)


def _stream(source: str | Path, cache: Path | None = None) -> pipeline.Stream:
    return pipeline.ShardDataset(source, epochs=1, cache_dir=cache).shuffle(seed=3, lanes=2, window=4).pack(64).batch(8)


@pytest.mark.parametrize("forged", [False, True])
def test_indexes_behind_the_first_rows_come_with_the_blocks(tmp_path: Path, forged: bool) -> None:
    folder = tmp_path / "data"
    documents = [make_documents(300, seed=seed, longest=300) for seed in range(2)]
    write_dataset(folder, documents)
    if forged:  # tokens that look like a header, where one may stand
        header = (folder / "train-000000.tar").read_bytes()[:512]
        tokens = np.frombuffer(bytes(384) + header, "<u2")
        documents = [[tokens if number % 5 == 0 else each for number, each in enumerate(shard)] for shard in documents]
        write_dataset(folder, documents)
    index_extents(folder, EXTENT)
    with running_server() as server:
        server.objects |= {f"data/{path.name}": path.read_bytes() for path in folder.iterdir()}
        batches = iter(_stream(server.url("data")))
        found = [next(batches)["input_ids"].tolist()]
        assert _index_requests(server, folder) > 0
        server.requests.clear()
        found += [batch["input_ids"].tolist() for batch in batches]
        assert found == [batch["input_ids"].tolist() for batch in _stream(folder)]
        assert (_index_requests(server, folder) > 0) == forged


@pytest.mark.parametrize("cached", [False, True])
def test_of_documents_that_share_members_lengths_are_asked_for_and_no_starts(tmp_path: Path, cached: bool) -> None:
    folder = tmp_path / "data"
    write_dataset(folder, [make_documents(300, seed=seed, longest=300) for seed in range(2)], tokens_per_sample=2000)
    index_extents(folder, EXTENT)
    with running_server() as server:
        server.objects |= {f"data/{path.name}": path.read_bytes() for path in folder.iterdir()}
        stream = _stream(server.url("data"), tmp_path / "cache" if cached else None)
        found = [batch["input_ids"].tolist() for batch in stream]
        assert found == [batch["input_ids"].tolist() for batch in _stream(folder)]
        assert _index_requests(server, folder) == _index_requests(server, folder, "lengths_at") > 0


def test_shards_of_both_kinds_stream_as_the_local_ones(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    documents = make_documents(300, longest=300)
    manifests = [write_dataset(folder, [documents], split=f"p{k}", tokens_per_sample=k) for k in (0, 300, 2000)]
    infos = tuple(info for manifest in manifests for info in manifest.shards)
    replace(manifests[0], splits={"train": Split(infos)}).write(folder)
    index_extents(folder, EXTENT)
    with running_server() as server:
        server.objects |= {f"data/{path.name}": path.read_bytes() for path in folder.iterdir()}
        found = [batch["input_ids"].tolist() for batch in _stream(server.url("data"))]
    assert found == [batch["input_ids"].tolist() for batch in _stream(folder)]


def test_blocks_are_freed_without_the_collector_of_cycles(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_dataset(folder, [make_documents(300, seed=seed, longest=300) for seed in range(2)])
    index_extents(folder, EXTENT)
    gc.collect()
    gc.disable()
    try:
        with running_server() as server:
            server.objects |= {f"data/{path.name}": path.read_bytes() for path in folder.iterdir()}
            assert len(list(_stream(server.url("data")))) > 10
        held = sum(type(each) is ComingBytes for each in gc.get_objects())
        assert held < len(table_of(folder)) / 4 / 4  # of blocks of 4 extents
    finally:
        gc.enable()
