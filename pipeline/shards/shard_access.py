"""Shards by path or url: local files, remote shards whole in a cache, and indexes and tables by small reads."""

from __future__ import annotations

import mmap
import os
import secrets
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, CorruptShardError
from ..objects.cache import Cache, object_id
from ..objects.remote_object import describe, download, read_range
from ..objects.request_options import ObjectInfo, RequestOptions
from ..objects.urls import identity, is_remote, local_name, shown
from ..user_cache import default_directory
from .foreign import foreign_index, scan_index
from .format import MAX_KEY, TAIL
from .index import Read, ShardIndex, footer_of, index_of, parse_table
from .manifest import ShardInfo
from .tar_members import REPAIR, opened


class ShardAccess:
    """Reads shards by path or url. It can be pickled, and workers of any kind may share its cache.

    ``cache_dir`` (default: ``$SHARDWRIGHT_CACHE``, else the user's cache directory) holds at most ``cache_limit`` bytes
    of blocks and shards (default: all but a tenth of the disk). With ``use_cache=False`` nothing is written: ``cache`` is
    None, and whole remote shards are refused.
    """

    def __init__(
        self,
        cache_dir: str | Path | None = None,
        cache_limit: int | None = None,
        requests: RequestOptions | None = None,
        *,
        use_cache: bool = True,
    ) -> None:
        self.requests = requests or RequestOptions()
        self._cache_dir, self._cache_limit, self._use_cache = cache_dir, cache_limit, use_cache
        # The version of objects that state none. Only this run uses their copies, since nothing would show a replaced object.
        self.run = f"none, run {secrets.token_hex(8)}"

    @cached_property
    def directory(self) -> Path | None:
        """The folder of blocks, whole shards and indexes of tars; None without a cache."""
        if not self._use_cache:
            return None
        return default_directory() if self._cache_dir is None else Path(self._cache_dir)

    @cached_property
    def cache(self) -> Cache | None:
        """The cache of remote shards and their blocks."""
        return None if self.directory is None else Cache(self.directory, self._cache_limit)

    @contextmanager
    def opened(self, url: str, expected: ShardInfo | None = None) -> Iterator[tuple[int, int]]:
        """Open a shard and yield its descriptor and size. A remote shard is downloaded if it is not in the cache.

        With ``expected``, size and sha256 are checked, and a cached shard is used without asking the server. Otherwise the
        server is asked whether the shard changed. Raises ``StorageError`` if the server does not send the object, and
        ``CorruptShardError`` if it sends a different one.
        """
        if not is_remote(url):
            with opened(local_name(url)) as file:
                yield file
            return
        if self.cache is None:
            raise ConfigError(f"{shown(url)}: it must be downloaded whole, which needs a cache; give a cache_dir")
        info = ObjectInfo(expected.bytes, expected.sha256) if expected is not None else describe(url, self.requests)
        # The contents identify a shard if they are known: its signed url differs each time.
        id = object_id("" if expected is not None else identity(url), info.size, info.version or self.run)
        with self.cache.open(
            id, _file_name(url), info.size, lambda path: self._download(url, path, info, expected)
        ) as file:
            yield file.fileno(), info.size

    def index(self, url: str, expected: ShardInfo | None = None) -> ShardIndex:
        """Return a shard's index, compared with ``expected``, its entry in the manifest; two small reads suffice.

        A tar of another tool is scanned; if it is remote, it is downloaded first. Raises the errors of
        `pipeline.shards.index.footer_of` and `pipeline.shards.foreign.foreign_index`.
        """
        with self._ranges(url, expected) as (read, size, name):
            index = index_of(read, size, name, expected)
        if index is not None:
            return index
        if not is_remote(url):
            return foreign_index(name, self.directory)
        with self.opened(url) as (handle, _):
            return scan_index(mmap.mmap(handle, 0, access=mmap.ACCESS_READ), name)

    def table(self, url: str, expected: ShardInfo | None = None) -> dict[str, list[Any]]:
        """Return the columns of provenance of a shard that this project wrote."""
        return parse_table(*self.raw_table(url, expected))

    def raw_table(self, url: str, expected: ShardInfo | None = None) -> tuple[bytes, str, int]:
        """Return the arguments of `parse_table`: the table of a shard as JSON, the shard's name in errors, the table's offset."""
        with self._ranges(url, expected) as (read, size, name):
            footer = footer_of(read(max(0, size - TAIL), min(size, TAIL)), size, name, expected)
            if footer is None:
                raise CorruptShardError(f"{name}: byte {max(0, size - TAIL)}: no index footer at the end; {REPAIR}")
            offset, count = footer["table"]
            return read(offset, count), name, offset

    def index_and_table(self, url: str, expected: ShardInfo | None = None) -> tuple[ShardIndex, dict[str, list[Any]]]:
        """Return the index and the columns of provenance of a shard that this project wrote."""
        index = self.index(url, expected)
        offset, size = index.footer["table"]
        return index, parse_table(self._read(url, offset, size), shown(url), offset)

    def first_key(self, url: str) -> str:
        """Return the key of the first document of a shard that this project wrote: the name of its first member."""
        return self._read(url, 0, MAX_KEY + 4).split(b".")[0].decode()

    def document(self, url: str, number: int, expected: ShardInfo | None = None) -> NDArray[Any]:
        """Return the tokens of one document."""
        index = self.index(url, expected)
        size = int(index.lengths[number]) * index.dtype.itemsize
        return np.frombuffer(self._read(url, int(index.starts[number]), size), index.dtype)

    @contextmanager
    def _ranges(self, url: str, expected: ShardInfo | None) -> Iterator[tuple[Read, int, str]]:
        """Yield a function that reads ranges of a shard, the shard's size, and its name in errors."""
        if is_remote(url):
            size = expected.bytes if expected is not None else describe(url, self.requests).size
            yield lambda start, count: self._read(url, start, count), size, shown(url)
            return
        with opened(path := local_name(url)) as (handle, size):
            yield lambda start, count: os.pread(handle, count, start), size, path

    def _read(self, url: str, start: int, size: int) -> bytes:
        if is_remote(url):
            return read_range(url, start, size, self.requests)
        with opened(local_name(url)) as (handle, _):
            return os.pread(handle, size, start)

    def _download(self, url: str, path: Path, info: ObjectInfo, expected: ShardInfo | None) -> str:
        wanted = "" if expected is None else expected.sha256
        sha256 = download(url, path, info.size, self.requests, wanted)
        problem = f"sha256 {sha256}, but the manifest says {wanted}" if wanted not in ("", sha256) else ""
        if expected is None and (latest := describe(url, self.requests)) != info:
            problem = f"it changed while it was read ({info} before, {latest} after)"
        if problem:
            raise CorruptShardError(f"{shown(url)}: {problem}; it is damaged or was replaced at the source")
        return sha256


def _file_name(url: str) -> str:
    name = urllib.parse.unquote(urllib.parse.urlsplit(url).path).rsplit("/", 1)[-1]
    # Whatever the url holds, the name is a plain file name, so that the file is inside the cache.
    name = "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in name).lstrip(".")[-200:]
    return f"{name or 'object'}.tar" if "." not in name else name
