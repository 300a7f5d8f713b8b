"""Where tokens come from: shards of a dataset directory, tars of other tools, or arrays in memory."""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..shards.index import Footer, Index
from ..shards.manifest import MANIFEST_NAME, ShardInfo
from ..shards.remote.store import Store
from ..shards.remote.transport import Access, is_remote
from ..shards.resolve import resolve
from .arguments import eos_given
from .window_index import OpenShard, Tokens

INDEX_THREADS = 16  # reading an index over the network is waiting

Keys = Sequence[str] | NDArray[np.bytes_]  # as text, or its UTF-8
Source = str | PathLike[str] | Sequence[str | PathLike[str]]


class Indexed(Protocol):
    """What an index tells of a shard's documents, by which their keys are found."""

    @property
    def lengths(self) -> NDArray[np.int64]: ...

    @property
    def footer(self) -> Footer: ...


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
    open_files: int  # descriptors that an open shard holds

    def open(self, number: int) -> OpenShard:
        """Open a shard, checked against what is known of it."""

    def reopen(self, number: int) -> Tokens:
        """Return the elements of a shard that was checked before."""


class KeyedData(Data, Protocol):
    """A source whose documents have keys, by which it can be split.

    ``index_threads`` read indexes fastest; ``kept`` is a folder for what was learnt of them, if the fingerprint covers it.
    """

    index_threads: int
    kept: Path | None

    def open(self, number: int) -> KeyedShard:
        """Open a shard, checked against what is known of it."""

    def index(self, number: int) -> Indexed:
        """Return the index of a shard without opening it, and without a download where it has one of its own."""

    def keys(self, number: int, index: Indexed) -> Keys:
        """Return the key of each document of a shard, given its index or the open shard."""


class KeyedShard(OpenShard, Indexed, Protocol):
    """An open shard whose documents have keys."""


@dataclass(slots=True)
class PlainShard:
    """A shard in memory, or the index of a remote one: ``tokens`` is None until ``reopen`` brings them."""

    tokens: NDArray[Any] | None
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    footer: Footer = field(default_factory=Footer)


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
        self._urls, manifest, infos, _ = resolve(source, split, self._store)
        self._label = f"ShardDataset({_shown(source)}, split={split!r})"
        self._infos: Sequence[ShardInfo | None]
        if manifest is not None and infos is not None:
            self._infos = infos
            self.dtype = manifest.token_dtype
            vocabulary = manifest.tokenizer.get("vocab_size")
            self.eos_id = manifest.tokenizer["eos_id"] if eos_id is None else eos_given(eos_id, self.dtype, vocabulary)
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
            self.eos_id = eos_given(eos_id, self.dtype)
            self.documents = [len(index.lengths) for index in indexes]
            self.tokens = [int(index.lengths.sum()) for index in indexes]
            self.tokenizer = None
            contents = [
                [url.rpartition("/")[2], index.lengths.tobytes().hex()]
                for url, index in zip(self._urls, indexes, strict=True)
            ]
            self.fingerprint = _digest([self.dtype.str, contents])

        self._remote = any("://" in url and is_remote(url) for url in self._urls)
        self.open_files = 2 if self._remote else 1  # the map's, and the lease's
        largest = max((info.bytes for info in self._infos if info is not None), default=0)
        # The fingerprint of other tools' tars does not cover their keys.
        self.kept: Path | None = None if manifest is None else self._store.directory / "index"
        self.index_threads = INDEX_THREADS if self._remote else 1
        self.max_open = self._store.shards_at_once(largest) if self._remote and largest else sys.maxsize

    def of_sources(self) -> dict[str, ShardFiles]:
        """Return the shards of each source that the manifest names, in the order of their first shards."""
        numbers: dict[str, list[int]] = {}
        for number, info in enumerate(self._infos):
            numbers.setdefault(info.source if info is not None else "", []).append(number)
        return {source: self._only(chosen, source) for source, chosen in numbers.items()}

    def __repr__(self) -> str:
        return self._label

    def _only(self, numbers: Sequence[int], source: str) -> ShardFiles:
        """Return the same data with the shards of one source alone."""
        data = copy.copy(self)
        data._label = f"{self._label}.sources()[{source!r}]"
        data._urls, data._infos = [self._urls[k] for k in numbers], [self._infos[k] for k in numbers]
        data.documents, data.tokens = [self.documents[k] for k in numbers], [self.tokens[k] for k in numbers]
        hashes = [info.sha256 for info in data._infos if info is not None]
        data.fingerprint = _digest([self.dtype.str, self.tokenizer, hashes])
        data._unverified = {place for place, k in enumerate(numbers) if k in self._unverified}
        return data

    def open(self, number: int) -> KeyedShard:
        url, info = self._urls[number], self._infos[number]
        if is_remote(url):
            index = self._store.index(url, info)
            # Who builds a window will soon read from its shards.
            self._store.prefetch([(url, info)])
            return PlainShard(None, index.starts // index.dtype.itemsize, index.lengths, index.footer)
        shard = self._store.open(url, info, verify=number in self._unverified)
        self._unverified.discard(number)
        return shard

    def reopen(self, number: int) -> Tokens:
        return self._store.map(self._urls[number], self._infos[number], self.dtype)

    def index(self, number: int) -> Index:
        return self._store.index(self._urls[number], self._infos[number])

    def keys(self, number: int, index: Indexed) -> Keys:
        return self._store.keys(self._urls[number], index.footer, self._infos[number])


class MemoryData:
    """Tokens in memory, as one shard; ``ConfigError`` where ``lengths`` or ``eos_id`` do not fit them."""

    index_threads = 1
    open_files = 0
    kept: Path | None = None

    def __init__(
        self, tokens: NDArray[Any], lengths: NDArray[np.int64], eos_id: int | None, tokenizer: str | None, label: str
    ) -> None:
        if len(lengths) and int(lengths.min()) < 0:
            raise ConfigError(f"lengths must be at least 0, got {int(lengths.min())}")
        if int(lengths.sum()) != len(tokens):
            raise ConfigError(f"lengths sum to {int(lengths.sum())}, but there are {len(tokens)} tokens")
        self.name = ""
        self.split = "memory"
        self.dtype = tokens.dtype
        self.eos_id = eos_given(eos_id, tokens.dtype)
        self.documents = [len(lengths)]
        self.tokens = [len(tokens)]
        self.tokenizer = tokenizer
        self._label = label
        self._tokens = np.ascontiguousarray(tokens)
        self.fingerprint = _digest_of_arrays(self._tokens, lengths)
        self._shard = PlainShard(self._tokens, np.cumsum(lengths) - lengths, lengths)

    def __repr__(self) -> str:
        return self._label

    def open(self, number: int) -> KeyedShard:
        return self._shard

    def reopen(self, number: int) -> Tokens:
        return self._tokens

    def index(self, number: int) -> Indexed:
        return self._shard

    def keys(self, number: int, index: Indexed) -> list[str]:
        """Return the numbers of the documents, which have no other key."""
        return [str(document) for document in range(len(self._shard.lengths))]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


def _digest_of_arrays(*arrays: NDArray[Any]) -> str:
    """Return the sha256 of contiguous 1-D arrays, each with its dtype and size; none is copied."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str} {len(array)}\n".encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()


def _shown(source: Source) -> str:
    """Return a source as a short literal."""
    if isinstance(source, str | PathLike):
        return repr(str(source))
    names = [str(each) for each in source]
    return repr(names) if len(names) < 3 else f"[{names[0]!r}, ... {len(names) - 1:,} more]"
