"""Shards on disk, or downloaded whole, read by extents: slices of their indexes, and their bytes."""

from __future__ import annotations

import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import CorruptShardError, ShardError
from ...objects.cache import Lease
from ..extents.table import ExtentTable
from ..index import Index as ShardIndex
from ..manifest import ShardInfo
from ..reader import check_shard
from .open_files import DEFAULT_MAX_OPEN_FILES, OPEN_FILES
from .reading import read_bytes, read_range
from .source import Index, as_index

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
    """Shards as files: ``lease(number)`` gives one, which stays at its path until the lease is closed.

    ``names`` are what errors call shards, ``infos`` what a manifest says of them, ``scan(path)`` gives the index of one that
    holds none. At most ``leases`` are kept, and ``max_open`` files are open. ``verify`` compares bytes with their checksums
    each time they are read. ``stamps`` are those that the files of tars without a manifest had when the stream was made
    (None: of no local file): one that changed since is refused.
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
        leases: int,
        max_open: int = DEFAULT_MAX_OPEN_FILES,
        verify: bool = False,
        stamps: Sequence[Stamp | None] | None = None,
    ) -> None:
        self.table = table
        self._names = names
        self._infos = infos
        self._stamps = stamps
        self._lease = lease
        self._scan = scan
        self._most_leases = max(1, leases)
        self._max_open = max_open
        self._verify = verify
        self._lock = threading.Lock()
        self._leases: OrderedDict[int, Lease] = OrderedDict()
        self._checked: set[int] = set()
        self._indexes: OrderedDict[int, ShardIndex] = OrderedDict()
        self._files, self._owner = OPEN_FILES, OPEN_FILES.add_owner(self)

    def name(self, shard: int) -> str:
        return self._names[shard]

    def index(self, first: int, last: int) -> Index:
        table, shard = self.table, int(self.table.shard_of(first))
        begin = int(table.first_document_of(first))
        count = int(table.document_sums[last] - table.document_sums[first])
        starts_at, lengths_at = int(table.starts_at[shard]), int(table.lengths_at[shard])
        with self._opened(shard) as handle:
            if starts_at:
                starts, lengths = as_index(
                    read_bytes(handle, starts_at + 8 * begin, 8 * count, self._names[shard]),
                    read_bytes(handle, lengths_at + 4 * begin, 4 * count, self._names[shard]),
                )
            else:
                whole, part = self._scanned_index(shard), slice(begin, begin + count)
                starts, lengths = whole.starts[part].astype("<i8"), whole.lengths[part].astype("<u4")
        wrong = table.wrong_index(np.arange(first, last), starts, lengths)
        if wrong is not None:
            raise CorruptShardError(f"{self._names[shard]}: {wrong[1]}; copy the shard again or rebuild it")
        return starts, lengths

    def read(self, first: int, last: int, out: memoryview) -> None:
        shard, offset = int(self.table.shard_of(first)), int(self.table.offset_of(first))
        with self._opened(shard) as handle:
            read_range(handle, offset, out, self._names[shard])
        if self._verify:
            wrong = self.table.wrong_bytes(first, last, lambda begin, end: zlib.crc32(out[begin:end]))
            if wrong is not None:
                raise CorruptShardError(f"{self._names[shard]}: {wrong}; copy it again or rebuild it")

    def close(self) -> None:
        with self._lock:
            while self._leases:
                self._leases.popitem()[1].close()
        self._files.close(self._owner)

    @contextmanager
    def _opened(self, shard: int) -> Iterator[int]:
        """Give the descriptor of a shard whose size and footer agree with what is known of it."""
        path = self._path(shard)
        try:
            with self._files.opened(self._owner, path, self._max_open) as handle:
                if shard not in self._checked:
                    check_shard(handle, self._names[shard], self._infos[shard])
                    self._checked.add(shard)
                yield handle
        finally:
            self._check_stamp(shard, path)

    def _path(self, shard: int) -> str:
        """Return where a shard's file lies, which stays there while few others are read."""
        with self._lock:
            if shard in self._leases:
                self._leases.move_to_end(shard)
                return os.fspath(self._leases[shard].path)
        lease = self._lease(shard)
        with self._lock:
            if shard in self._leases:  # another thread was faster
                lease.close()
            lease = self._leases.setdefault(shard, lease)
            while len(self._leases) > self._most_leases:
                self._leases.popitem(last=False)[1].close()
        return os.fspath(lease.path)

    def _check_stamp(self, shard: int, path: str) -> None:
        """Raise ``ShardError`` where a shard is not the file that it was when the stream was made."""
        stamp = None if self._stamps is None else self._stamps[shard]
        if stamp is not None and (now := file_stamp(path)) != stamp:
            sizes = f"{stamp.size} bytes then, {'gone' if now is None else now.size} now"
            raise ShardError(
                f"{self._names[shard]} was written since the stream was made ({sizes}), so its documents may be others; "
                "do not write to shards that are read, and make the stream again"
            )

    def _scanned_index(self, shard: int) -> ShardIndex:
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
            while (
                len(self._indexes) > 1 and sum(16 * len(each.lengths) for each in self._indexes.values()) > _INDEX_BYTES
            ):
                self._indexes.popitem(last=False)
        return index
