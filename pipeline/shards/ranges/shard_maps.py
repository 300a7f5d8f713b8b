"""Shards mapped whole: the indexes and the bytes of many runs of extents by one compiled call, not by calls for each.

A map outlives the blocks that are read from it. Their pages are given back to the system when a window is done with them, so
that memory holds what is in use.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
from numba import int64, types
from numpy.typing import NDArray

from ...compiling import compiled
from ...intrinsics import copy_bytes
from ..extents.table import ExtentTable
from .mapped import PAGE, MappedBytes, ended_early, map_range, request_size
from .source import Runs

_MOST_BYTES = 32 << 30  # that stay mapped though unused: the system's tables of their pages take a 512th of that
_AROUND = 64 << 10  # bytes that the kernel maps around a page that is read
_WILL_NEED, _DONT_NEED = 3, 4  # the same on all systems that have madvise
_WHOLE = 1 << 62
_madvise: Any = types.ExternalFunction("madvise", types.int32(types.uintp, types.uintp, types.int32))


class MappedShard(NamedTuple):
    """A shard that is mapped from its first byte on; ``request``: bytes that the kernel reads for one piece of advice."""

    bytes: MappedBytes
    size: int
    request: int


class BytesInUse:
    """Ranges of memory that hold bytes while this is referred to, and are given back then."""

    def __init__(self, ranges: Sequence[NDArray[np.int64]], shards: Sequence[MappedShard]) -> None:
        finalize(self, _give_back, ranges, shards).atexit = False


class ShardMaps:
    """Maps of the shards of a table; ``opened(shard)`` is a context that gives a descriptor. Threads may share it.

    ``names`` are what errors call shards. At most ``most_bytes`` stay mapped without being used. Methods return None where
    the process has its share of maps, or the system cannot map a shard.
    """

    def __init__(
        self,
        table: ExtentTable,
        opened: Callable[[int], AbstractContextManager[int]],
        names: Sequence[str],
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self._table = table
        self._opened = opened
        self._names = names
        self._most = most_bytes
        self._lock = threading.Lock()
        self._shards: OrderedDict[int, MappedShard] = OrderedDict()
        self._held = 0  # bytes

    def index(self, firsts: Runs, lasts: Runs) -> tuple[NDArray[np.int64], NDArray[np.uint32]] | None:
        """Return where the documents of runs start (bytes) and their tokens, run by run."""
        shards = self._find(firsts)
        if shards is None:
            return None
        (starts_at, lengths_at), counts = self._index_places(firsts, lasts)
        starts, lengths = np.empty(int(counts.sum()), np.int64), np.empty(int(counts.sum()), np.uint32)
        bases, limits = _columns(shards)
        self._check_ends(firsts, lengths_at + 4 * counts, limits)
        _copy(bases, limits, starts_at, 8 * counts, starts.view(np.uint8))
        _copy(bases, limits, lengths_at, 4 * counts, lengths.view(np.uint8))
        return starts, lengths

    def memory(self, firsts: Runs, lasts: Runs) -> tuple[NDArray[np.int64], BytesInUse] | None:
        """Return the addresses of the bytes of runs, and what keeps them there."""
        shards = self._find(firsts)
        if shards is None:
            return None
        table, (bases, limits) = self._table, _columns(shards)
        offsets, sizes = table.offsets[firsts], table.size_sums[lasts] - table.size_sums[firsts]
        self._check_ends(firsts, offsets + sizes, limits)
        return bases + offsets, BytesInUse((bases, limits, offsets, sizes), shards)

    def ask(self, firsts: Runs, lasts: Runs, sizes: NDArray[np.int64]) -> bool:
        """Have the kernel read the indexes of runs, and ``sizes`` of their bytes, and do not wait; False where it cannot."""
        shards = self._find(firsts)
        if shards is None:
            return False
        (starts_at, lengths_at), counts = self._index_places(firsts, lasts)
        bases, limits = _columns(shards)
        request = min((shard.request for shard in shards), default=PAGE)
        for offsets, count in ((starts_at, 8 * counts), (lengths_at, 4 * counts), (self._table.offsets[firsts], sizes)):
            _advise(bases, limits, offsets, count, request, _WILL_NEED, PAGE)
        return True

    def close(self) -> None:
        """Forget the maps; those in use stay until they are not."""
        with self._lock:
            self._shards.clear()
            self._held = 0

    def _index_places(
        self, firsts: Runs, lasts: Runs
    ) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]:
        """Return where the starts and the lengths of the documents of runs lie in their shards, and how many there are."""
        table = self._table
        shards, begins = table.shard_numbers[firsts], table.first_documents[firsts].astype(np.int64)
        counts = table.document_sums[lasts] - table.document_sums[firsts]
        counts[table.starts_at[shards] == 0] = 0  # they have no index in the file
        return (table.starts_at[shards] + 8 * begins, table.lengths_at[shards] + 4 * begins), counts

    def _check_ends(self, firsts: Runs, ends: NDArray[np.int64], limits: NDArray[np.int64]) -> None:
        """Raise unless what runs hold ends within their shards: to read beyond a map would end the process."""
        if (ends > limits).any():
            k = int(np.argmax(ends > limits))
            name = self._names[int(self._table.shard_numbers[firsts[k]])]
            raise ended_early(name, int(limits[k]), int(ends[k] - limits[k]))

    def _find(self, firsts: Runs) -> list[MappedShard] | None:
        """Return the shard of each run."""
        found = []
        for number in self._table.shard_numbers[firsts].tolist():
            shard = self._shards.get(number) or self._map(number)
            if shard is None:
                return None
            found.append(shard)
        return found

    def _map(self, number: int) -> MappedShard | None:
        with self._opened(number) as handle:
            status = os.fstat(handle)
            mapped = map_range(handle, 0, status.st_size, random=True)
        if mapped is None:
            return None
        shard = MappedShard(mapped, status.st_size, request_size(status.st_dev))
        with self._lock:
            if number not in self._shards:
                self._shards[number] = shard
                self._held += shard.size
            while self._held > self._most and len(self._shards) > 1:
                self._held -= self._shards.popitem(last=False)[1].size
        return shard


def _columns(shards: Sequence[MappedShard]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the map of each shard begins, and how many bytes it has."""
    return (
        np.array([shard.bytes.address for shard in shards], np.int64),
        np.array([shard.size for shard in shards], np.int64),
    )


