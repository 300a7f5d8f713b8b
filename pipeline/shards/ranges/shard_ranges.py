"""Shards on disk, or brought there, read by extents: slices of their indexes, and their bytes."""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptShardError, ShardError
from ...weak_methods import weakly
from ..extents.table import ExtentTable
from ..index import Index as ShardIndex
from ..manifest import ShardInfo
from ..reader import check_shard
from ..remote.cache import Lease
from .handles import Handles
from .mapped import BufferedBytes, Bytes, map_range, maps_here, read_bytes, read_range, will_need
from .source import Index, Rows, joined

LONG_BYTES = 4 << 20  # of a run of extents that holds a long document: the kernel may read ahead in it
_INDEX_BYTES = 64 << 20  # of indexes of tars that have none of their own, which are kept in memory whole


class Stamp(NamedTuple):
    """What changes when a file is written: its size in bytes, and the time of the change in ns."""

    size: int
    time: int


def file_stamp(path: str) -> Stamp | None:
    """Return the stamp of a file, None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return Stamp(found.st_size, found.st_mtime_ns)


class ShardRanges:
    """Shards as files: ``lease(number)`` gives one, which stays at its path while the lease is held.

    ``names`` are what errors call shards, ``infos`` what a manifest says of them, ``scan(path)`` gives the index of one that
    holds none. At most ``limit`` leases are held. ``mapped`` maps files, which must be on a local file system, else they are
    read into buffers. ``verify`` checks bytes at their first use. ``stamps`` are those that the files of tars without a
    manifest had when the stream was made (None: of no local file): one that changed since is refused.
    """

    waits = True
    behind = False

    def __init__(
        self,
        table: ExtentTable,
        names: Sequence[str],
        infos: Sequence[ShardInfo | None],
        lease: Callable[[int], Lease],
        scan: Callable[[Path], ShardIndex],
        *,
        limit: int,
        mapped: bool,
        verify: bool = False,
        handles: Handles | None = None,
        stamps: Sequence[Stamp | None] | None = None,
    ) -> None:
        self.table = table
        self._names = names
        self._infos = infos
        self._stamps = stamps
        self._lease = lease
        self._scan = scan
        self._limit = max(1, limit)
        self.copies = not mapped
        self.rows_first = self.copies and not verify  # a block is verified before its first row is read
        self._files = Handles() if handles is None else handles
        self._lock = threading.Lock()
        self._leases: OrderedDict[int, Lease] = OrderedDict()
        self._lasting: dict[int, str] = {}  # where shards lie whose leases are never given back for others
        self._checked: set[int] = set()
        self._checked_index = np.zeros(len(table), bool)
        self._unverified = np.full(len(table) if verify else 0, True)
        self._hashed: set[int] = set()
        self._indexes: OrderedDict[int, ShardIndex] = OrderedDict()
        self._maps = None
        if mapped and maps_here() and self._limit >= table.shards:  # all shards stay where they are
            from .shard_maps import ShardMaps  # compiled for systems that have maps

            self._maps = ShardMaps(table, weakly(self._opened), self._names)

    def index(self, firsts: Rows, lasts: Rows) -> Index:
        self._check_stamps(firsts)
        found = None
        if self._maps is not None and self.table.starts_at[self.table.shard_of(firsts)].all():
            found = self._maps.index(firsts, lasts)
        if found is None:
            found = joined([self._index_of(*run) for run in zip(firsts.tolist(), lasts.tolist(), strict=True)])
        self._check_index(firsts, lasts, *found)
        return found

    def _index_of(self, first: int, last: int) -> tuple[bytes, bytes]:
        table, shard = self.table, int(self.table.shard_of(first))
        begin = int(table.first_document_of(first))
        count = int(table.document_sums[last] - table.document_sums[first])
        starts_at, lengths_at = int(table.starts_at[shard]), int(table.lengths_at[shard])
        if starts_at == 0:
            kept = self._kept_index(shard)
            part = slice(begin, begin + count)
            return kept.starts[part].astype("<i8").tobytes(), kept.lengths[part].astype("<u4").tobytes()
        with self._files.opened(self._path(shard)) as handle:
            name = self._checked_name(shard, handle)
            starts = read_bytes(handle, starts_at + 8 * begin, 8 * count, name)
            return starts, read_bytes(handle, lengths_at + 4 * begin, 4 * count, name)

    def memory(self, first: int, last: int) -> Bytes:
        self._check_stamps(np.array([first]))
        table, shard = self.table, int(self.table.shard_of(first))
        offset, size = int(table.offset_of(first)), int(table.size_sums[last] - table.size_sums[first])
        found: Bytes | None = None
        with self._files.opened(self._path(shard)) as handle:
            name = self._checked_name(shard, handle)
            if not self.copies:
                found = map_range(handle, offset, size, random=size <= LONG_BYTES)
            if found is None:
                found = BufferedBytes(size)
                read_range(handle, offset, memoryview(found.memory)[:size], name)
            self._verify(shard, first, last, handle)
        return found

    def memories(self, firsts: Rows, lasts: Rows) -> tuple[NDArray[np.int64], Any] | None:
        if self._maps is None:
            return None
        self._check_stamps(firsts)
        if len(self._unverified):
            for run in zip(firsts.tolist(), lasts.tolist(), strict=True):
                self.check(*run)
        return self._maps.memory(firsts, lasts)

    def check(self, first: int, last: int) -> None:
        if len(self._unverified):
            shard = int(self.table.shard_of(first))
            with self._files.opened(self._path(shard)) as handle:
                self._verify(shard, first, last, handle)

    def read(self, shard: int, offset: int, target: memoryview) -> None:
        with self._files.opened(self._path(shard)) as handle:
            read_range(handle, offset, target, self._checked_name(shard, handle))

    def read_all(self, wanted: list[tuple[int, int, memoryview]]) -> None:
        for each in wanted:
            self.read(*each)

    def ask(self, firsts: Rows, lasts: Rows) -> None:
        sizes = self.table.size_sums[lasts] - self.table.size_sums[firsts]
        self._ask(firsts, lasts, np.where(sizes <= LONG_BYTES, sizes, 0))

    def ask_index(self, firsts: Rows, lasts: Rows) -> None:
        self._ask(firsts, lasts, np.zeros(len(firsts), np.int64))

    def _ask(self, firsts: Rows, lasts: Rows, sizes: NDArray[np.int64]) -> None:
        """Ask for the indexes of runs and for ``sizes`` of their bytes, but not where they would be gone when needed."""
        if self._maps is not None:
            self._maps.ask(firsts, lasts, sizes)

    def ask_bytes(self, shard: int, offset: int, size: int) -> None:
        if not self.copies:
            with self._files.opened(self._path(shard)) as handle:
                will_need(handle, offset, size)

    def close(self) -> None:
        with self._lock:
            self._lasting.clear()
            for shard in list(self._leases):
                self._leases.pop(shard).close()
        if self._maps is not None:
            self._maps.close()
        self._files.close()

    @contextmanager
    def _opened(self, shard: int) -> Iterator[int]:
        """Give a descriptor of a shard, once it was checked."""
        with self._files.opened(self._path(shard)) as handle:
            self._checked_name(shard, handle)
            yield handle

    def _path(self, shard: int) -> str:
        """Return where a shard's file lies, held there."""
        if shard in self._lasting:
            return self._lasting[shard]
        with self._lock:
            lease = self._leases.get(shard)
            if lease is not None:
                self._leases.move_to_end(shard)
                return os.fspath(lease.path)
        lease = self._lease(shard)
        with self._lock:
            if shard in self._leases:
                lease.close()
                return os.fspath(self._leases[shard].path)
            self._leases[shard] = lease
            while len(self._leases) > self._limit:
                _, oldest = self._leases.popitem(last=False)
                oldest.close()
            if self._limit >= self.table.shards:
                self._lasting[shard] = os.fspath(lease.path)
        return os.fspath(lease.path)

    def _checked_name(self, shard: int, handle: int) -> str:
        """Return what errors call a shard, once its size and footer agree with what is known of it."""
        name, info = self._names[shard], self._infos[shard]
        if shard not in self._checked:
            check_shard(handle, name, info)
            self._checked.add(shard)
        return name

    def _check_stamps(self, firsts: Rows) -> None:
        """Raise ``ShardError`` where the shard of a run is not the file that it was when the stream was made."""
        if self._stamps is None:
            return
        for shard in np.unique(self.table.shard_of(firsts)).tolist():
            stamp = self._stamps[shard]
            if stamp is not None and (found := file_stamp(self._path(shard))) != stamp:
                sizes = f"{stamp.size} bytes then, {'gone' if found is None else found.size} now"
                raise ShardError(
                    f"{self._names[shard]} was written since the stream was made ({sizes}), so its documents may be others; "
                    "do not write to shards that are read, and make the stream again"
                )

    def _check_index(self, firsts: Rows, lasts: Rows, starts: NDArray[np.int64], lengths: NDArray[np.uint32]) -> None:
        """Check the index of runs by the checksums of the table, at its first use."""
        extents = lasts - firsts
        rows = np.repeat(lasts - np.cumsum(extents), extents) + np.arange(extents.sum())
        if self._checked_index[rows].all():
            return
        wrong = self.table.wrong_index(rows, starts, lengths)
        if wrong is not None:
            raise CorruptShardError(f"{self._names[wrong[0]]}: {wrong[1]}; copy the shard again or rebuild it")
        self._checked_index[rows] = True

    def _verify(self, shard: int, first: int, last: int, handle: int) -> None:
        """Check the bytes of extents by their checksums, or where the table has none the whole shard by its hash."""
        if not len(self._unverified) or not self._unverified[first:last].any():
            return
        name, info = self._names[shard], self._infos[shard]
        if self.table.crc32 is None:
            with self._lock:
                if shard in self._hashed:
                    return
                self._hashed.add(shard)
            found = _sha256(handle)
            if info is not None and found != info.sha256:
                raise CorruptShardError(
                    f"{name}: sha256 {found}, but the manifest says {info.sha256}; copy it again or rebuild it"
                )
            self._unverified[self.table.shard_bounds[shard] : self.table.shard_bounds[shard + 1]] = False
            return
        offset = int(self.table.offset_of(first))
        wrong = self.table.wrong_bytes(
            first, last, lambda begin, end: _crc32(handle, offset + begin, offset + end, name)
        )
        if wrong is not None:
            raise CorruptShardError(f"{name}: {wrong}; copy it again or rebuild it")
        self._unverified[first:last] = False

    def _kept_index(self, shard: int) -> ShardIndex:
        with self._lock:
            index = self._indexes.get(shard)
            if index is not None:
                self._indexes.move_to_end(shard)
                return index
        index = self._scan(Path(self._path(shard)))
        known = int(np.diff(self.table.document_sums[self.table.shard_bounds[shard : shard + 2]])[0])
        if len(index.lengths) != known:
            raise CorruptShardError(
                f"{self._names[shard]}: {len(index.lengths)} documents, but it had {known} when they were counted; it was "
                "replaced meanwhile: make the stream again"
            )
        with self._lock:
            self._indexes[shard] = index
            held = sum(16 * len(each.lengths) for each in self._indexes.values())
            while held > _INDEX_BYTES and len(self._indexes) > 1:
                _, oldest = self._indexes.popitem(last=False)
                held -= 16 * len(oldest.lengths)
        return index


def _sha256(handle: int) -> str:
    digest, offset = hashlib.sha256(), 0
    while part := os.pread(handle, 1 << 20, offset):
        digest.update(part)
        offset += len(part)
    return digest.hexdigest()


def _crc32(handle: int, begin: int, end: int, name: str) -> int:
    checksum = 0
    for at in range(begin, end, 1 << 20):
        checksum = zlib.crc32(read_bytes(handle, at, min(1 << 20, end - at), name), checksum)
    return checksum
