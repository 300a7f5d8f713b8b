"""Where tokens come from: shards of a dataset directory, tars of other tools, or arrays in memory."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..shards.dataset import resolve
from ..shards.manifest import MANIFEST_NAME, ShardInfo
from ..shards.remote import Access, is_remote
from ..shards.store import Store
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


@dataclass(frozen=True, slots=True)
class RemoteShard:
    """The index of a remote shard, read without it: its elements come when they are asked for by ``reopen``."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    tokens: None = None


class ShardFiles:
    """Shards in order, on disk or remote, with what the manifest says of each, or the index of tars that have none.

    Remote shards come through a cache in ``cache_dir`` of at most ``cache_limit`` bytes; ``storage_options`` go to
    fsspec. ``max_open`` is how many shards fit there at once.
    """

    def __init__(
        self,
        source: Source,
        split: str,
        *,
        verify: bool,
        cache_dir: str | None,
        eos_id: int | None,
        cache_limit: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = ""
        self.split = split
        self._store = Store(cache_dir, cache_limit, Access(options=storage_options or {}))
        self._unverified: set[int] = set()
        self._urls, manifest, infos = resolve(source, split, self._store)
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
            indexes = [self._store.index(url) for url in self._urls]
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
                [url.rpartition("/")[2], index.lengths.tobytes().hex()]
                for url, index in zip(self._urls, indexes, strict=True)
            ]
            self.fingerprint = _digest([self.dtype.str, contents])

        self._remote = any(is_remote(url) for url in self._urls)
        largest = max((info.bytes for info in self._infos if info is not None), default=0)
        self.max_open = self._store.shards_at_once(largest) if self._remote and largest else sys.maxsize

    def open(self, number: int) -> OpenShard:
        url, info = self._urls[number], self._infos[number]
        if is_remote(url):
            index = self._store.index(url, info)
            # Who builds a window will soon read from its shards.
            self._store.prefetch([(url, info)])
            return RemoteShard(index.starts // index.dtype.itemsize, index.lengths)
        shard = self._store.open(url, info, verify=number in self._unverified)
        self._unverified.discard(number)
        return shard

    def reopen(self, number: int) -> Tokens:
        return self._store.map(self._urls[number], self._infos[number], self.dtype)


@dataclass(slots=True)
class MemoryShard:
    """One shard in memory: an array of tokens, and where its documents begin and how long they are."""

    tokens: NDArray[Any]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


class MemoryData:
    """Tokens in memory, as one shard."""

    def __init__(self, tokens: NDArray[Any], lengths: NDArray[np.int64], eos_id: int, tokenizer: str | None) -> None:
        if len(lengths) and int(lengths.min()) < 0:
            raise ConfigError(f"lengths must be at least 0, got {int(lengths.min())}")
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


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()
