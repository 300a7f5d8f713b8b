"""Shards on disk, or brought there, read by extents: slices of their indexes, and their bytes."""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptShardError
from ..extents.table import ExtentTable
from ..index import Index
from ..manifest import ShardInfo
from ..reader import check_shard
from ..remote.cache import Lease
from .handles import Handles
from .mapped import BufferedBytes, Bytes, map_range, read_bytes, read_range, will_need

LONG_BYTES = 4 << 20  # of a run of extents that holds a long document: the kernel may read ahead in it
_INDEX_BYTES = 64 << 20  # of indexes of tars that have none of their own, which are kept in memory whole


class Source(Protocol):
    """Documents by runs of extents, each a pair of rows of a table, of one shard.

    ``waits``: what is asked for may take time, so threads ask for it ahead. ``copies``: bytes take memory of their own.
    ``behind``: bytes come behind their index (see `RemoteRanges`, which offers more).
    ``rows_first``: where blocks are not in memory yet, rows may be read before them.
    """

    waits: bool
    copies: bool
    behind: bool
    rows_first: bool

    def index(self, first: int, last: int) -> tuple[bytes, bytes]:
        """Return where the documents of extents ``first`` to before ``last`` start (bytes, <i8), and their tokens (<u4)."""

    def memory(self, first: int, last: int) -> Bytes | Any:
        """Return the bytes of these extents, with the ``address`` of the first."""

    def check(self, first: int, last: int) -> None:
        """Verify the bytes of these extents at their first use, where that was asked for."""

    def read(self, shard: int, offset: int, target: memoryview) -> None:
        """Fill ``target`` from a byte of a shard on."""

    def read_all(self, wanted: list[tuple[int, int, memoryview]]) -> None:
        """Fill targets, each from a byte of a shard on."""

    def ask(self, first: int, last: int) -> None:
        """Have the index and the bytes of these extents at hand soon."""

    def ask_index(self, first: int, last: int) -> None:
        """Have the index of these extents at hand soon."""

    def ask_bytes(self, shard: int, offset: int, size: int) -> None:
        """Have these bytes of a shard at hand soon."""

    def close(self) -> None:
        """Give back what is held."""


@dataclass(frozen=True, eq=False)
class InMemory:
    """Where bytes of an array begin; the array stays alive with this."""

    address: int
    owner: Any