def _give_back(ranges: Sequence[NDArray[np.int64]], shards: Sequence[MappedShard]) -> None:
    """Give pages back; ``shards`` are mapped until then."""
    _advise(*ranges, _WHOLE, _DONT_NEED, _AROUND)


_RANGES = int64[::1], int64[::1], int64[::1], int64[::1]  # base and bytes of each map, offset and bytes of each range


@compiled(types.void(*_RANGES, int64, int64, int64))
def _advise(bases: Any, limits: Any, offsets: Any, sizes: Any, piece: Any, advice: Any, unit: Any) -> None:
    """Advise the kernel on ranges, piece by piece, widened to whole units of memory but not beyond their maps."""
    for k in range(len(bases)):
        begin = bases[k] + offsets[k]
        at, end = max(bases[k], begin // unit * unit), min(bases[k] + limits[k], -(-(begin + sizes[k]) // unit) * unit)
        while sizes[k] and at < end:
            count = min(piece, end - at)
            _madvise(at, count, advice)
            at += count


@compiled(types.void(*_RANGES, types.uint8[::1]))
def _copy(bases: Any, limits: Any, offsets: Any, sizes: Any, out: Any) -> None:
    """Copy ranges, one behind the other."""
    at = int64(out.ctypes.data)
    for k in range(len(bases)):
        copy_bytes(at, bases[k] + offsets[k], sizes[k])
        at += sizes[k]
    _advise(bases, limits, offsets, sizes, _WHOLE, _DONT_NEED, _AROUND)
