"""Small shards and datasets that several test files write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.shards.extents.extent_table import EXTENT_BYTES, ExtentTable
from pipeline.shards.extents.table_file import payload_bytes, write_table
from pipeline.shards.index import ShardIndex
from pipeline.shards.manifest import Manifest, ShardInfo, Split
from pipeline.shards.shard_access import ShardAccess
from pipeline.shards.tar_members import Member, map_file, walk_or_raise
from pipeline.shards.writer import write_shard

EOS = 0
TOKENIZER = {"name": "test", "sha256": "0" * 64, "vocab_size": 60_000, "eos_id": EOS, "bos_id": None, "special_ids": {}}


def read_index(path: Path, expected: ShardInfo | None = None) -> ShardIndex:
    """Return the index of a shard on this machine."""
    return ShardAccess(use_cache=False).index(str(path), expected)


class Shard:
    """One shard on this machine: its documents as arrays; ``starts`` in tokens, ``lengths``, and the columns of its table."""

    def __init__(self, path: Path, expected: ShardInfo | None = None) -> None:
        index, raw = read_index(path, expected), np.fromfile(path, np.uint8)
        self.dtype = index.dtype
        self.starts, self.lengths = index.starts // index.dtype.itemsize, index.lengths
        self._tokens = raw[: len(raw) - len(raw) % index.dtype.itemsize].view(index.dtype)
        self._path = path

    def __len__(self) -> int:
        return len(self.lengths)

    def document(self, number: int) -> NDArray[Any]:
        return self._tokens[self.starts[number] : self.starts[number] + self.lengths[number]]

    def table(self) -> dict[str, list[Any]]:
        return ShardAccess(use_cache=False).table(str(self._path))


def scan_tar(path: Path) -> list[Member]:
    """Return every member of a tar."""
    return list(walk_or_raise(map_file(path), path))


def make_documents(count: int, seed: int = 0, longest: int = 40, dtype: str = "<u2") -> list[NDArray[Any]]:
    """Return ``count`` documents of 1 to ``longest`` ids, each closed by the end-of-text id 0."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, longest, size=count)
    return [np.append(generator.integers(1, 60_000, size=n), EOS).astype(dtype) for n in lengths]


def write_documents(
    path: Path, documents: list[NDArray[Any]], first_key: int = 0, *, dtype: str = "<u2", **options: Any
) -> ShardInfo:
    """Write ``documents`` as one shard with keys counted from ``first_key``; ``dtype`` is that of a shard of none."""
    tokens = np.concatenate(documents) if documents else np.zeros(0, dtype)
    keys = [f"{first_key + j:012d}" for j in range(len(documents))]
    return write_shard(path, tokens=tokens, lengths=[len(d) for d in documents], keys=keys, **options)[0]


def write_dataset(
    directory: Path,
    shards: list[list[NDArray[Any]]],
    split: str = "train",
    vocab_size: int = 60_000,
    tables: Sequence[Mapping[str, Sequence[Any]]] | None = None,
    **options: Any,
) -> Manifest:
    """Write ``shards`` (documents of each) as a complete dataset with one split; ``options`` are `write_shard`'s.

    ``tables``: the columns of each shard.
    """
    directory.mkdir(parents=True, exist_ok=True)
    dtype = next((document.dtype.str for documents in shards for document in documents), "<u2")
    infos, key = [], 0
    for number, documents in enumerate(shards):
        own = options if tables is None else {**options, "table": tables[number]}
        infos.append(write_documents(directory / f"{split}-{number:06d}.tar", documents, key, dtype=dtype, **own))
        key += len(documents)
    tokenizer = {**TOKENIZER, "vocab_size": vocab_size}
    return write_manifest(directory, {split: infos}, dtype=dtype, tokenizer=tokenizer)


def flip(path: Path, *places: int) -> None:
    """Change one bit of each byte at these places."""
    path.write_bytes(flipped(path.read_bytes(), *places))


def flipped(raw: bytes, *places: int) -> bytes:
    changed = bytearray(raw)
    for at in places:
        changed[at] ^= 1
    return bytes(changed)


def write_named(directory: Path, shards: Sequence[tuple[str, list[NDArray[Any]]]], **options: Any) -> Path:
    """Write shards of named sources as a dataset; ``options`` are those of `write_manifest`."""
    directory.mkdir()
    infos: list[ShardInfo] = []
    for number, (source, documents) in enumerate(shards):
        path, key = directory / f"train-{number:06d}.tar", sum(info.documents for info in infos)
        infos.append(write_documents(path, documents, key)._replace(source=source))
    write_manifest(directory, {"train": infos}, **options)
    return directory


def write_manifest(
    directory: Path,
    splits: Mapping[str, Sequence[ShardInfo]],
    *,
    dtype: str = "<u2",
    tokenizer: Mapping[str, Any] = TOKENIZER,
    extent_bytes: int = EXTENT_BYTES,
) -> Manifest:
    """Complete a dataset of shards that are there, with extents of about so many bytes."""
    tables = []
    for info in (info for _, infos in sorted(splits.items()) for info in infos):
        index, raw = read_index(directory / info.name), (directory / info.name).read_bytes()
        columns = index.starts, index.lengths, index.dtype, payload_bytes(index)
        table = ExtentTable.of_shard(*columns, indexed=True, extent_bytes=extent_bytes)
        tables.append(table.with_checksums(memoryview(raw)))
    extents = write_table(directory, tables, dtype)
    manifest = Manifest(dtype, dict(tokenizer), {name: Split(tuple(infos)) for name, infos in splits.items()}, extents)
    manifest.write(directory)
    return manifest


def index_extents(directory: Path, extent_bytes: int) -> None:
    """Give a dataset a table of extents of about so many bytes."""
    manifest = Manifest.read(directory)
    splits = {name: split.shards for name, split in manifest.splits.items()}
    options: dict[str, Any] = {"dtype": manifest.dtype, "tokenizer": manifest.tokenizer}
    write_manifest(directory, splits, extent_bytes=extent_bytes, **options)
