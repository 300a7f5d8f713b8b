"""Loaders of other libraries, which read the same tokens as the stream.

MosaicML Streaming and litdata read datasets of their own, over the S3 protocol, at their defaults: shuffled, one process, a
cache on disk without a limit. Their samples were cut to a sequence when they were written, which spares them the packing.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scripts.bench.data import BATCH, SEQ_LEN, TOKENS_PER_BATCH, flat_tokens

KEYS = ("bench", "s3cret")  # of the S3 server
_FILE_BYTES = 64 << 20
_PACKAGES = {"mosaicml": "streaming", "litdata": "litdata"}


# On disk


def copy_and_cast() -> Iterator[Any]:
    """The limit: one batch of stored ids, cast to ids and labels again and again."""
    tokens = np.random.default_rng(0).integers(1, 60_000, (BATCH, SEQ_LEN + 1)).astype("<u2")
    while True:
        yield torch.from_numpy(tokens[:, :-1].astype(np.int64)), torch.from_numpy(tokens[:, 1:].astype(np.int64))


def memmap_windows(path: Path) -> Iterator[Any]:
    """Random windows as nanoGPT's train.py draws them, from a file mapped once."""
    tokens, generator = flat_tokens(path), np.random.default_rng(0)
    while True:
        starts = generator.integers(0, len(tokens) - SEQ_LEN - 1, BATCH)
        x = torch.stack([torch.from_numpy(tokens[i : i + SEQ_LEN].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + SEQ_LEN].astype(np.int64)) for i in starts])
        yield x, y


def memmap_tuned(path: Path) -> Iterator[Any]:
    """The same without its costs: a plain array, Python integers, rows cast straight into the batch."""
    tokens, generator = np.asarray(flat_tokens(path)), np.random.default_rng(0)
    while True:
        x, y = np.empty((BATCH, SEQ_LEN), np.int64), np.empty((BATCH, SEQ_LEN), np.int64)
        for row, i in enumerate(generator.integers(0, len(tokens) - SEQ_LEN - 1, BATCH).tolist()):
            x[row] = tokens[i : i + SEQ_LEN]
            y[row] = tokens[i + 1 : i + 1 + SEQ_LEN]
        yield torch.from_numpy(x), torch.from_numpy(y)


class MemmapDataset(torch.utils.data.Dataset[Any]):
    """Windows of a mapped file by index, as PyTorch's tutorials write it: a DataLoader shuffles, batches and has workers."""

    def __init__(self, path: Path) -> None:
        self._tokens: NDArray[np.uint16] = flat_tokens(path)

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // SEQ_LEN

    def __getitem__(self, index: int) -> Any:
        part = self._tokens[index * SEQ_LEN : (index + 1) * SEQ_LEN + 1].astype(np.int64)
        return torch.from_numpy(part[:-1]), torch.from_numpy(part[1:])


def webdataset(location: str | Path) -> Iterator[Any]:
    """The same shards through webdataset: shards and samples shuffled, decoded, joined and cut."""
    import webdataset as wds

    if remote := str(location).startswith("http"):
        with urllib.request.urlopen(f"{location}/manifest.json") as answer:
            manifest = json.load(answer)
    else:
        manifest = json.loads(Path(location, "manifest.json").read_text())
    names = [info["name"] for info in manifest["splits"]["train"]["shards"]]
    urls = [f"pipe:curl -s {location}/{name}" if remote else str(Path(location, name)) for name in names]
    samples = wds.WebDataset(urls, shardshuffle=len(urls), resampled=True).shuffle(1000).decode()
    need, parts, size = TOKENS_PER_BATCH + 1, [], 0
    for sample in samples:
        parts.append(sample["npy"])
        size += len(parts[-1])
        while size >= need:
            joined = np.concatenate(parts)
            batch = torch.from_numpy(joined[:need].astype(np.int64))
            yield batch[:-1].view(BATCH, SEQ_LEN), batch[1:].view(BATCH, SEQ_LEN)
            parts, size = [joined[need - 1 :]], len(joined) - need + 1


# From afar


def installed() -> list[str]:
    """Return which of MosaicML Streaming and litdata can be measured."""
    return [name for name, package in _PACKAGES.items() if find_spec(package) is not None]


def peer_dataset(directory: Path, name: str, *, copies: int, tokens: int) -> Path:
    """Return a loader's dataset of random tokens whose files are listed ``copies`` times each, as hard links."""
    path = directory / f"remote-{name}-{copies}-{tokens}"
    index = path / "index.json"
    if index.exists():
        return path
    generator = np.random.default_rng(0)
    rows = (generator.integers(1, 60_000, SEQ_LEN + 1).astype("<u2") for _ in range(tokens // (SEQ_LEN + 1)))
    (_write_mosaicml if name == "mosaicml" else _write_litdata)(path, rows)
    written = json.loads(index.read_text())
    group, keys = ("shards", ("raw_data", "basename")) if name == "mosaicml" else ("chunks", ("filename",))
    written[group] = [_linked(path, file, keys, number) for file in written[group] for number in range(copies)]
    index.write_text(json.dumps(written))
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


def mosaicml(url: str, cache: str) -> Any:
    """Return a loader of MosaicML Streaming."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    data = StreamingDataset(remote=bucket(url), local=cache, shuffle=True, batch_size=BATCH)
    return DataLoader(data, batch_size=BATCH)


def litdata(url: str, cache: str) -> Any:
    """Return a loader of litdata."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    remote = bucket(url)
    options = {"endpoint_url": os.environ["S3_ENDPOINT_URL"]}
    data = StreamingDataset(
        remote, cache_dir=cache, item_loader=TokensLoader(SEQ_LEN + 1), shuffle=True, storage_options=options
    )
    return StreamingDataLoader(data, batch_size=BATCH)
