"""Measure the stream from a disk whose page cache holds nothing of the dataset: speed, waits, bytes read, memory.

The dataset is dropped from the page cache before each reading, and threads that read blocks of that size in random order
say what the same disk gives in the same run.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.shards.extents.indexing import index_dataset
from pipeline.shards.manifest import Manifest, Split
from pipeline.shards.writer import write_shard
from scripts._report import Report

SHARDS, DOCUMENTS, MEDIAN = 32, 52_000, 800  # 5.5 GB
BLOCK_BYTES, THREADS, SECONDS = 768 << 10, 8, 3.0
SEQ_LEN, BATCH, FIRST, BATCHES = 2048, 32, 200, 6000
MOST_RESIDENT = 0.01
TOKENIZER = {"name": "bench", "sha256": "0" * 64, "vocab_size": 60_000, "eos_id": 0, "bos_id": None, "special_ids": {}}


def cold(directory: Path, report: Report) -> None:
    """Speed from the disk, beside the disk's own limit."""
    path = dataset_on_disk(directory)
    files = sorted(path.glob("*.tar"))
    found: dict[str, float] = {}
    limits = []
    for _ in range(2):
        drop_from_cache(files)
        limits.append(random_blocks(files))
        drop_from_cache(files)
        found = stream(path)
    limit = statistics.median(limits)
    rows = [
        (
            "bytes read a second, of the disk's limit",
            f"{found['disk'] / limit:.2f}",
            f"{found['disk'] / 1e6:,.0f} MB/s",
        ),
        ("steady", "", f"{found['steady'] / 1e6:,.0f} Mtokens/s"),
        (f"first {FIRST} batches", "", f"{found['first'] / 1e6:,.0f} Mtokens/s"),
        ("bytes read per byte used, steady", f"{found['per_byte']:.2f}", ""),
        ("first batch, from construction", "", f"{found['begin'] * 1e3:,.0f} ms"),
        ("slowest batch after them", "", f"{found['worst'] * 1e3:,.0f} ms"),
        ("memory (PSS) beyond imports", "", f"{found['memory'] / 1e6:,.0f} MB"),
    ]
    report.table(f"Cold: random blocks reach {limit / 1e6:,.0f} MB/s", ("cold", "ratio", "measured"), rows)


def dataset_on_disk(directory: Path) -> Path:
    """Return a dataset of one document a member, larger than is held by chance, written where it is not there yet."""
    path = directory / f"cold-{SHARDS}x{DOCUMENTS}"
    if (path / "manifest.json").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    infos = []
    for number in range(SHARDS):
        lengths = np.minimum(generator.lognormal(np.log(MEDIAN), 0.9, DOCUMENTS) + 1, 20_000).astype(np.int64)
        tokens = generator.integers(1, 60_000, int(lengths.sum())).astype("<u2")
        keys = [f"{number:06d}{j:08d}" for j in range(DOCUMENTS)]
        infos.append(write_shard(path / f"train-{number:06d}.tar", tokens=tokens, lengths=lengths, keys=keys))
    Manifest("<u2", TOKENIZER, {"train": Split(tuple(infos))}).write(path)
    index_dataset(path)
    return path


def drop_from_cache(files: list[Path]) -> None:
    """Drop files from the page cache; exits where a hundredth or more of them stays, for then nothing is measured."""
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        os.fdatasync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)
    if (share := resident(files)) >= MOST_RESIDENT:
        sys.exit(f"{share:.1%} of {files[0].parent} stay in the page cache; a cold reading cannot be measured here")


def resident(files: list[Path]) -> float:
    """Return the share of all pages that are in the page cache; a probe by reading would bring pages there."""
    libc, held, total = ctypes.CDLL(None, use_errno=True), 0, 0
    for file in files:
        data = np.memmap(file, np.uint8, "r")
        pages = np.zeros(-(-len(data) // mmap.PAGESIZE), np.uint8)
        address, length = ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(len(data))
        if libc.mincore(address, length, ctypes.c_void_p(pages.ctypes.data)) != 0:
            raise OSError(ctypes.get_errno(), f"mincore of {file}")
        held, total = held + int(np.count_nonzero(pages & 1)), total + len(pages)
    return held / total


def random_blocks(files: list[Path]) -> float:
    """Return how many bytes a second threads read of blocks in random order."""
    places = [(file, k * BLOCK_BYTES) for file in files for k in range(file.stat().st_size // BLOCK_BYTES)]
    random.Random(1).shuffle(places)
    begin, done = time.perf_counter(), [0] * THREADS

    def work(thread: int) -> None:
        buffer = bytearray(BLOCK_BYTES)
        for file, offset in places[thread::THREADS]:
            if time.perf_counter() - begin > SECONDS:
                return
            handle = os.open(file, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
            done[thread] += os.preadv(handle, [buffer], offset)
            os.close(handle)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(work, range(THREADS)))
    return sum(done) / (time.perf_counter() - begin)


def stream(path: Path) -> dict[str, float]:
    """Read a cold dataset by the stream, and return what that took."""
    import pipeline

    source = pipeline.ShardDataset  # what it imports is no part of the start
    before = memory()
    begin = time.perf_counter()
    batches = iter(source(path).shuffle(seed=0).pack(SEQ_LEN).batch(BATCH))
    next(batches)
    found: dict[str, float] = {"begin": time.perf_counter() - begin}
    begin = time.perf_counter()
    drain(batches, FIRST)
    found["first"] = FIRST * SEQ_LEN * BATCH / (time.perf_counter() - begin)
    begin, read = time.perf_counter(), bytes_of_process()
    waits, most = [], 0.0
    for _ in range(BATCHES // 100):
        waits += drain(batches, 100)
        most = max(most, memory())
    seconds = time.perf_counter() - begin
    tokens = len(waits) * SEQ_LEN * BATCH
    found |= {"steady": tokens / seconds, "worst": max(waits), "memory": most - before}
    found["disk"] = (bytes_of_process() - read) / seconds
    found["per_byte"] = (bytes_of_process() - read) / (2 * tokens)
    return found


def drain(batches: Any, count: int) -> list[float]:
    """Take batches, and return the seconds that each took."""
    waits, last = [], time.perf_counter()
    for _ in islice(batches, count):
        now = time.perf_counter()
        waits.append(now - last)
        last = now
    return waits


def bytes_of_process() -> int:
    """Return how many bytes this process has made the disk read."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("read_bytes")).split()[1])


def memory() -> float:
    """Return the proportional set size of this process, in bytes."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024.0 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])
