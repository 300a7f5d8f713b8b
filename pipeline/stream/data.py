"""Where tokens come from: shards of a dataset directory, tars of other tools, or arrays in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, ManifestError, TruncatedShardError
from ..shards.manifest import MANIFEST_NAME, Manifest, ShardInfo
from ..shards.reader import Shard, read_index
from .windows import OpenShard, Tokens

Source = str | PathLike[str] | Sequence[str | PathLike[str]]


class Data(Protocol):
    """One source of documents: counts of every shard, known without opening it, and a way to open it."""

    name: str
    split: str
    dtype: np.dtype[Any]
    eos_id: int
    documents: list[int]
    tokens: list[int]
    fingerprint: str
    tokenizer: str | None

    def open(self, number: int) -> OpenShard:
        """Open a shard, checked against what is known of it."""

    def reopen(self, number: int) -> Tokens:
        """Return the elements of a shard that was checked before."""


class ShardFiles:
    """Shards on disk, in order, with what the manifest says of each, or the index of tars that have none."""

    def __init__(self, source: Source, split: str, *, verify: bool, cache_dir: str | None, eos_id: int | None) -> None:
        self.name = ""
        self.split = split
        self._cache_dir = cache_dir
        self._unverified: set[int] = set()
        manifest, self._paths, infos = _resolve(source, split)
        self._infos: Sequence[ShardInfo | None]
        if manifest is not None and infos is not None:
            self._infos = infos
            self.dtype = manifest.token_dtype
            self.eos_id = manifest.tokenizer["eos_id"] if eos_id is None else eos_id
            self.documents = [info.documents for info in infos]
            self.tokens = [info.tokens for info in infos]
            self.tokenizer: str | None = manifest.tokenizer.get("sha256")
            self.fingerprint = _digest([manifest.dtype, self.tokenizer, [info.sha256 for info in infos]])
            self._unverified = set(range(len(infos))) if verify else set()
        else:
            if verify:
                raise ConfigError(
                    f"verify=True needs a {MANIFEST_NAME} with the hashes of the shards, none lies beside {source}"
                )
            indexes = [read_index(path, cache_dir) for path in self._paths]
            self._infos = [None] * len(indexes)
            dtypes = {index.dtype for index in indexes}
            if len(dtypes) != 1:
                raise ConfigError(f"shards of one stream need one dtype, {source} holds {sorted(map(str, dtypes))}")
            self.dtype = dtypes.pop()
            self.eos_id = eos_id or 0
            self.documents = [len(index.lengths) for index in indexes]
            self.tokens = [int(index.lengths.sum()) for index in indexes]
            self.tokenizer = None
            contents = [
                [path.name, index.lengths.tobytes().hex()] for path, index in zip(self._paths, indexes, strict=True)
            ]
            self.fingerprint = _digest([self.dtype.str, contents])

    def open(self, number: int) -> OpenShard:
        verify = number in self._unverified
        shard = Shard(self._paths[number], self._infos[number], verify, self._cache_dir)
        self._unverified.discard(number)
        return shard

    def reopen(self, number: int) -> Tokens:
        path, info = self._paths[number], self._infos[number]
        data = np.memmap(path, dtype=np.uint8, mode="r")
        if info is not None and len(data) != info.bytes:
            raise TruncatedShardError(f"{path}: {len(data)} bytes, but it had {info.bytes} when it was opened before")
        return np.asarray(data[: len(data) - len(data) % self.dtype.itemsize]).view(self.dtype)


@dataclass(slots=True)
class MemoryShard:
    """One shard in memory: an array of tokens, and where its documents begin and how long they are."""

    tokens: NDArray[Any]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


class MemoryData:
    """Tokens in memory, as one shard."""

    def __init__(self, tokens: NDArray[Any], lengths: NDArray[np.int64], eos_id: int, tokenizer: str | None) -> None:
        if int(lengths.sum()) != len(tokens):
            raise ConfigError(f"lengths sum to {int(lengths.sum())}, but there are {len(tokens)} tokens")
        self.name = ""
        self.split = "memory"
        self.dtype = tokens.dtype
        self.eos_id = eos_id
        self.documents = [len(lengths)]
        self.tokens = [len(tokens)]
        self.tokenizer = tokenizer
        self.fingerprint = hashlib.sha256(tokens.tobytes() + lengths.tobytes()).hexdigest()
        self._shard = MemoryShard(np.ascontiguousarray(tokens), np.cumsum(lengths) - lengths, lengths)

    def open(self, number: int) -> OpenShard:
        return self._shard

    def reopen(self, number: int) -> Tokens:
        return self._shard.tokens


def _resolve(source: Source, split: str) -> tuple[Manifest | None, list[Path], list[ShardInfo] | None]:
    """Return the manifest that covers ``source`` (or None), its shards' paths, and their entries."""
    if isinstance(source, str | PathLike) and (Path(source) / MANIFEST_NAME).is_file():
        manifest = Manifest.read(Path(source))
        infos = list(manifest.split(split).shards)
        return manifest, [Path(source) / info.name for info in infos], infos
    if isinstance(source, str | PathLike) and Path(source).is_dir() and not any(Path(source).glob("*.tar")):
        Manifest.read(Path(source))  # raises, saying what a complete dataset needs
    from ..shards.storage import expand

    paths = [Path(each) for each in expand(source)]
    folders = {path.parent for path in paths}
    if len(folders) == 1 and (folder := folders.pop()).joinpath(MANIFEST_NAME).is_file():
        manifest = Manifest.read(folder)
        known = {info.name: info for each in manifest.splits.values() for info in each.shards}
        strangers = [path.name for path in paths if path.name not in known]
        if strangers:
            raise ManifestError(f"{folder / MANIFEST_NAME} does not name {strangers[0]}; list only the shards it names")
        return manifest, paths, [known[path.name] for path in paths]
    return None, paths, None


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()
