"""Measure the stream from a disk whose page cache holds nothing of the dataset: speed, waits, bytes read, memory.

A dataset is dropped from the page cache before each reading, and threads that read blocks of that size in random order
say what the same disk gives in the same run. Other loaders read the same documents: webdataset the same shards, memmap a
file of the same tokens. What only one loader reads is removed before the next.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import ShardDataset
from pipeline.shards.extents.indexing import index_dataset
from pipeline.shards.manifest import Manifest, Split
from pipeline.shards.writer import write_shard
from scripts._bench_data import flat_tokens
from scripts._cold_ranks import memory_of_ranks
from scripts._process import bytes_of_process, memory
from scripts._report import Report

SHARDS, DOCUMENTS, MEDIAN = 32, 52_000, 800  # 5.5 GB
GROUPED_SHARDS, TOKENS_PER_SAMPLE = 16, 1 << 16
BLOCK_BYTES, THREADS, SECONDS = 768 << 10, 8, 3.0
SEQ_LEN, BATCH, FIRST, AROUND_BORDER = 2048, 32, 200, 300
TOKENS_PER_BATCH = SEQ_LEN * BATCH
PEER_SECONDS = 8.0
# Reading the memory use takes as long as a hundred batches, so it is done rarely inside the epoch, whose speed is measured.
LOOK_EVERY, LOOK_EVERY_AT_BORDER = 2000, 10
RANKS = ((1, 0, 3000), (8, 0, 400), (4, 2, 800))  # ranks, workers of each, batches of each
MOST_RESIDENT, TRIES_TO_DROP = 0.01, 10
TOKENIZER = {"name": "bench", "sha256": "0" * 64, "vocab_size": 60_000, "eos_id": 0, "bos_id": None, "special_ids": {}}
Loader = Callable[[Path], Iterator[Any]]


def cold(directory: Path, report: Report, peers: dict[str, Loader]) -> None:
    """Speed from the disk over an epoch and its border, beside the disk's own limit; then other loaders."""
    path = dataset_on_disk(directory)
    files = sorted(path.glob("*.tar"))
    limits = []
    for part in range(2):
        drop_from_cache(files)
        limits.append(random_blocks(files))
        if part == 0:
            drop_from_cache(files)
            found = stream(path)
    limit = statistics.median(limits)
    print_stream(report, f"Cold: random blocks reach {limit / 1e6:,.0f} MB/s", found, limit)
    rows = [
        (f"{ranks} ranks" + (f" of {workers} workers" if workers else ""), memory_of_ranks(path, ranks, workers, count))
        for ranks, workers, count in RANKS
    ]
    table = [(name, f"{taken / 1e6:,.0f}") for name, taken in rows]
    report.table("Memory (PSS) of ranks together, beyond imports", ("", "MB"), table)
    beside = []
    for name, loader in peers.items():
        try:
            rate, per_byte = peer(path, name, loader)
        except ImportError:
            report.note(f"{name} is not installed: left out")
            continue
        beside.append((name, f"{found['steady'] / rate:,.1f}", f"{rate / 1e6:,.1f}", f"{per_byte:,.1f}"))
    heads = ("", "times as fast is shardwright", "its Mtokens/s", "bytes read per byte used")
    report.table(f"Other loaders, cold, their first {PEER_SECONDS:.0f} seconds", heads, beside)
    grouped = dataset_on_disk(directory, shards=GROUPED_SHARDS, tokens_per_sample=TOKENS_PER_SAMPLE)
    drop_from_cache(sorted(grouped.glob("*.tar")))
    print_stream(report, "Cold: documents grouped in members", stream(grouped), limit)
    shutil.rmtree(grouped)


def print_stream(report: Report, title: str, found: dict[str, float], limit: float) -> None:
    """Print what `stream` found as a table, ratios first."""
    rows = [
        (
            "bytes read a second, of the disk's limit",
            f"{found['disk'] / limit:.2f}",
            f"{found['disk'] / 1e6:,.0f} MB/s",
        ),
        ("steady", "", f"{found['steady'] / 1e6:,.0f} Mtokens/s"),
        (f"first {FIRST} batches", "", f"{found['first'] / 1e6:,.0f} Mtokens/s"),
        ("bytes read per byte used, of an epoch", f"{found['per_byte']:.2f}", ""),
        ("first batch, from construction", "", f"{found['begin'] * 1e3:,.0f} ms"),
        ("slowest batch after them, inside the epoch", "", f"{found['worst'] * 1e3:,.0f} ms"),
        ("slowest batch at the epoch's border", "", f"{found['worst_border'] * 1e3:,.0f} ms"),
        ("memory (PSS) beyond imports, inside the epoch", "", f"{found['memory'] / 1e6:,.0f} MB"),
        ("memory (PSS) beyond imports, at the border", "", f"{found['memory_border'] / 1e6:,.0f} MB"),
        ("CPU time of a batch, steady", "", f"{found['cpu'] * 1e6:,.0f} us"),
    ]
    report.table(title, ("cold", "ratio", "measured"), rows)


