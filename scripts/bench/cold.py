"""Compare the stream, webdataset and memmap where the page cache holds nothing of the dataset: speed, waits, bytes read, memory.

A dataset is dropped from the page cache before each reading, and threads that read blocks in random order say what the same
disk gives in the same run.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import ShardDataset
from scripts.bench import peers
from scripts.bench.data import BATCH, SEQ_LEN, TOKENS_PER_BATCH, dataset, flat_tokens
from scripts.bench.process import bytes_read, memory
from scripts.bench.report import Report

BLOCK_BYTES, THREADS, SECONDS = 768 << 10, 8, 3.0
FIRST, AROUND_BORDER, PEER_SECONDS = 200, 300, 8.0
MOST_RESIDENT, TRIES_TO_DROP = 0.01, 10
Loader = Callable[[Path], Iterator[Any]]


def cold(directory: Path, report: Report) -> None:
    """Speed from the disk over an epoch and its border, beside the disk's own limit and other loaders."""
    layouts = {
        "one document a member": dataset(directory, shards=32, documents=52_000, median=800, group=0),
        "members of 65,536 tokens": dataset(directory, shards=16, documents=52_000, median=800, group=1 << 16),
    }
    steady = 0.0
    for name, path in layouts.items():
        files = sorted(path.glob("*.tar"))
        drop_from_cache(files)
        limit = random_blocks(files)
        drop_from_cache(files)
        measured = stream(path)
        drop_from_cache(files)
        limit = statistics.mean((limit, random_blocks(files)))
        steady = steady or measured["steady"]
        rows = [
            ("bytes read a second, of random blocks", f"{measured['disk'] / limit:.2f}", f"{limit / 1e6:,.0f} MB/s"),
            ("bytes read per byte used, of an epoch", f"{measured['per_byte']:.2f}", ""),
            ("steady", "", f"{measured['steady'] / 1e6:,.0f} Mtokens/s"),
            (f"first {FIRST} batches", "", f"{measured['first'] / 1e6:,.0f} Mtokens/s"),
            ("first batch, from construction", "", f"{measured['begin'] * 1e3:,.0f} ms"),
            ("slowest batch inside the epoch", "", f"{measured['worst'] * 1e3:,.0f} ms"),
            ("slowest batch at the epoch's border", "", f"{measured['worst_border'] * 1e3:,.0f} ms"),
            ("memory that the kernel cannot drop", "", f"{measured['memory'] / 1e6:,.0f} MB"),
        ]
        report.table(f"Cold: {name}", ("", "ratio", "measured"), rows)
    others: dict[str, Loader] = {"webdataset": peers.webdataset, "memmap, hand-tuned": peers.memmap_tuned}
    beside = []
    for name, loader in others.items():
        rate, per_byte = peer(layouts["one document a member"], loader)
        beside.append((name, f"{steady / rate:,.1f}", f"{rate / 1e6:,.1f}", f"{per_byte:,.1f}"))
    heads = ("", "times as fast is shardwright", "its Mtokens/s", "bytes read per byte used")
    report.table(f"Other loaders, cold, their first {PEER_SECONDS:.0f} seconds", heads, beside)


def stream(path: Path) -> dict[str, float]:
    """Read an epoch of a cold dataset, and across its border; return what that took."""
    begin, before = time.perf_counter(), bytes_read()
    batches = iter(ShardDataset(path).shuffle(seed=0).pack(SEQ_LEN).batch(BATCH))
    next(batches)
    measured: dict[str, float] = {"begin": time.perf_counter() - begin}
    measured["first"] = FIRST * TOKENS_PER_BATCH / sum(waits(batches, FIRST))
    count = len(ShardDataset(path, epochs=1).pack(SEQ_LEN).batch(BATCH)) - 1 - FIRST - AROUND_BORDER // 2
    steady_bytes, seconds = bytes_read(), waits(batches, count)
    measured |= {"steady": count * TOKENS_PER_BATCH / sum(seconds), "worst": max(seconds)}
    measured["disk"] = (bytes_read() - steady_bytes) / sum(seconds)
    measured["per_byte"] = (bytes_read() - before) / (2 * (1 + FIRST + count) * TOKENS_PER_BATCH)
    most, seconds = float(memory().own), []
    for _ in range(AROUND_BORDER // 10):
        seconds += waits(batches, 10)
        most = max(most, memory().own)
    return measured | {"worst_border": max(seconds), "memory": most}


def waits(batches: Iterator[Any], count: int) -> list[float]:
    """Take batches, and return the seconds that each took."""
    times = [time.perf_counter()]
    for _ in range(count):
        next(batches)
        times.append(time.perf_counter())
    return [after - before for before, after in pairwise(times)]


def peer(path: Path, loader: Loader) -> tuple[float, float]:
    """Return the tokens a second that another loader gives from a cold dataset, and the bytes that it reads per byte."""
    files = sorted(path.glob("*.tar"))
    if loader is peers.memmap_tuned:
        flat_tokens(path)
        files = [path / "tokens.bin"]
    try:
        drop_from_cache(files)
        batches, count, before, begin = loader(path), 0, bytes_read(), time.perf_counter()
        while time.perf_counter() - begin < PEER_SECONDS:
            next(batches)
            count += 1
        tokens = count * TOKENS_PER_BATCH
        return tokens / (time.perf_counter() - begin), (bytes_read() - before) / (2 * tokens)
    finally:
        (path / "tokens.bin").unlink(missing_ok=True)


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
    libc, cached, total = ctypes.CDLL(None, use_errno=True), 0, 0
    for file in files:
        data = np.memmap(file, np.uint8, "r")
        pages = np.zeros(-(-len(data) // mmap.PAGESIZE), np.uint8)
        address, length = ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(len(data))
        if libc.mincore(address, length, ctypes.c_void_p(pages.ctypes.data)) != 0:
            raise OSError(ctypes.get_errno(), f"mincore of {file}")
        cached, total = cached + int(np.count_nonzero(pages & 1)), total + len(pages)
    return cached / total


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
