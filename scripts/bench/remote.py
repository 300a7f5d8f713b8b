"""Compare the stream and webdataset from a server 30 ms away at 100 MB/s.

Each loader reads in its own process from a server that counts requests and bytes. The dataset lists each file under several
names, as hard links, so the disk holds less than the dataset's size. Nothing that is measured is cached.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.bench.child import ROOT, run_child
from scripts.bench.data import TOKENS_PER_BATCH, dataset
from scripts.bench.report import table

LATENCY, RATE = 0.03, 100e6
SHARDS, COPIES, DOCUMENTS, MEDIAN = 8, 12, 62_000, 800  # 20 GB
TOKEN_BYTES = 2
SIZES: dict[str, dict[str, int]] = {
    "10 MB": {"shards": 1, "documents": 3_100},
    "100 MB": {"shards": 2, "documents": 15_500},
    "1 GB": {"shards": 1, "copies": 8, "documents": 39_000},
    "20 GB": {"shards": SHARDS, "copies": COPIES, "documents": DOCUMENTS},
}
KINDS = ("packed", "best fit", "documents")


def remote(directory: Path) -> None:
    """Print the first batch for data of each size and kind; then speed, bytes and memory of each loader."""
    first = [first_batches(directory, size, options) for size, options in SIZES.items()]
    sized = ("first batch, s / requests before it", *KINDS, "mix of four")
    table(f"Sizes, from {LATENCY * 1e3:.0f} ms away at {RATE / 1e6:.0f} MB/s", sized, first)
    sizes: dict[str, Any] = {"shards": SHARDS, "copies": COPIES, "documents": DOCUMENTS, "median": MEDIAN}
    members = dataset(directory, **sizes, group=0)
    groups = dataset(directory, **sizes, group=1 << 16)
    with serving(members) as url:
        rows = [
            row("one document a member", url),
            row("the same, resumed in mid-epoch", url, index=1_500_000),
            row("webdataset", url, peer=True),
        ]
    with serving(groups) as url:
        rows.append(row("members of 65,536 tokens", url))
    with serving(groups, tls=True) as url:
        rows.append(row("the same by https, main thread busy", url, busy=True))
    heads = ("loader", "first batch, s", "MB before", "requests", "Mtokens/s", "bytes per byte", "memory, MB")
    table(f"From {LATENCY * 1e3:.0f} ms away at {RATE / 1e6:.0f} MB/s", heads, rows)


def first_batches(directory: Path, size: str, options: dict[str, int]) -> tuple[str, ...]:
    """Measure the first batch of each kind in new processes; return the row of a size."""
    with serving(dataset(directory, **options, median=MEDIAN, group=0)) as url:
        requests = [{"data": url, "rows": kind} for kind in KINDS] + [{"data": [url] * 4}]
        measured = [run_child({**request, "counts": url}) for request in requests]
    return size, *(f"{each['first']:.1f} / {each['before_first']['requests']:,}" for each in measured)


def row(name: str, url: str, **options: Any) -> tuple[str, ...]:
    """Measure a loader; return its row of the table."""
    request = {"data": url, "counts": url, "warm": 10.0, "seconds": 15.0, **options}
    measured = run_child(request, SSL_CERT_FILE=str(certificate()))
    before, after = measured["before_first"], measured["after"]
    tokens = measured["batches"] * TOKENS_PER_BATCH
    return (
        name,
        f"{measured['first']:.2f}",
        f"{before['bytes'] / 1e6:.1f}",
        f"{before['requests']:,}",
        f"{tokens / measured['seconds'] / 1e6:.1f}",
        f"{after['bytes'] / max(1, tokens * TOKEN_BYTES):.2f}",
        f"{measured['memory'] / 1e6:,.0f}",
    )


@contextmanager
def serving(path: Path, *, tls: bool = False) -> Iterator[str]:
    """Serve the folder of a dataset from another process; yield the url of the dataset."""
    server = [sys.executable, str(ROOT / "scripts/bench/server.py"), str(path.parent), str(LATENCY), str(RATE)]
    with subprocess.Popen([*server, *[str(certificate())] * tls], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http{'s' * tls}://127.0.0.1:{int(process.stdout.readline())}/{path.name}"
        finally:
            process.terminate()


def certificate() -> Path:
    """Return a file with a certificate for this machine and its key. If it does not exist, openssl makes it."""
    path = Path(tempfile.gettempdir()) / f"shardwright-bench-{os.getuid()}.pem"
    if not path.exists():
        command = "openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=127.0.0.1 -addext"
        subprocess.run(
            [*command.split(), "subjectAltName=IP:127.0.0.1", "-keyout", f"{path}.key", "-out", f"{path}.crt"],
            check=True,
            capture_output=True,
        )
        path.write_text(Path(f"{path}.key").read_text() + Path(f"{path}.crt").read_text())
    ssl.create_default_context(cafile=path)  # fails here if it is not a certificate
    return path
