"""Remote shards read by extents: by ranged requests that wait for their answers, through memory or a cache on disk."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..extents.table import ExtentTable
from ..manifest import ShardInfo
from ..remote.access import CONNECTIONS, Access
from ..remote.block_cache import BlockCache
from ..remote.objects import RemoteObjects
from .block_store import BlockStore, WrongBytesError
from .document_starts import starts_by_lengths
from .reading import read_bytes
from .source import Index, as_index


class RemoteRanges:
    """Remote shards that have indexes, on servers that know ranges.

    Of ``urls``, ``infos`` are what a manifest says. Blocks and their indexes are kept in ``cache``, or in memory alone.
    """

    threads = CONNECTIONS

    def __init__(
        self,
        table: ExtentTable,
        urls: Sequence[str],
        infos: Sequence[ShardInfo | None],
        access: Access,
        cache: BlockCache | None = None,
    ) -> None:
        self.table = table
        self._objects = RemoteObjects(urls, [None if info is None else info.bytes for info in infos], access)
        self._store = BlockStore(self._objects, infos, access, cache)
        self._access = access

    def name(self, shard: int) -> str:
        return self._objects.name(shard)

    def index(self, first: int, last: int) -> Index:
        table, shard = self.table, int(self.table.shard_of(first))
        begin = int(table.first_document_of(first))
        count = int(table.document_sums[last] - table.document_sums[first])

        def fetch(attempt: int) -> bytes:
            raw = self._objects.read(shard, int(table.lengths_at[shard]) + 4 * begin, 4 * count, attempt)
            # For most runs the lengths tell where documents start, which saves a request.
            starts = starts_by_lengths(table, first, last, np.frombuffer(raw, "<u4"))
            if starts is not None:
                return starts.astype("<i8").tobytes() + raw
            found = self._objects.read(shard, int(table.starts_at[shard]) + 8 * begin, 8 * count, attempt) + raw
            if wrong := self._wrong_index(first, last, found):
                raise WrongBytesError(wrong)
            return found

        raw: Any = self._cached(
            shard,
            f"{begin}-{count}.index",
            12 * count,
            0.0,
            lambda: self._store.checked(fetch, shard, f"read the index of documents {begin} to {begin + count}"),
            lambda found: self._wrong_index(first, last, found) is None,
        )
        return as_index(raw[: 8 * count], raw[8 * count :])

    def read(self, first: int, last: int, out: memoryview, due: float) -> None:
        shard, offset = int(self.table.shard_of(first)), int(self.table.offset_of(first))

        def fetch(attempt: int) -> memoryview:
            self._objects.fill(shard, offset, out, attempt)
            if wrong := self._wrong_bytes(first, last, out):
                raise WrongBytesError(wrong)
            return out

        found = self._cached(
            shard,
            f"{offset}-{len(out)}.block",
            len(out),
            due,
            lambda: self._store.checked(fetch, shard, f"read bytes {offset} to {offset + len(out)}"),
            lambda found: self._wrong_bytes(first, last, memoryview(found)) is None,
        )
        if found is not out:
            out[:] = found

    def close(self) -> None:
        return

    def _cached(
        self,
        shard: int,
        name: str,
        size: int,
        due: float,
        fetch: Callable[[], bytes | memoryview],
        sound: Callable[[bytes], bool],
    ) -> bytes | memoryview:
        """Return bytes from the cache, which is filled by ``fetch``; what is damaged there is fetched again."""
        cache = self._store.cache
        if cache is None:
            return fetch()
        fetched: list[bytes | memoryview] = []

        def fill() -> bytes | memoryview:
            fetched.append(fetch())
            return fetched[0]

        for _ in range(2):
            held = cache.bring(self._store.id(shard), name, due, fill)
            found = _read_whole(held, 0 if fetched else size) if isinstance(held, int) else bytes(held)
            if fetched:
                return fetched[0]
            if len(found) == size and sound(found):
                return found
            cache.discard(self._store.id(shard), name)
        return fetch()

    def _wrong_index(self, first: int, last: int, raw: bytes) -> str | None:
        count = len(raw) // 12
        wrong = self.table.wrong_index(np.arange(first, last), *as_index(raw[: 8 * count], raw[8 * count :]))
        return None if wrong is None else wrong[1]

    def _wrong_bytes(self, first: int, last: int, view: memoryview) -> str | None:
        return self.table.wrong_bytes(first, last, lambda begin, end: zlib.crc32(view[begin:end]))


def _read_whole(handle: int, size: int) -> bytes:
    """Return what a file of the cache holds, and close it; b"" where it has another size."""
    try:
        return read_bytes(handle, 0, size, "cache") if os.fstat(handle).st_size == size else b""
    finally:
        os.close(handle)
