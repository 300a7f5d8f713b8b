"""The synthetic datasets of ``bench_stream.py``, written where they are not there yet."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.shards.manifest import Manifest, ShardInfo, Split
from pipeline.shards.writer import write_shard

TOKENIZER = {"name": "bench", "sha256": "0" * 64, "vocab_size": 60_000, "eos_id": 0, "bos_id": None, "special_ids": {}}


def dataset(directory: Path, *, shards: int, documents: int, median: int, copies: int = 1) -> Path:
    """Return a dataset of synthetic documents, written where it is not there yet.

    Each of ``shards`` files is listed ``copies`` times under other names (as hard links), to get very many shards.
    """
    path = directory / f"{shards}x{copies}-{documents}-{median}"
    if (path / "manifest.json").exists():
        return path
    path.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    infos: list[ShardInfo] = []
    for number in range(shards):
        original = path / f"original-{number:06d}.tar"
        info = write_synthetic(original, generator, number, documents // shards, median, tokens_per_sample=1 << 20)
        for copy in range(copies):
            name = f"train-{number * copies + copy:06d}.tar"
            (path / name).unlink(missing_ok=True)
            os.link(original, path / name)
            infos.append(info._replace(name=name))
    Manifest("<u2", TOKENIZER, {"train": Split(tuple(infos))}).write(path)
    return path


def write_synthetic(
    path: Path, generator: np.random.Generator, number: int, documents: int, median: int, tokens_per_sample: int = 0
) -> ShardInfo:
    """Write one shard of drawn tokens, with as many documents; return what a manifest says of it."""
    lengths = np.minimum(generator.lognormal(np.log(median), 0.9, documents) + 1, 20_000).astype(np.int64)
    tokens = generator.integers(1, 60_000, int(lengths.sum())).astype("<u2")
    keys = [f"{number:06d}{j:08d}" for j in range(documents)]
    return write_shard(path, tokens=tokens, lengths=lengths, keys=keys, tokens_per_sample=tokens_per_sample)


def flat_tokens(path: Path) -> NDArray[np.uint16]:
    """Return all tokens of a dataset as one memory-mapped file, as nanoGPT wants them."""
    file = path / "tokens.bin"
    if not file.exists():
        from pipeline.shards.reader import Shard

        with file.open("wb") as out:
            for info in Manifest.read(path).split("train").shards:
                shard = Shard(path / info.name)
                for number in range(len(shard)):
                    out.write(shard.document(number).tobytes())
    return np.memmap(file, dtype="<u2", mode="r")


def dataset_of_single_samples(directory: Path) -> Path:
    """Return a dataset with one document a member, as builds write them."""
    path = directory / "members"
    if not (path / "manifest.json").exists():
        path.mkdir(parents=True, exist_ok=True)
        generator = np.random.default_rng(0)
        files = [path / f"train-{number:06d}.tar" for number in range(4)]
        infos = [write_synthetic(file, generator, number, 5_000, 600) for number, file in enumerate(files)]
        Manifest("<u2", TOKENIZER, {"train": Split(tuple(infos))}).write(path)
    return path
