"""Shards mapped whole: the same indexes and bytes as by reading, whatever stays mapped; a shorter file is an error."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline.errors import TruncatedShardError
from pipeline.shards.extents.loading import payload_bytes
from pipeline.shards.extents.table import ExtentTable
from pipeline.shards.index import Index
from pipeline.shards.reader import read_index
from tests.shard_samples import make_documents, write_dataset

if not sys.platform.startswith("linux"):
    pytest.skip("shards are mapped on Linux alone", allow_module_level=True)

from pipeline.shards.ranges.shard_maps import ShardMaps

Shards = tuple[ExtentTable, list[Path], list[Index]]


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    write_dataset(tmp_path, [make_documents(150, seed=k) for k in range(6)])
    paths = sorted(tmp_path.glob("*.tar"))
    indexes = [read_index(path) for path in paths]
    tables = [
        ExtentTable.of_shard(
            each.starts, each.lengths, "<u2", payload_bytes(each), indexed=True, extent_bytes=1500, name=path.name
        )
        for each, path in zip(indexes, paths, strict=True)
    ]
    return ExtentTable.join(tables, "<u2"), paths, indexes


def opening(paths: list[Path]) -> Callable[[int], AbstractContextManager[int]]:
    @contextmanager
    def opened(shard: int) -> Iterator[int]:
        handle = os.open(paths[shard], os.O_RDONLY)
        yield handle
        os.close(handle)

    return opened


def random_runs(table: ExtentTable, seed: int, count: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Return runs of extents, each inside a shard."""
    generator = np.random.default_rng(seed)
    firsts = generator.integers(0, len(table), count)
    ends = table.shard_bounds[table.shard_numbers[firsts].astype(np.int64) + 1]
    return firsts, np.minimum(firsts + generator.integers(1, 4, count), ends)


@pytest.mark.parametrize("most_bytes", [1, 1 << 30])
def test_runs_have_the_index_and_the_bytes_of_their_files_whatever_stays_mapped(
    shards: Shards, most_bytes: int
) -> None:
    table, paths, indexes = shards
    maps = ShardMaps(table, opening(paths), [path.name for path in paths], most_bytes)
    for seed in range(30):
        firsts, lasts = random_runs(table, seed)
        maps.ask(firsts, lasts, np.full(len(firsts), 100))
        index, memory = maps.index(firsts, lasts), maps.memory(firsts, lasts)
        assert index is not None
        assert memory is not None
        at = 0
        for k, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
            shard, begin = int(table.shard_numbers[first]), int(table.first_documents[first])
            count = int(table.document_sums[last] - table.document_sums[first])
            assert (index[0][at : at + count] == indexes[shard].starts[begin : begin + count]).all()
            assert (index[1][at : at + count] == indexes[shard].lengths[begin : begin + count]).all()
            at += count
            offset, size = int(table.offsets[first]), int(table.size_sums[last] - table.size_sums[first])
            assert ctypes.string_at(int(memory[0][k]), size) == paths[shard].read_bytes()[offset : offset + size]
        assert at == len(index[0]) == len(index[1])
        other = maps.memory(firsts[:3], lasts[:3])
        del memory  # gives pages back that another still reads
        assert other is not None
        assert (
            ctypes.string_at(int(other[0][0]), 8)
            == paths[int(table.shard_numbers[firsts[0]])].read_bytes()[int(table.offsets[firsts[0]]) :][:8]
        )
    maps.close()


def test_bytes_are_given_back_when_nothing_refers_to_them(tmp_path: Path) -> None:
    document = np.arange(3_000_000, dtype="<u2")
    write_dataset(tmp_path, [[document, document]])
    path = tmp_path / "train-000000.tar"
    index = read_index(path)
    table = ExtentTable.of_shard(
        index.starts, index.lengths, "<u2", payload_bytes(index), indexed=True, extent_bytes=1 << 20
    )
    maps = ShardMaps(table, opening([path]), [path.name])

    def mapped_kib() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("RssFile:")[1].split()[0])

    before = mapped_kib()
    memory = maps.memory(np.array([0]), np.array([len(table)]))
    assert memory is not None
    ctypes.string_at(int(memory[0][0]), 12_000_000)
    assert mapped_kib() - before > 11_000
    del memory
    assert mapped_kib() - before < 1_000


def test_a_file_that_became_shorter_is_an_error_that_names_it_and_does_not_end_the_process(shards: Shards) -> None:
    table, paths, _ = shards
    maps = ShardMaps(table, opening(paths), [path.name for path in paths])
    os.truncate(paths[2], int(table.offsets[table.shard_bounds[3] - 1]) + 10)
    last = table.shard_bounds[3:4]
    with pytest.raises(TruncatedShardError, match=r"train-000002\.tar: the file ends at byte \d+, \d+ bytes before"):
        maps.memory(last - 1, last)
    with pytest.raises(TruncatedShardError, match=r"train-000002\.tar: the file ends at byte"):
        maps.index(last - 1, last)


def test_a_stream_over_mapped_shards_is_that_over_buffers_while_others_read_the_same_blocks(tmp_path: Path) -> None:
    write_dataset(tmp_path, [make_documents(150, seed=k) for k in range(6)])
    source = pipeline.ShardDataset(tmp_path, epochs=2)
    streams = [iter(source.shuffle(seed=seed).pack(16).batch(4)) for seed in (0, 0, 1)]
    expected = iter(pipeline.ShardDataset(tmp_path, epochs=2, memory_map=False).shuffle(seed=0).pack(16).batch(4))
    for first, second, _, wanted in zip(*streams, expected, strict=False):
        assert (first["input_ids"] == wanted["input_ids"]).all()
        assert (second["input_ids"] == wanted["input_ids"]).all()
