"""A limit binds the whole cache, whatever filled it, and room that another thread takes is no full disk."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import pipeline
from pipeline.shards.remote.block_cache import BlockCache
from tests.faulty_server import FaultyServer, running_server
from tests.shard_samples import index_extents, make_documents, write_dataset
from tests.text_streams import ids

pytestmark = pytest.mark.stacks


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with running_server() as running:
        yield running


def bytes_held(cache: Path) -> int:
    total = 0
    for folder, _, names in os.walk(cache):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_size * name.endswith((".tar", ".block", ".index"))
    return total


@pytest.mark.parametrize("whole", [True, False])
def test_a_limit_binds_a_cache_that_was_filled_without_one(tmp_path: Path, server: FaultyServer, whole: bool) -> None:
    write_dataset(tmp_path / "data", [make_documents(300, seed=seed, longest=200) for seed in range(6)])
    index_extents(tmp_path / "data", 4 << 10)
    server.objects = {f"data/{path.name}": path.read_bytes() for path in (tmp_path / "data").iterdir()}
    cache = tmp_path / "cache"

    def stream(**options: object) -> pipeline.Stream:
        options |= {"epochs": 1, "cache_dir": str(cache), "whole_shards": whole}
        return pipeline.ShardDataset(server.url("data"), **options).shuffle(seed=3, lanes=4, window=2).pack(64).batch(8)

    wanted = ids(stream())
    filled = bytes_held(cache)
    assert filled > 0
    limit = 2 * filled // 3
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        limited = stream(cache_limit=limit)
        assert bytes_held(cache) <= limit
        found = []
        for batch in limited:
            found.append(batch["input_ids"].tolist())
            assert bytes_held(cache) <= limit
    assert found == wanted


def test_threads_that_evict_each_others_blocks_warn_of_no_full_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = BlockCache(tmp_path, limit=3_000)

    def read(number: int) -> bytes:
        held = cache.bring("shard", f"{number}.block", 0.0, lambda: bytes([number % 256]) * 1000)
        if not isinstance(held, int):
            return bytes(held)
        with os.fdopen(held, "rb") as file:
            return file.read()

    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(8) as threads:
        found = list(threads.map(read, range(1500)))
    assert found == [bytes([number % 256]) * 1000 for number in range(1500)]
    assert caplog.messages == []
