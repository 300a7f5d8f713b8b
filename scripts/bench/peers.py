"""Other loaders that read the same tokens as the stream."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scripts.bench.data import BATCH, SEQ_LEN, TOKENS_PER_BATCH, flat_tokens


def copy_and_cast() -> Iterator[Any]:
    """Yield one batch of stored ids, cast to ids and labels each time: the limit."""
    tokens = np.random.default_rng(0).integers(1, 60_000, (BATCH, SEQ_LEN + 1)).astype("<u2")
    while True:
        yield torch.from_numpy(tokens[:, :-1].astype(np.int64)), torch.from_numpy(tokens[:, 1:].astype(np.int64))


def memmap_windows(path: Path) -> Iterator[Any]:
    """Yield random windows of a mapped file as nanoGPT's train.py draws them."""
    tokens, generator = flat_tokens(path), np.random.default_rng(0)
    while True:
        starts = generator.integers(0, len(tokens) - SEQ_LEN - 1, BATCH)
        x = torch.stack([torch.from_numpy(tokens[i : i + SEQ_LEN].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + SEQ_LEN].astype(np.int64)) for i in starts])
        yield x, y


def memmap_tuned(path: Path) -> Iterator[Any]:
    """Yield random windows at less cost than `memmap_windows`: a plain array, Python integers, rows cast into the batch."""
    tokens, generator = np.asarray(flat_tokens(path)), np.random.default_rng(0)
    while True:
        x, y = np.empty((BATCH, SEQ_LEN), np.int64), np.empty((BATCH, SEQ_LEN), np.int64)
        for row, i in enumerate(generator.integers(0, len(tokens) - SEQ_LEN - 1, BATCH).tolist()):
            x[row] = tokens[i : i + SEQ_LEN]
            y[row] = tokens[i + 1 : i + 1 + SEQ_LEN]
        yield torch.from_numpy(x), torch.from_numpy(y)


class MemmapDataset(torch.utils.data.Dataset[Any]):
    """Windows of a mapped file by index, as in PyTorch's tutorials, for a DataLoader that shuffles and batches."""

    def __init__(self, path: Path) -> None:
        self._tokens: NDArray[np.uint16] = flat_tokens(path)

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // SEQ_LEN

    def __getitem__(self, index: int) -> Any:
        part = self._tokens[index * SEQ_LEN : (index + 1) * SEQ_LEN + 1].astype(np.int64)
        return torch.from_numpy(part[:-1]), torch.from_numpy(part[1:])


def webdataset(location: str | Path) -> Iterator[Any]:
    """Yield batches of the same shards by webdataset: shards and samples shuffled, decoded, joined and cut."""
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
