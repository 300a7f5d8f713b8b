"""MosaicML Streaming and litdata for ``bench_stream.py remote``: their datasets, and loaders that read them.

Both are measured where they are installed, over the S3 protocol, at their defaults: shuffled, one process, a cache on disk
without a limit, samples that were cut to a sequence when they were written, which spares them the packing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

SEQ_LEN, BATCH = 2048, 32
KEYS = ("bench", "s3cret")  # that S3 is asked with
_FILE_BYTES = 64 << 20
_NAMES = {"mosaicml": "streaming", "litdata": "litdata"}  # of packages


def installed() -> list[str]:
    """Return which of them can be measured."""
    return [name for name, package in _NAMES.items() if find_spec(package) is not None]


def dataset(directory: Path, name: str, *, copies: int, tokens: int) -> Path:
    """Return a loader's dataset of random tokens whose files are listed ``copies`` times each, as hard links."""
    path = directory / f"remote-{name}-{copies}-{tokens}"
    index = path / "index.json"
    if index.exists():
        return path
    generator = np.random.default_rng(0)
    rows = (generator.integers(1, 60_000, SEQ_LEN + 1).astype("<u2") for _ in range(tokens // (SEQ_LEN + 1)))
    (_write_mosaicml if name == "mosaicml" else _write_litdata)(path, rows)
    found = json.loads(index.read_text())
    if name == "mosaicml":
        found["shards"] = [
            _linked(path, each, ("raw_data", "basename"), k) for each in found["shards"] for k in range(copies)
        ]
    else:
        found["chunks"] = [_linked(path, each, ("filename",), k) for each in found["chunks"] for k in range(copies)]
    index.write_text(json.dumps(found))
    return path


def _write_mosaicml(path: Path, rows: Iterator[Any]) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(path), columns={"tokens": "ndarray:uint16"}, size_limit=_FILE_BYTES) as writer:
        for row in rows:
            writer.write({"tokens": row})


def _write_litdata(path: Path, rows: Iterator[Any]) -> None:
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(path), chunk_bytes=_FILE_BYTES, item_loader=TokensLoader(SEQ_LEN + 1))
    for number, row in enumerate(rows):
        writer.add_item(number, row)
    writer.done()
    writer.merge(1)


def _linked(path: Path, file: dict[str, Any], keys: tuple[str, ...], number: int) -> dict[str, Any]:
    """Return the entry of a file under a further name."""
    entry: dict[str, Any] = json.loads(json.dumps(file))
    holder = entry
    for key in keys[:-1]:
        holder = holder[key]
    name = holder[keys[-1]]
    if number:
        holder[keys[-1]] = f"{number:03d}-{name}"
        os.link(path / name, path / holder[keys[-1]])
    return entry


def bucket(url: str) -> str:
    """Have clients of S3 ask the server of a url; return the address of the same directory there."""
    server, _, name = url.rpartition("/")
    os.environ.update(
        zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), KEYS, strict=True), AWS_DEFAULT_REGION="us-east-1"
    )
    os.environ.update(AWS_ALLOW_HTTP="true", AWS_ENDPOINT_URL=server, S3_ENDPOINT_URL=server)
    return f"s3://{name}"


def mosaicml(request: dict[str, Any]) -> Any:
    """Return a loader of MosaicML Streaming."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    data = StreamingDataset(
        remote=bucket(request["url"]),
        local=request["cache"],
        shuffle=True,
        batch_size=BATCH,
    )
    return DataLoader(data, batch_size=BATCH)


def litdata(request: dict[str, Any]) -> Any:
    """Return a loader of litdata."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    data = StreamingDataset(
        bucket(request["url"]),
        cache_dir=request["cache"],
        item_loader=TokensLoader(SEQ_LEN + 1),
        shuffle=True,
        storage_options={"endpoint_url": os.environ["S3_ENDPOINT_URL"]},
    )
    return StreamingDataLoader(data, batch_size=BATCH)
