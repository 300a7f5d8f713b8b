"""Remote shards read by extents: by ranged requests that wait for their answers, through memory or a cache on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import CorruptShardError, ManifestError, ShardwrightError
from ...objects.access import CONNECTIONS, is_version
from ...objects.cache import object_id
from ...objects.remote_object import RemoteObject, describe
from ...objects.urls import identity, shown
from ..extents.table import ExtentTable
from ..format import BLOCK, HEADERS, NPY_HEADER
from ..manifest import ShardInfo
from ..store import Store
from .source import Index, as_index


class RemoteRanges:
    """Remote shards that have indexes, on servers that know ranges.

    Of ``urls``, ``infos`` are what a manifest says. Blocks and their indexes are kept in the cache of ``store`` if it has one
    and the servers tell versions apart. A
    shard of another size than the manifest says raises ``ManifestError``, and one that changes while it is read, where the
    table has no checksums of its bytes, ``CorruptShardError``.
    """

    threads = CONNECTIONS

    def __init__(
        self,
        table: ExtentTable,
        urls: Sequence[str],
        infos: Sequence[ShardInfo | None],
        store: Store,
    ) -> None:
        self.table = table
        self._urls = urls
        self._infos = infos
        self._access = store.access
        self._cache = store.cache
        self._run = store.run
        self._versions: dict[int, str] = {}
        self._ids: dict[int, str] = {}

    def name(self, shard: int) -> str:
        return shown(self._urls[shard])

    def index(self, first: int, last: int) -> Index:
        place = self.table.index_of(first, last)
        count = place.documents

        def wrong(raw: bytes) -> ShardwrightError | None:
            problem = self.table.wrong_index(first, last, *as_index(raw[: 8 * count], raw[8 * count :]))
            return self._error(place.shard, problem)

        def fetch() -> bytes:
            remote, error = self._object(place.shard), None
            for _ in range(2):  # wrong bytes that come twice are wrong at the source
                lengths = remote.read(place.lengths, 4 * count)
                raw = _starts_of_members(self.table, first, lengths) + lengths  # mostly right, which saves a request
                if wrong(raw) is not None:
                    raw = remote.read(place.starts, 8 * count) + lengths
                if (error := wrong(raw)) is None:
                    return raw
            raise error or AssertionError

        def is_sound(raw: bytes) -> bool:
            return len(raw) == 12 * count and wrong(raw) is None

        raw: Any = self._kept(place.shard, f"{place.first}-{count}.index", fetch, is_sound)
        return as_index(raw[: 8 * count], raw[8 * count :])

    def read(self, first: int, last: int, out: memoryview) -> None:
        shard, offset = int(self.table.shard_of(first)), int(self.table.offset_of(first))
        is_here = False

        def wrong(data: memoryview) -> ShardwrightError | None:
            return self._error(shard, self.table.wrong_bytes(first, last, data))

        def fetch() -> memoryview:
            nonlocal is_here
            self._object(shard).fill(offset, out, wrong)
            is_here = True
            return out

        def is_sound(raw: bytes) -> bool:
            return len(raw) == len(out) and wrong(memoryview(raw)) is None

        data = self._kept(shard, f"{offset}-{len(out)}.block", fetch, is_sound)
        if not is_here:
            out[:] = data

    def _object(self, shard: int) -> RemoteObject:
        return RemoteObject(self._urls[shard], self._access, lambda size, version: self._other(shard, size, version))

    def _other(self, shard: int, size: int, version: str) -> ShardwrightError | None:
        """Return the error for a shard that is not the expected one: by its size, and its version unless bytes have checksums."""
        info, name = self._infos[shard], self.name(shard)
        if info is not None and size != info.bytes:
            return ManifestError(
                f"{name}: {size} bytes, but the manifest says {info.bytes}; copy it again or rebuild it"
            )
        known = self._versions.setdefault(shard, version)
        if self.table.crc32 is not None or is_version(version, known):
            return None
        return CorruptShardError(
            f"{name}: it changed while it was read: its version was {known}, now it is {version}; restore the object, or "
            "make the stream again"
        )

    def _kept(
        self,
        shard: int,
        name: str,
        fetch: Callable[[], bytes | memoryview],
        is_sound: Callable[[bytes], bool],
    ) -> bytes | memoryview:
        """Return bytes from the cache, which is filled by ``fetch``; what is damaged there is fetched again."""
        return fetch() if self._cache is None else self._cache.read(self._id(shard), name, fetch, is_sound)

    def _id(self, shard: int) -> str:
        """Return the folder of a shard in the cache: by its contents, or by its url, size and version."""
        if shard not in self._ids:
            info = self._infos[shard]
            if info is not None:
                self._ids[shard] = object_id(info.sha256, info.bytes)
            else:
                size, version = describe(self._urls[shard], self._access)
                self._versions.setdefault(shard, version)
                self._ids[shard] = object_id(identity(self._urls[shard]), size, version or self._run)
        return self._ids[shard]

    def _error(self, shard: int, problem: str | None) -> ShardwrightError | None:
        if problem is None:
            return None
        cure = "it is damaged or was replaced at the source: copy it again or rebuild it"
        return CorruptShardError(f"{self.name(shard)}: {problem}; {cure}")


def _starts_of_members(table: ExtentTable, first: int, lengths: bytes) -> bytes:
    """Return where documents of so many tokens start, from extent ``first`` on, if each is a member of its own."""
    sizes = np.frombuffer(lengths, "<u4").astype(np.int64) * table.itemsize
    steps = sizes + -(NPY_HEADER + sizes) % BLOCK + HEADERS
    starts = (int(table.offset_of(first)) or HEADERS) + np.cumsum(steps) - steps
    return bytes(starts.astype("<i8"))
