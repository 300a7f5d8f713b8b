"""Remote shards as local files: leases on a bounded cache, read-ahead, and indexes by two small reads."""

from __future__ import annotations

import hashlib
import os
import queue
import secrets
import threading
import urllib.parse
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, CorruptShardError, ShardwrightError, TruncatedShardError
from ...user_cache import default_directory
from ..foreign import foreign_contents
from ..format import TAIL
from ..index import Index, compare, parse_footer, parse_index, parse_table
from ..manifest import ShardInfo
from ..reader import Shard, read_index
from ..tar import map_file
from .access import identity
from .block_cache import BlockCache
from .cache import Cache, CacheFull, Entry, Lease
from .transport import (
    Access,
    ObjectInfo,
    Transient,
    attempting,
    describe,
    download,
    is_remote,
    local_name,
    read_range,
    shown,
)

READ_AHEAD_THREADS = 4

Wanted = tuple[str, ShardInfo | None]


class Store:
    """Shards by url or path. It can be pickled: workers of any kind share its cache.

    ``cache_dir`` (default: ``$SHARDWRIGHT_CACHE``, else the user's cache directory) holds at most ``cache_limit`` bytes
    of downloaded shards (default: all but a tenth of the disk). ``keeps=False`` writes nothing: whole shards are refused.

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
            BlockCache(self.directory, cache_limit).trim()
        self._read_ahead: _ReadAhead | None = None
        self.without_version: set[str] = set()  # urls
        self._run = f"none, run {secrets.token_hex(8)}"
        self._of_this_run: dict[Entry, None] = {}  # objects without a version
        weakref.finalize(self, _forget, self._cache, self._of_this_run, os.getpid())

    def blocks(self) -> BlockCache | None:
        """Return the cache of blocks of shards, None where nothing is kept."""
        return BlockCache(self.directory, self._cache.limit) if self.keeps else None

    @property
    def directory(self) -> Path:
        """The cache, which also holds indexes and tables of shards."""
        return self._cache.directory

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read_ahead": None, "_of_this_run": {}}

    def lease(self, url: str, expected: ShardInfo | None = None) -> Lease:
        """Return a lease on the local file of a shard, which is downloaded where the cache does not hold it.

        With ``expected`` its size and sha256 are checked, and a cached shard is used without asking the server; else the
        server is asked whether it changed. A local path is returned as it is. Raises ``StorageError`` when the server
        does not give the object, ``CorruptShardError`` when it gives another one.
        """
        return self._lease(url, expected, spare=False)

    def prefetch(self, wanted: Iterable[Wanted]) -> None:
        """Download shards in the background, in order, as far as the cache has room; failures show on `lease`."""
        if self._read_ahead is None or self._read_ahead.process != os.getpid():
            self._read_ahead = _ReadAhead(self)
        self._read_ahead.add([(url, expected) for url, expected in wanted if is_remote(url)])

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

    def map(self, url: str, expected: ShardInfo | None, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the whole file of a shard that was checked before, as a read-only 1-D array of ``dtype``."""
        lease = self.lease(url, expected) if is_remote(url) else None
        data = map_file(lease.path if lease is not None else local_name(url))
        if expected is not None and len(data) != expected.bytes:
            if lease is not None:
                lease.close()
            raise TruncatedShardError(f"{shown(url)}: {len(data)} bytes, but the manifest says {expected.bytes}")
        tokens = np.frombuffer(data, np.uint8, len(data) - len(data) % dtype.itemsize).view(dtype)
        if lease is not None:
            weakref.finalize(tokens, lease.close)
        return tokens

    def shards_at_once(self, largest: int) -> int:
        """Return how many shards of at most ``largest`` bytes can stay in use while others come and are read ahead."""
        return max(1, self._cache.capacity() // max(1, largest) - 2 * READ_AHEAD_THREADS)

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

    def _lease(self, url: str, expected: ShardInfo | None, *, spare: bool) -> Lease:
        if not is_remote(url):
            return Lease(Path(local_name(url)))
        if not self.keeps:
            raise ConfigError(f"{shown(url)}: it must be downloaded whole, which needs a cache_dir")
        info = ObjectInfo(expected.bytes, expected.sha256) if expected is not None else describe(url, self.access)
        # By its contents where they are known: a signed url is another one each time.
        entry = Entry("" if expected is not None else identity(url), _file_name(url), *info)
        if not entry.version:  # what replaces the object cannot be told from it: it is of use to this run alone
            entry = entry._replace(version=self._run)
            self._of_this_run[entry] = None
        return self._cache.lease(entry, lambda part: self._download(url, part, info, expected), spare=spare)

    def _download(self, url: str, part: Path, info: ObjectInfo, expected: ShardInfo | None) -> None:
        """Complete ``part``, from where an interrupted try left it, and check it."""
        wrong: list[str] = []

        def attempt(number: int) -> None:
            download(url, part, info.size, self.access, number)
            problem = self._wrong(url, part, info, expected)
            if problem:
                part.unlink()
                wrong.append(problem)
                if len(wrong) > 1:  # the first may be the fault of what an interrupted try left
                    raise CorruptShardError(f"{shown(url)}: {problem}; it is damaged or was replaced at the source")
                raise Transient(problem)

        attempting(attempt, url, "download it", self.access)

    def _wrong(self, url: str, part: Path, info: ObjectInfo, expected: ShardInfo | None) -> str:
        """Say what is wrong with a complete download, or nothing."""
        if expected is None:
            found = describe(url, self.access)
            return "" if found == info else f"it changed while it was read ({info} before, {found} after)"
        with open(part, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return "" if sha256 == expected.sha256 else f"sha256 {sha256}, but the manifest says {expected.sha256}"


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


class _ReadAhead:
    """Threads of one process that fill the cache. They are daemons: a process that ends does not wait for them."""

    def __init__(self, store: Store) -> None:
        self.process = os.getpid()
        self._store = store
        self._queue: queue.SimpleQueue[Wanted] = queue.SimpleQueue()
        self._queued: set[str] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def add(self, wanted: list[Wanted]) -> None:
        with self._lock:
            for url, expected in wanted:
                if url not in self._queued:
                    self._queued.add(url)
                    self._queue.put((url, expected))
            while wanted and len(self._threads) < READ_AHEAD_THREADS:
                thread = threading.Thread(target=self._work, name="shardwright-read-ahead", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _work(self) -> None:
        while True:
            url, expected = self._queue.get()
            try:
                self._store._lease(url, expected, spare=True).close()
            except (ShardwrightError, CacheFull):
                pass  # the reader that needs the shard tries again, and raises
            finally:
                with self._lock:
                    self._queued.discard(url)


def _forget(cache: Cache, entries: Iterable[Entry], process: int) -> None:
    if os.getpid() == process:  # a forked worker ends before the process that made the store
        for entry in entries:
            cache.remove(entry)


def _file_name(url: str) -> str:
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path).rsplit("/", 1)[-1]
    # Whatever the url says, the name stays a plain one inside the cache, apart from the cache's own.
    name = "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in name).lstrip(".")[-200:]
    return f"{name or 'object'}.tar" if "." not in name else name
