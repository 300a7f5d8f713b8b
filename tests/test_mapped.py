"""Mapped ranges of files, and buffers where none can be: shared by threads, gone once unused, and of the same bytes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.shards.ranges.mapped import can_map
from pipeline.shards.ranges.shard_ranges import LONG_BYTES
from tests.shard_samples import index_extents, make_documents, write_dataset

ROOT = Path(__file__).resolve().parents[1]

SHARE = """
import ctypes, os, sys, threading, weakref
from pipeline.shards.ranges.mapped import map_range

sys.setswitchinterval(1e-6)
handle = os.open(sys.argv[1], os.O_RDONLY)
shared = weakref.WeakValueDictionary()

def use():
    for _ in range(5_000):
        held = shared.get(0)
        if held is None:
            held = shared.setdefault(0, map_range(handle, 0, 1 << 16, random=True))
        assert ctypes.string_at(held.address, 4) == b"text"
        del held

threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_a_range_that_threads_share_is_unmapped_only_when_no_thread_can_get_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text" * (1 << 14))
    command = [sys.executable, "-c", SHARE, str(tmp_path / "file")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def streams(path: Path, **options: Any) -> list[Any]:
    """Return streams of all kinds over a dataset."""
    source = pipeline.ShardDataset(path, epochs=2, **options).shuffle(seed=1)
    kinds = (source.pack(16, boundaries=True), source.documents(max_length=64), source.documents(bucket=2))
    return [*(kind.batch(4) for kind in kinds), source.sample(16).batch(4)]


def rows(stream: Any) -> list[list[int]]:
    return [row for batch in islice(stream, 400) for row in batch["input_ids"].tolist()]


@pytest.mark.parametrize("verify", [False, True])
def test_buffers_give_what_maps_give(tmp_path: Path, verify: bool) -> None:
    write_dataset(tmp_path, [make_documents(150, seed=k) for k in range(6)])
    index_extents(tmp_path, 1500)
    pairs = zip(streams(tmp_path, memory_map=True), streams(tmp_path, memory_map=False, verify=verify), strict=True)
    for mapped, buffered in pairs:
        assert rows(buffered) == rows(mapped)


@pytest.fixture
def fuse(tmp_path: Path) -> Iterator[Path]:
    """Give a directory whose files are those of tmp_path / "data", by a file system in user space."""
    if not (shutil.which("bindfs") and shutil.which("fusermount3") and Path("/dev/fuse").exists()):
        pytest.skip("bindfs and /dev/fuse are needed")
    (tmp_path / "data").mkdir()
    (tmp_path / "mount").mkdir()
    done = subprocess.run(["bindfs", "-n", str(tmp_path / "data"), str(tmp_path / "mount")], capture_output=True)
    if done.returncode:
        pytest.skip(f"a file system in user space cannot be mounted here: {done.stderr.decode()}")
    yield tmp_path / "mount"
    subprocess.run(["fusermount3", "-uz", str(tmp_path / "mount")], check=True)


def test_a_file_system_in_user_space_is_not_mapped_and_gives_the_same_batches(tmp_path: Path, fuse: Path) -> None:
    write_dataset(tmp_path / "data", [make_documents(150, seed=k) for k in range(6)])
    index_extents(tmp_path / "data", 1500)
    assert not can_map(fuse)
    for local, mounted in zip(streams(tmp_path / "data"), streams(fuse), strict=True):
        assert rows(mounted) == rows(local)


@pytest.mark.parametrize("mapped", [True, False])
def test_a_document_longer_than_is_read_whole_is_read_by_ranges(tmp_path: Path, mapped: bool) -> None:
    generator = np.random.default_rng(0)
    long = generator.integers(1, 60_000, LONG_BYTES // 2 + 1000).astype("<u2")
    documents = [*make_documents(30), long, *make_documents(30, seed=1)]
    write_dataset(tmp_path, [documents])
    tokens = np.concatenate(documents)
    source = pipeline.ShardDataset(tmp_path, epochs=1, memory_map=mapped)
    found = np.concatenate([batch["input_ids"].numpy().ravel() for batch in source.pack(1024).batch(8)])
    assert (found[: len(tokens)] == tokens).all()
    batches = source.shuffle(seed=0).documents(max_length=100).batch(8)
    lengths = [int(mask.sum()) for batch in batches for mask in batch["attention_mask"]]
    assert sorted(lengths)[-61:] == sorted(min(100, len(document)) for document in documents)