def peer(path: Path, name: str, loader: Loader) -> tuple[float, float]:
    """Return the tokens a second that another loader gives from a cold dataset, and the bytes that it reads per byte."""
    if name.startswith("memmap"):
        flat_tokens(path)
        files = [path / "tokens.bin"]
    else:
        files = sorted(path.glob("*.tar"))
    try:
        drop_from_cache(files)
        batches, count, read = loader(path), 0, bytes_of_process()
        begin = time.perf_counter()
        while time.perf_counter() - begin < PEER_SECONDS:
            next(batches)
            count += 1
        tokens = count * TOKENS_PER_BATCH
        return tokens / (time.perf_counter() - begin), (bytes_of_process() - read) / (2 * tokens)
    finally:
        (path / "tokens.bin").unlink(missing_ok=True)


def dataset_on_disk(directory: Path, shards: int = SHARDS, tokens_per_sample: int = 0) -> Path:
    """Return a dataset, larger than is held by chance, written where it is not there yet.

    It has one document a member, or as many as make ``tokens_per_sample``.
    """
    path = directory / (f"cold-{shards}x{DOCUMENTS}" + (f"-{tokens_per_sample}" if tokens_per_sample else ""))
    if (path / "manifest.json").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    infos = []
    for number in range(shards):
        lengths = np.minimum(generator.lognormal(np.log(MEDIAN), 0.9, DOCUMENTS) + 1, 20_000).astype(np.int64)
        tokens = generator.integers(1, 60_000, int(lengths.sum())).astype("<u2")
        keys = [f"{number:06d}{j:08d}" for j in range(DOCUMENTS)]
        place = path / f"train-{number:06d}.tar"
        infos.append(write_shard(place, tokens=tokens, lengths=lengths, keys=keys, tokens_per_sample=tokens_per_sample))
    Manifest("<u2", TOKENIZER, {"train": Split(tuple(infos))}).write(path)
    index_dataset(path)
    return path


def drop_from_cache(files: list[Path]) -> None:
    """Drop files from the page cache; exits where a hundredth or more of them stays, for then nothing is measured."""
    for _ in range(TRIES_TO_DROP):
        for file in files:
            handle = os.open(file, os.O_RDONLY)
            os.fdatasync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)
        if (share := resident(files)) < MOST_RESIDENT:
            return
        time.sleep(0.5)  # processes that ended may not have given back all that they mapped
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
    """Read an epoch of a cold dataset, and across its border, by the stream; return what that took."""
    before, read = memory().proportional, bytes_of_process()
    begin = time.perf_counter()
    dataset = ShardDataset(path)
    batches = iter(dataset.shuffle(seed=0).pack(SEQ_LEN).batch(BATCH))
    next(batches)
    found: dict[str, float] = {"begin": time.perf_counter() - begin}
    begin = time.perf_counter()
    drain(batches, FIRST)
    found["first"] = FIRST * TOKENS_PER_BATCH / (time.perf_counter() - begin)
    epoch = len(ShardDataset(path, epochs=1).pack(SEQ_LEN).batch(BATCH))
    begin, cpu, steady_read = time.perf_counter(), time.process_time(), bytes_of_process()
    count = epoch - 1 - FIRST - AROUND_BORDER // 2
    waits, most = watched(batches, count, LOOK_EVERY)
    seconds = time.perf_counter() - begin
    found |= {"steady": count * TOKENS_PER_BATCH / seconds, "worst": max(waits), "memory": most - before}
    found |= {"disk": (bytes_of_process() - steady_read) / seconds, "cpu": (time.process_time() - cpu) / count}
    found["per_byte"] = (bytes_of_process() - read) / (2 * (1 + FIRST + count) * TOKENS_PER_BATCH)
    waits, most = watched(batches, AROUND_BORDER, LOOK_EVERY_AT_BORDER)
    return found | {"worst_border": max(waits), "memory_border": most - before}


def watched(batches: Any, count: int, every: int) -> tuple[list[float], float]:
    """Take batches; return the seconds that each took, and the most memory seen behind each ``every`` of them."""
    waits: list[float] = []
    most = 0.0
    while len(waits) < count:
        waits += drain(batches, min(every, count - len(waits)))
        most = max(most, memory().proportional)
    return waits, most


def drain(batches: Any, count: int) -> list[float]:
    """Take batches, and return the seconds that each took."""
    waits, last = [], time.perf_counter()
    for _ in islice(batches, count):
        now = time.perf_counter()
        waits.append(now - last)
        last = now
    return waits
