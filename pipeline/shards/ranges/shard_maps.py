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
from .source import Rows

_MOST_BYTES = 32 << 30  # that stay mapped though unused: the system's tables of their pages take a 512th of that
_AROUND = 64 << 10  # bytes that the kernel maps around a page that is read
_WILL_NEED, _DONT_NEED = 3, 4  # the same on all systems that have madvise
_WHOLE = 1 << 62
Columns = NDArray[np.int64]  # [2, n]: where maps begin and their bytes, or offsets of ranges in them and their bytes
_madvise: Any = types.ExternalFunction("madvise", types.int32(types.uintp, types.uintp, types.int32))


class MappedShard(NamedTuple):
    """A shard that is mapped from its first byte on; ``request``: bytes that the kernel reads for one piece of advice."""

    bytes: MappedBytes
    size: int
    request: int


class BytesInUse:
    """Ranges of memory that hold bytes while this is referred to, and are given back then."""

    def __init__(self, maps: Columns, ranges: Columns, shards: Sequence[MappedShard]) -> None:
        finalize(self, _give_back, maps, ranges, shards).atexit = False


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

    def index(self, firsts: Rows, lasts: Rows) -> tuple[NDArray[np.int64], NDArray[np.uint32]] | None:
        """Return where the documents of runs start (bytes) and their tokens, run by run."""
        shards = self._find(firsts)
        if shards is None:
            return None
        maps, places = _columns(shards), self._places(firsts, lasts)
        self._check_ends(firsts, places[2] + places[3], maps[1])
        count = int(places[3].sum()) // 4
        starts, lengths = np.empty(count, np.int64), np.empty(count, np.uint32)
        _copy(maps, places[:2], starts.view(np.uint8))
        _copy(maps, places[2:4], lengths.view(np.uint8))
        return starts, lengths

    def memory(self, firsts: Rows, lasts: Rows) -> tuple[NDArray[np.int64], BytesInUse] | None:
        """Return the addresses of the bytes of runs, and what keeps them there."""
        shards = self._find(firsts)
        if shards is None:
            return None
        maps, places = _columns(shards), self._places(firsts, lasts)[4:]
        self._check_ends(firsts, places[0] + places[1], maps[1])
        return maps[0] + places[0], BytesInUse(maps, places, shards)

    def ask(self, firsts: Rows, lasts: Rows, sizes: NDArray[np.int64]) -> None:
        """Have the kernel read the indexes of runs, and ``sizes`` of their bytes, and do not wait."""
        shards = self._find(firsts)
        if shards is None:
            return
        maps, places = _columns(shards), self._places(firsts, lasts)
        places[5] = sizes
        request = min((shard.request for shard in shards), default=PAGE)
        for k in (0, 2, 4):
            _advise(maps, places[k : k + 2], request, _WILL_NEED, PAGE)

    def close(self) -> None:
        """Forget the maps; those in use stay until they are not."""
        with self._lock:
            self._shards.clear()
            self._held = 0

    def _places(self, firsts: Rows, lasts: Rows) -> NDArray[np.int64]:
        """Return offset and bytes of what runs have of starts, lengths and documents in their shards (int64 [6, runs])."""
        table, out = self._table, np.empty((6, len(firsts)), np.int64)
        _locate(
            firsts, lasts, table.shard_of(firsts), table.shard_bounds, table.starts_at, table.lengths_at,
            table.document_sums, table.size_sums, out,
        )  # fmt: skip
        return out

    def _check_ends(self, firsts: Rows, ends: NDArray[np.int64], limits: NDArray[np.int64]) -> None:
        """Raise unless what runs hold ends within their shards: to read beyond a map would end the process."""
        if (ends > limits).any():
            k = int(np.argmax(ends > limits))
            name = self._names[int(self._table.shard_of(firsts[k]))]
            raise ended_early(name, int(limits[k]), int(ends[k] - limits[k]))

    def _find(self, firsts: Rows) -> list[MappedShard] | None:
        """Return the shard of each run."""
        found = []
        for number in self._table.shard_of(firsts).tolist():
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


def _columns(shards: Sequence[MappedShard]) -> Columns:
    """Return where the maps of shards begin, and their bytes."""
    return np.array([[shard.bytes.address for shard in shards], [shard.size for shard in shards]], np.int64)


def _give_back(maps: Columns, ranges: Columns, shards: Sequence[MappedShard]) -> None:
    """Give pages back; ``shards`` are mapped until then."""
    _advise(maps, ranges, _WHOLE, _DONT_NEED, _AROUND)


_ITEMS = types.Array(int64, 1, "C", readonly=True)


@compiled(types.void(*(int64[::1], int64[::1], int64[::1]), *[_ITEMS] * 5, int64[:, ::1]))
def _locate(
    firsts: Any,
    lasts: Any,
    shards: Any,
    shard_bounds: Any,
    starts_at: Any,
    lengths_at: Any,
    document_sums: Any,
    size_sums: Any,
    out: Any,
) -> None:
    """Write offset and bytes of the starts, the lengths and the documents of each run; a shard without an index has none."""
    for k in range(len(firsts)):
        first, shard, begin = firsts[k], shards[k], shard_bounds[shards[k]]
        before = document_sums[first] - document_sums[begin]
        count = document_sums[lasts[k]] - document_sums[first] if starts_at[shard] else 0
        out[0, k], out[1, k] = starts_at[shard] + 8 * before, 8 * count
        out[2, k], out[3, k] = lengths_at[shard] + 4 * before, 4 * count
        out[4, k], out[5, k] = size_sums[first] - size_sums[begin], size_sums[lasts[k]] - size_sums[first]


@compiled(types.void(int64[:, ::1], int64[:, ::1], int64, int64, int64))
def _advise(maps: Any, ranges: Any, piece: Any, advice: Any, unit: Any) -> None:
    """Advise the kernel on ranges, piece by piece, widened to whole units of memory but not beyond their maps."""
    for k in range(maps.shape[1]):
        begin, size = maps[0, k] + ranges[0, k], ranges[1, k]
        at, end = max(maps[0, k], begin // unit * unit), min(maps[0, k] + maps[1, k], -(-(begin + size) // unit) * unit)
        while size and at < end:
            count = min(piece, end - at)
            _madvise(at, count, advice)
            at += count


@compiled(types.void(int64[:, ::1], int64[:, ::1], types.uint8[::1]))
def _copy(maps: Any, ranges: Any, out: Any) -> None:
    """Copy ranges, one behind the other, and give their pages back."""
    at = int64(out.ctypes.data)
    for k in range(maps.shape[1]):
        copy_bytes(at, maps[0, k] + ranges[0, k], ranges[1, k])
        at += ranges[1, k]
    _advise(maps, ranges, _WHOLE, _DONT_NEED, _AROUND)
