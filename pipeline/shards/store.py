"""Shards by url or path: whole in a cache, and their indexes by two small reads."""

from __future__ import annotations

import os
import secrets
import urllib.parse
import weakref
from pathlib import Path
from typing import Any

from ..errors import ConfigError, CorruptShardError
from ..objects.access import Access, ObjectInfo
from ..objects.cache import Cache, Lease, object_id
from ..objects.remote_object import describe, download, read_range
from ..objects.urls import identity, is_remote, local_name, shown
from ..user_cache import default_directory
from .foreign import foreign_contents
from .format import TAIL
from .index import Index, compare, parse_footer, parse_index, parse_table
from .manifest import ShardInfo
from .reader import Shard, read_index

_SPARE_SHARDS = 8  # of a cache that is full, for those that are opened next


class Store:
    """Shards by url or path. It can be pickled: workers of any kind share its cache.

    ``cache_dir`` (default: ``$SHARDWRIGHT_CACHE``, else the user's cache directory) holds at most ``cache_limit`` bytes
    of blocks and shards (default: all but a tenth of the disk). ``keeps=False`` writes nothing: whole shards are refused.

    >>> import fsspec, tempfile, numpy as np
    >>> from pipeline.shards.writer import write_shard
    >>> folder = tempfile.TemporaryDirectory()
    >>> info = write_shard(f"{folder.name}/a.tar", tokens=np.arange(3, dtype="<u2"), lengths=[3], keys=["k"])
    >>> files = fsspec.filesystem("memory")
    >>> files.pipe("/store/a.tar", Path(folder.name, "a.tar").read_bytes())
    >>> store = Store(cache_dir=f"{folder.name}/cache")
    >>> store.index("memory://store/a.tar", info).lengths.tolist()
    [3]
    >>> with store.lease("memory://store/a.tar", info) as lease:
    ...     lease.path.stat().st_size == info.bytes
    True
    """

    def __init__(
        self,
        cache_dir: str | Path | None = None,
        cache_limit: int | None = None,
        access: Access | None = None,
        *,
        keeps: bool = True,
    ) -> None:
        self.access = access or Access()
        self.keeps = keeps
        self._cache = Cache(Path(cache_dir) if cache_dir is not None else default_directory(), cache_limit)
        self._index_dir = self.directory if keeps else None
        if keeps:
            self._cache.trim()
        self.without_version: set[str] = set()  # urls
        self._run = f"none, run {secrets.token_hex(8)}"
        self._of_this_run: set[str] = set()  # objects without a version
        weakref.finalize(self, _forget, self._cache, self._of_this_run, os.getpid())

    def blocks(self) -> Cache | None:
        """Return the cache of blocks of shards, None where nothing is kept."""
        return self._cache if self.keeps else None

    @property
    def directory(self) -> Path:
        """The cache, which also holds indexes and tables of shards."""
        return self._cache.directory

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_of_this_run": set()}

    def lease(self, url: str, expected: ShardInfo | None = None) -> Lease:
        """Return a lease on the local file of a shard, which is downloaded where the cache does not hold it.

        With ``expected`` its size and sha256 are checked, and a cached shard is used without asking the server; else the
        server is asked whether it changed. A local path is returned as it is. Raises ``StorageError`` when the server
        does not give the object, ``CorruptShardError`` when it gives another one.
        """
        if not is_remote(url):
            return Lease(Path(local_name(url)))
        if not self.keeps:
            raise ConfigError(f"{shown(url)}: it must be downloaded whole, which needs a cache_dir")
        info = ObjectInfo(expected.bytes, expected.sha256) if expected is not None else describe(url, self.access)
        # What replaces an object without a version cannot be told from it: it is of use to this run alone.
        version = info.version or self._run
        # By its contents where they are known: a signed url is another one each time.
        id, name = object_id("" if expected is not None else identity(url), info.size, version), _file_name(url)
        if not info.version:
            self._of_this_run.add(id)
        return self._cache.lease(id, name, info.size, lambda path: self._download(url, path, info, expected))

    def open(self, url: str, expected: ShardInfo | None = None, *, verify: bool = False) -> Shard:
        """Open a shard, downloaded where it is remote; it stays in the cache while its ``tokens`` are referred to."""
        if not is_remote(url):
            return Shard(local_name(url), expected, verify, self._index_dir)
        lease = self.lease(url, expected)
        try:
            # What was downloaded was hashed on its way here.
            shard = Shard(lease.path, expected, cache_dir=self._index_dir)
        except BaseException:
            lease.close()
            raise
        weakref.finalize(shard.tokens, lease.close)
        return shard

    def shards_at_once(self, largest: int) -> int:
        """Return how many shards of at most ``largest`` bytes can stay in use while others are downloaded."""
        return max(1, self._cache.capacity() // max(1, largest) - _SPARE_SHARDS)

    def index(self, url: str, expected: ShardInfo | None = None) -> Index:
        """Return a shard's index, checked as at its opening; of a remote shard by two range reads.

        Only a remote tar of another tool, which has none, is downloaded.
        """
        index = remote_index(url, expected, self.access) if is_remote(url) else None
        if index is not None:
            return index
        with self.lease(url, expected) as lease:
            index = read_index(lease.path, self._index_dir)
        if expected is not None and index.footer:
            compare(shown(url), index.footer, expected)
        return index

    def scan(self, path: Path) -> Index:
        """Return the index of a local tar that may have none of its own."""
        return read_index(path, self._index_dir)

    def contents(self, path: Path) -> str:
        """Return what tells the contents of a local tar of another tool from those of others."""
        return foreign_contents(path, self._index_dir)

    def table(self, url: str, expected: ShardInfo | None = None) -> dict[str, list[Any]]:
        """Return the columns of provenance of a shard of ours; of a remote one by small reads."""
        footer = self.index(url, expected).footer
        if is_remote(url):
            offset, size = footer["table"]
            return parse_table(read_range(url, offset, size, self.access), shown(url), offset)
        return Shard(local_name(url), expected).table()

    def _download(self, url: str, path: Path, info: ObjectInfo, expected: ShardInfo | None) -> str:
        wanted = "" if expected is None else expected.sha256
        sha256 = download(url, path, info.size, self.access, wanted)
        problem = f"sha256 {sha256}, but the manifest says {wanted}" if wanted not in ("", sha256) else ""
        if expected is None and (found := describe(url, self.access)) != info:
            problem = f"it changed while it was read ({info} before, {found} after)"
        if problem:
            raise CorruptShardError(f"{shown(url)}: {problem}; it is damaged or was replaced at the source")
        return sha256


def remote_index(url: str, expected: ShardInfo | None = None, access: Access | None = None) -> Index | None:
    """Return a remote shard's index by two range reads, checked as at its opening; None for a tar of another tool."""
    size = expected.bytes if expected is not None else describe(url, access).size
    tail = read_range(url, max(0, size - TAIL), min(size, TAIL), access)
    footer = parse_footer(tail, shown(url), size)
    if footer is not None:
        index = parse_index(footer, shown(url), size, lambda start, count: read_range(url, start, count, access))
        if expected is not None:
            compare(shown(url), index.footer, expected)
        return index
    if expected is not None:
        raise CorruptShardError(f"{shown(url)}: byte {size - TAIL}: no index footer at the end; copy or rebuild it")
    return None


def _forget(cache: Cache, ids: set[str], process: int) -> None:
    if os.getpid() == process:  # a forked worker ends before the process that made the store
        for id in ids:
            cache.remove(id)


def _file_name(url: str) -> str:
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path).rsplit("/", 1)[-1]
    # Whatever the url says, the name stays a plain one inside the cache.
    name = "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in name).lstrip(".")[-200:]
    return f"{name or 'object'}.tar" if "." not in name else name
