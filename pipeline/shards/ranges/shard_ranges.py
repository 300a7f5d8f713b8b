"""Shards on disk, or brought there, read by extents: slices of their indexes, and their bytes."""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import CorruptShardError, ShardError
from ..extents.table import ExtentTable
from ..index import Index as ShardIndex
from ..manifest import ShardInfo
from ..reader import check_shard
from ..remote.cache import Lease
from .handles import Handles
from .reading import read_bytes, read_range
from .source import Index, Parts, as_index

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
    holds none. At most ``limit`` leases are held. ``verify`` compares bytes with their checksums each time they are read.
    ``stamps`` are those that the files of tars without a manifest had when the stream was made (None: of no local file): one
    that changed since is refused.
    """

    threads = 4

    def __init__(
        self,
        table: ExtentTable,
        names: Sequence[str],
        infos: Sequence[ShardInfo | None],
        lease: Callable[[int], Lease],
        scan: Callable[[Path], ShardIndex],
        *,
        limit: int,
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
        self._verify = verify
        self._files = Handles() if handles is None else handles
        self._lock = threading.Lock()
        self._leases: OrderedDict[int, Lease] = OrderedDict()
        self._lasting: dict[int, str] = {}  # where shards lie whose leases are never given back for others
        self._checked: set[int] = set()
        self._hashing = threading.Lock()
        self._hashed: set[int] = set()
        self._indexes: OrderedDict[int, ShardIndex] = OrderedDict()

    def name(self, shard: int) -> str:
        return self._names[shard]

    def index(self, first: int, last: int) -> Index:
        table, shard = self.table, int(self.table.shard_of(first))
        self._check_stamp(shard)
        begin = int(table.first_document_of(first))
        count = int(table.document_sums[last] - table.document_sums[first])
        starts_at, lengths_at = int(table.starts_at[shard]), int(table.lengths_at[shard])
        if starts_at:
            with self._files.opened(self._path(shard)) as handle:
                name = self._checked_name(shard, handle)
                raw = (
                    read_bytes(handle, starts_at + 8 * begin, 8 * count, name),
                    read_bytes(handle, lengths_at + 4 * begin, 4 * count, name),
                )
            starts, lengths = as_index(*raw)
        else:
            kept, part = self._kept_index(shard), slice(begin, begin + count)
            starts, lengths = kept.starts[part].astype("<i8"), kept.lengths[part].astype("<u4")
        wrong = table.wrong_index(np.arange(first, last), starts, lengths)
        if wrong is not None:
            raise CorruptShardError(f"{self._names[shard]}: {wrong[1]}; copy the shard again or rebuild it")
        return starts, lengths

    def read(self, first: int, last: int, out: memoryview, due: float) -> None:
        shard, offset = int(self.table.shard_of(first)), int(self.table.offset_of(first))
        with self._files.opened(self._path(shard)) as handle:
            name = self._checked_name(shard, handle)
            read_range(handle, offset, out, name)
            self._check_stamp(shard)
            if self._verify:
                self._check(shard, first, last, out, handle)

    def read_parts(self, first: int, last: int, parts: Parts) -> None:
        if self._verify:  # checksums are of whole extents
            offset, size = (
                int(self.table.offset_of(first)),
                int(self.table.size_sums[last] - self.table.size_sums[first]),
            )
            whole = memoryview(bytearray(size))
            self.read(first, last, whole, 0)
            for begin, out in parts:
                out[:] = whole[begin - offset : begin - offset + len(out)]
            return
        shard = int(self.table.shard_of(first))
        with self._files.opened(self._path(shard)) as handle:
            name = self._checked_name(shard, handle)
            for begin, out in parts:
                read_range(handle, begin, out, name)
            self._check_stamp(shard)

    def close(self) -> None:
        with self._lock:
            self._lasting.clear()
            for shard in list(self._leases):
                self._leases.pop(shard).close()
        self._files.close()

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

    def _check_stamp(self, shard: int) -> None:
        """Raise ``ShardError`` where a shard is not the file that it was when the stream was made."""
        stamp = None if self._stamps is None else self._stamps[shard]
        if stamp is not None and (found := file_stamp(self._path(shard))) != stamp:
            sizes = f"{stamp.size} bytes then, {'gone' if found is None else found.size} now"
            raise ShardError(
                f"{self._names[shard]} was written since the stream was made ({sizes}), so its documents may be others; "
                "do not write to shards that are read, and make the stream again"
            )

    def _check(self, shard: int, first: int, last: int, found: memoryview, handle: int) -> None:
        """Compare the bytes of extents with their checksums, or where the table has none the whole shard with its hash."""
        name, info = self._names[shard], self._infos[shard]
        if self.table.crc32 is not None:
            wrong = self.table.wrong_bytes(first, last, lambda begin, end: zlib.crc32(found[begin:end]))
            if wrong is not None:
                raise CorruptShardError(f"{name}: {wrong}; copy it again or rebuild it")
            return
        with self._hashing:  # others wait until the shard is known to be sound
            if shard in self._hashed:
                return
            digest = _sha256(handle)
            if info is not None and digest != info.sha256:
                raise CorruptShardError(
                    f"{name}: sha256 {digest}, but the manifest says {info.sha256}; copy it again or rebuild it"
                )
            self._hashed.add(shard)

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