class MemoryRanges:
    """Documents of an array, one behind the other."""

    waits = copies = behind = rows_first = False

    def __init__(self, table: ExtentTable, tokens: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        self._table = table
        self._tokens = tokens
        self._lengths = lengths.astype("<u4")
        self._starts = (np.cumsum(lengths) - lengths) * tokens.itemsize

    def index(self, first: int, last: int) -> tuple[bytes, bytes]:
        part = slice(int(self._table.document_sums[first]), int(self._table.document_sums[last]))
        return self._starts[part].tobytes(), self._lengths[part].tobytes()

    def memory(self, first: int, last: int) -> InMemory:
        return InMemory(self._tokens.ctypes.data + int(self._table.offsets[first]), self._tokens)

    def check(self, first: int, last: int) -> None:
        return

    def read(self, shard: int, offset: int, target: memoryview) -> None:
        target[:] = self._tokens.view(np.uint8).data[offset : offset + len(target)]

    def read_all(self, wanted: list[tuple[int, int, memoryview]]) -> None:
        for each in wanted:
            self.read(*each)

    def ask(self, first: int, last: int) -> None:
        return

    def ask_index(self, first: int, last: int) -> None:
        return

    def ask_bytes(self, shard: int, offset: int, size: int) -> None:
        return

    def close(self) -> None:
        return


class ShardRanges:
    """Shards as files: ``lease(number)`` gives one, which stays at its path while the lease is held.

    ``names`` are what errors call shards, ``infos`` what a manifest says of them, ``scan(path)`` gives the index of one that
    holds none. At most ``limit`` leases are held. ``mapped`` maps files, which must be on a local file system, else they are
    read into buffers. ``verify`` checks bytes at their first use.
    """

    waits = True
    behind = False

    def __init__(
        self,
        table: ExtentTable,
        names: Sequence[str],
        infos: Sequence[ShardInfo | None],
        lease: Callable[[int], Lease],
        scan: Callable[[Path], Index],
        *,
        limit: int,
        mapped: bool,
        verify: bool = False,
        handles: Handles | None = None,
    ) -> None:
        self.table = table
        self._names = names
        self._infos = infos
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
        self._indexes: OrderedDict[int, Index] = OrderedDict()

    def index(self, first: int, last: int) -> tuple[bytes, bytes]:
        table, shard = self.table, int(self.table.shard_numbers[first])
        begin = int(table.first_documents[first])
        count = int(table.document_sums[last] - table.document_sums[first])
        starts_at, lengths_at = int(table.starts_at[shard]), int(table.lengths_at[shard])
        if starts_at == 0:
            kept = self._kept_index(shard)
            part = slice(begin, begin + count)
            starts, lengths = kept.starts[part].astype("<i8").tobytes(), kept.lengths[part].astype("<u4").tobytes()
        else:
            with self._files.opened(self._path(shard)) as handle:
                name = self._checked_name(shard, handle)
                starts = read_bytes(handle, starts_at + 8 * begin, 8 * count, name)
                lengths = read_bytes(handle, lengths_at + 4 * begin, 4 * count, name)
        if not self._checked_index[first:last].all():
            self._check_index(first, last, starts, lengths)
        return starts, lengths

    def memory(self, first: int, last: int) -> Bytes:
        table, shard = self.table, int(self.table.shard_numbers[first])
        offset, size = int(table.offsets[first]), int(table.size_sums[last] - table.size_sums[first])
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

    def check(self, first: int, last: int) -> None:
        if len(self._unverified):
            shard = int(self.table.shard_numbers[first])
            with self._files.opened(self._path(shard)) as handle:
                self._verify(shard, first, last, handle)

    def read(self, shard: int, offset: int, target: memoryview) -> None:
        with self._files.opened(self._path(shard)) as handle:
            read_range(handle, offset, target, self._checked_name(shard, handle))

    def read_all(self, wanted: list[tuple[int, int, memoryview]]) -> None:
        for each in wanted:
            self.read(*each)

    def ask(self, first: int, last: int) -> None:
        size = int(self.table.size_sums[last] - self.table.size_sums[first])
        self._ask(first, last, size if size <= LONG_BYTES else 0)

    def ask_index(self, first: int, last: int) -> None:
        self._ask(first, last, 0)

    def _ask(self, first: int, last: int, size: int) -> None:
        """Ask for the index of extents and for ``size`` of their bytes."""
        if not self._can_ask:
            return
        table, shard = self.table, int(self.table.shard_numbers[first])
        begin, count = int(table.first_documents[first]), int(table.document_sums[last] - table.document_sums[first])
        with self._files.opened(self._path(shard)) as handle:
            if starts_at := int(table.starts_at[shard]):
                will_need(handle, starts_at + 8 * begin, 8 * count)
                will_need(handle, int(table.lengths_at[shard]) + 4 * begin, 4 * count)
            will_need(handle, int(table.offsets[first]), size)

    @property
    def _can_ask(self) -> bool:
        return not self.copies and self._limit >= self.table.shards  # else it would be gone when it is needed

    def ask_bytes(self, shard: int, offset: int, size: int) -> None:
        if not self.copies:
            with self._files.opened(self._path(shard)) as handle:
                will_need(handle, offset, size)

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

    def _check_index(self, first: int, last: int, starts: bytes, lengths: bytes) -> None:
        begin = 0
        for row in range(first, last):
            end = begin + int(self.table.documents[row])
            found = zlib.crc32(lengths[4 * begin : 4 * end], zlib.crc32(starts[8 * begin : 8 * end]))
            if found != self.table.index_crc32[row]:
                shard, document = int(self.table.shard_numbers[row]), int(self.table.first_documents[row])
                raise CorruptShardError(
                    f"{self._names[shard]}: byte {int(self.table.starts_at[shard]) + 8 * document}: the index of documents "
                    f"{document} to {document + end - begin} has checksum {found}, but the table of extents says "
                    f"{int(self.table.index_crc32[row])}; copy the shard again or rebuild it"
                )
            begin = end
        self._checked_index[first:last] = True

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
        for row in range(first, last):
            offset, size = int(self.table.offsets[row]), int(self.table.sizes[row])
            checksum = _crc32(handle, offset, size, name)
            if checksum != self.table.crc32[row]:
                raise CorruptShardError(
                    f"{name}: bytes {offset} to {offset + size} have checksum {checksum}, but the table of extents says "
                    f"{int(self.table.crc32[row])}; copy it again or rebuild it"
                )
        self._unverified[first:last] = False

    def _kept_index(self, shard: int) -> Index:
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


def _crc32(handle: int, offset: int, size: int, name: str) -> int:
    checksum = 0
    for begin in range(offset, offset + size, 1 << 20):
        checksum = zlib.crc32(read_bytes(handle, begin, min(1 << 20, offset + size - begin), name), checksum)
    return checksum
