"""Compare the stream with webdataset on a dataset that is not in the page cache: speed, waits, bytes read.

A dataset is dropped from the page cache before each reading. Threads that read blocks in random order show the limit of
the same disk in the same run.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeline import ShardDataset
from scripts.bench import peers
from scripts.bench.data import BATCH, SEQ_LEN, TOKENS_PER_BATCH, dataset
from scripts.bench.process import bytes_read
from scripts.bench.report import table

BLOCK_BYTES, THREADS, SECONDS = 768 << 10, 8, 3.0
FIRST, AROUND_BORDER, PEER_SECONDS = 200, 300, 8.0


def cold(directory: Path) -> None:
    """Print the speed from the disk over an epoch and its end, next to the disk's limit and webdataset."""
    layouts = {
        "one document a member": dataset(directory, shards=32, documents=52_000, median=800, group=0),
        "members of 65,536 tokens": dataset(directory, shards=16, documents=52_000, median=800, group=1 << 16),
    }
    for name, path in layouts.items():
        limits = [random_blocks(path)]
        measured = stream(path)
        limit = statistics.mean([*limits, random_blocks(path)])
        peer = webdataset(path)
        rows = [
            ("bytes read a second, of random blocks", f"{measured['disk'] / limit:.2f}", f"{limit / 1e6:,.0f} MB/s"),
            # A value below 1 is invalid: the page cache held a part of the dataset.
            ("bytes read per byte used, of an epoch", f"{measured['per_byte']:.2f}", ""),
            ("steady", "", f"{measured['steady'] / 1e6:,.0f} Mtokens/s"),
            ("steady, of webdataset", f"{measured['steady'] / peer:.1f}", f"{peer / 1e6:,.1f} Mtokens/s"),
            ("first batch, from construction", "", f"{measured['begin'] * 1e3:,.0f} ms"),
            ("slowest batch inside the epoch", "", f"{measured['worst'] * 1e3:,.0f} ms"),
            ("slowest batch at the epoch's border", "", f"{measured['worst_border'] * 1e3:,.0f} ms"),
        ]
        table(f"Cold: {name}", ("", "ratio", "measured"), rows)


def stream(path: Path) -> dict[str, float]:
    """Read a cold dataset over an epoch and its end; return the measurements."""
    drop_from_cache(path)
    begin, before = time.perf_counter(), bytes_read()
    batches = iter(ShardDataset(path).shuffle(seed=0).pack(SEQ_LEN).batch(BATCH))
    next(batches)
    measured: dict[str, float] = {"begin": time.perf_counter() - begin}
    waits(batches, FIRST)
    count = len(ShardDataset(path, epochs=1).pack(SEQ_LEN).batch(BATCH)) - 1 - FIRST - AROUND_BORDER // 2
    steady_bytes, seconds = bytes_read(), waits(batches, count)
    measured |= {"steady": count * TOKENS_PER_BATCH / sum(seconds), "worst": max(seconds)}
    measured["disk"] = (bytes_read() - steady_bytes) / sum(seconds)
    measured["per_byte"] = (bytes_read() - before) / (2 * (1 + FIRST + count) * TOKENS_PER_BATCH)
    return measured | {"worst_border": max(waits(batches, AROUND_BORDER))}


def waits(batches: Iterator[Any], count: int) -> list[float]:
    """Take batches, and return the seconds of each."""
    times = [time.perf_counter()]
    for _ in range(count):
        next(batches)
        times.append(time.perf_counter())
    return [after - before for before, after in pairwise(times)]


def webdataset(path: Path) -> float:
    """Return the tokens a second of webdataset from a cold dataset."""
    drop_from_cache(path)
    batches, count, begin = peers.webdataset(path), 0, time.perf_counter()
    while time.perf_counter() - begin < PEER_SECONDS:
        next(batches)
        count += 1
    return count * TOKENS_PER_BATCH / (time.perf_counter() - begin)


def drop_from_cache(path: Path) -> None:
    for file in path.glob("*.tar"):
        handle = os.open(file, os.O_RDONLY)
        os.fdatasync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def random_blocks(path: Path) -> float:
    """Return the bytes a second that threads read of a cold dataset's blocks in random order."""
    drop_from_cache(path)
    files = sorted(path.glob("*.tar"))
    blocks = [(file, k * BLOCK_BYTES) for file in files for k in range(file.stat().st_size // BLOCK_BYTES)]
    random.Random(1).shuffle(blocks)
    begin = time.perf_counter()

    def read(thread: int) -> int:
        buffer, done = bytearray(BLOCK_BYTES), 0
        for file, offset in blocks[thread::THREADS]:
            if time.perf_counter() - begin > SECONDS:
                break
            handle = os.open(file, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
            done += os.preadv(handle, [buffer], offset)
            os.close(handle)
        return done

    with ThreadPoolExecutor(THREADS) as threads:
        done = sum(threads.map(read, range(THREADS)))
    return done / (time.perf_counter() - begin)
