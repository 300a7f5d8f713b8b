"""Compare the stream, MosaicML Streaming, litdata and webdataset from a server 30 ms away behind 100 MB/s.

Loaders read in processes of their own from a server that counts requests and bytes. The large dataset lists each of its files
under several names, as hard links, so it takes less disk than it seems to hold; nothing that is measured on it is cached.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.shards.manifest import Manifest
from scripts.bench import peers
from scripts.bench.child import counts
from scripts.bench.commits import ROOT, environment
from scripts.bench.data import TOKENS_PER_BATCH, dataset, read_inputs
from scripts.bench.report import Report

LATENCY, RATE = 0.03, 100e6
SHARDS, COPIES, DOCUMENTS, MEDIAN = 8, 12, 62_000, 800  # 20 GB
TOKEN_BYTES = 2
BENCH = ROOT / "scripts" / "bench"
CARD = """---
configs:
- config_name: lines
  data_files: lines/*
- config_name: parquet
  data_files: parquet/*
---
"""


def remote(directory: Path, report: Report) -> None:
    """First batch, speed, bytes and memory of each loader, then of readers that share a cache."""
    sizes: dict[str, Any] = {"shards": SHARDS, "copies": COPIES, "documents": DOCUMENTS, "median": MEDIAN}
    members = dataset(directory, **sizes, group=0)
    groups = dataset(directory, **sizes, group=1 << 16)
    rows = []
    with serving(members) as url:
        rows += row("packed", url, report)
        rows += row("packed", url, report, index=1_500_000)
        rows += row("packed", url, report, s3=True)
        rows += row("webdataset", url, report)
    with serving(groups) as url:
        rows += row("packed", url, report, note="members of 65,536 tokens")
    with serving(groups, tls=True) as url:
        rows += row("packed", url, report, busy=True, note="https, members of 65,536 tokens, main thread busy")
    tokens = sum(info.tokens for info in Manifest.read(groups).shards)
    for name in peers.installed():
        with (
            serving(peers.peer_dataset(directory, name, copies=COPIES, tokens=tokens // COPIES)) as url,
            tempfile.TemporaryDirectory(dir=directory) as cache,
        ):
            rows += row(name, url, report, cache=cache)
    heads = ("loader", "first batch, s", "MB before", "requests", "Mtokens/s", "bytes per byte", "memory, MB")
    report.table(f"From {LATENCY * 1e3:.0f} ms away behind {RATE / 1e6:.0f} MB/s", heads, rows)
    shared_cache(directory, report)


def row(stream: str, url: str, report: Report, note: str = "", **options: Any) -> list[tuple[str, ...]]:
    """Measure a loader; return its row of the table, or none where it cannot read."""
    name = ", ".join([stream, *([note] if note else map(str, options if "cache" not in options else ["s3"]))])
    try:
        request = {"stream": stream, "data": url, "counts": url, "warm": 10.0, "seconds": 15.0, **options}
        found = run_child(request, ROOT, SSL_CERT_FILE=str(certificate()))
    except RuntimeError as error:
        report.note(f"{name}: left out: {error}")
        return []
    before, after, tokens = found["before_first"], found["after"], found["batches"] * TOKENS_PER_BATCH
    return [
        (
            name,
            f"{found['first']:.2f}",
            f"{before['bytes'] / 1e6:.1f}",
            f"{before['requests']:,}",
            f"{tokens / found['seconds'] / 1e6:.1f}",
            f"{after['bytes'] / max(1, tokens * TOKEN_BYTES):.2f}",
            f"{found['memory'] / 1e6:,.0f}",
        )
    ]


def shared_cache(directory: Path, report: Report) -> None:
    """Bytes that workers, and ranks, of one machine read together over an epoch, with one cache."""
    path = dataset(directory, shards=SHARDS, documents=DOCUMENTS // 16, median=MEDIAN, group=0)
    rows, one = [], 1.0
    with serving(path, rate=0.0) as url, tempfile.TemporaryDirectory(dir=directory) as cache:
        for name, ranks, workers in (("one process", 1, 0), ("4 workers", 1, 4), ("4 ranks", 4, 0), ("again", 4, 0)):
            counts(url)
            request = {"data": url, "cache": cache, "epochs": 1, "warm": 0.0, "seconds": -1.0, "workers": workers}
            with ThreadPoolExecutor(ranks) as pool:
                list(
                    pool.map(lambda r, q=request, n=ranks: run_child({**q, "rank": r, "ranks": n}, ROOT), range(ranks))
                )
            size = counts(url)["bytes"]
            one = size if name == "one process" else one
            rows.append((name, f"{size / one:.2f}", f"{size / 1e6:,.0f}"))
            if name != "4 ranks":
                shutil.rmtree(cache, ignore_errors=True)
    report.table("One cache, an epoch", ("", "bytes of one process", "MB"), rows)


def run_child(request: dict[str, Any], tree: Path, **variables: str) -> dict[str, Any]:
    """Return what a process measures that reads by the library of a tree. Raises ``RuntimeError`` with its error."""
    argument = json.dumps({**request, "began": time.monotonic()})
    command = [sys.executable, str(BENCH / "child.py"), argument]
    done = subprocess.run(command, capture_output=True, text=True, env={**environment(tree), **variables}, cwd=tree)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if re.match(r"\w[\w.]*: ", line)]
        raise RuntimeError(errors[-1] if errors else f"exit {done.returncode}: {done.stderr[-500:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@contextmanager
def serving(path: Path, *, rate: float = RATE, tls: bool = False) -> Iterator[str]:
    """Serve the folder of a dataset from a process of its own; give the url of the dataset."""
    options = [f"--rate={rate}", *(["--tls", str(certificate())] if tls else [])]
    with server(path.parent, options) as port:
        yield f"http{'s' * tls}://127.0.0.1:{port}/{path.name}"


@contextmanager
def hub(folder: Path, files: Sequence[str]) -> Iterator[str]:
    """Serve files of text, and the same as Parquet with row groups of 1,000, as the dataset ``org/name`` of a hub."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("lines", "parquet"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files):
        shutil.copyfile(file, folder / "lines" / Path(file).name)
        documents = list(read_inputs([file]))
        table = pa.table({"id": [each.id for each in documents], "text": [each.text for each in documents]})
        pq.write_table(table, folder / "parquet" / f"train-{number:05d}.parquet", row_group_size=1000)
    (folder / "README.md").write_text(CARD)
    with server(folder, [f"--rate={RATE}", "--hub"]) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def server(folder: Path, options: Sequence[str]) -> Iterator[int]:
    """Start the server of `server.py`; give its port."""
    command = [sys.executable, str(BENCH / "server.py"), str(folder), f"--latency={LATENCY}", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def certificate() -> Path:
    """Return a file of a certificate for this machine and its key, made by openssl where it is not there yet."""
    path = Path(tempfile.gettempdir()) / f"shardwright-bench-{os.getuid()}.pem"
    if not path.exists():
        command = "openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=127.0.0.1 -addext"
        subprocess.run(
            [*command.split(), "subjectAltName=IP:127.0.0.1", "-keyout", f"{path}.key", "-out", f"{path}.crt"],
            check=True,
            capture_output=True,
        )
        path.write_text(Path(f"{path}.key").read_text() + Path(f"{path}.crt").read_text())
    ssl.create_default_context(cafile=path)  # fails here where it is no certificate
    return path
