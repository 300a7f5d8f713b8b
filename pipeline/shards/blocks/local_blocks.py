"""Shards on disk, or downloaded whole, read by extents: slices of their indexes and their bytes."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from ...errors import CorruptShardError, ShardError, TruncatedShardError
from ...objects.urls import is_remote, local_name, shown
from ..extents.extent_table import ExtentTable
from ..format import TAIL
from ..index import BlockIndex, ShardIndex, as_index, footer_of
from ..manifest import ShardInfo
from ..shard_access import ShardAccess
from .block_reader import Runs

_INDEX_BYTES = 64 << 20


class Stamp(NamedTuple):
    """Marks of a file that change when it is written: its size in bytes, and the time of the change in ns."""

    size: int
    time: int


def file_stamp(path: str | int) -> Stamp | None:
    """Return the stamp of a file by its path or descriptor; None if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Stamp(status.st_size, status.st_mtime_ns)


class LocalBlocks:
    """Reads shards as files, which ``access`` opens by their ``urls``; it downloads remote ones.

    ``infos``: the manifest's entries. ``verify``: whether each read compares bytes with their checksums. ``stamps``: the stamps
    of local tars without a manifest when the stream was made; a tar that changed since is refused. ``index_bytes``: the most
    bytes of indexes in memory, for tars of other tools. A file is open only while a range of it is read.
    """

    threads = 4

    def __init__(
        self,
        table: ExtentTable,
        urls: Sequence[str],
        infos: Sequence[ShardInfo | None],
        access: ShardAccess,
        *,
        verify: bool = False,
        stamps: Sequence[Stamp | None] | None = None,
        index_bytes: int = _INDEX_BYTES,
    ) -> None:
        self.table = table
        self._urls = urls
        self._infos = infos
        self._access = access
        self._verify = verify
        self._stamps = stamps
        self._index_bytes = index_bytes
        self._lock = threading.Lock()
        self._checked: dict[int, int] = {}  # inodes by shard: another file may take the name of a shard
        self._indexes: OrderedDict[int, ShardIndex] = OrderedDict()

    def name(self, shard: int) -> str:
        url = self._urls[shard]
        return shown(url) if is_remote(url) else local_name(url)

    def index(self, runs: Runs) -> list[BlockIndex]:
        return [self._index(*run) for run in runs]

    def read(self, runs: Runs, out: memoryview) -> None:
        at = 0
        for first, last in runs:
            shard, offset = int(self.table.shard_of(first)), int(self.table.offset_of(first))
            part = out[at : (at := at + int(self.table.size_sums[last] - self.table.size_sums[first]))]
            with self._opened(shard) as handle:
                _fill(handle, offset, part, self.name(shard))
            if self._verify:
                self._refuse(shard, self.table.wrong_bytes(first, last, part))

    def _index(self, first: int, last: int) -> BlockIndex:
        location = self.table.index_of(first, last)
        with self._opened(location.shard) as handle:
            if location.starts:
                items = bytearray(8 * location.documents), bytearray(4 * location.documents)
                _fill(handle, location.starts, memoryview(items[0]), self.name(location.shard))
                _fill(handle, location.lengths, memoryview(items[1]), self.name(location.shard))
                starts, lengths = as_index(*items)
            else:
                whole = self._scanned_index(location.shard)
                part = slice(location.first, location.first + location.documents)
                starts, lengths = whole.starts[part].astype("<i8"), whole.lengths[part].astype("<u4")
        self._refuse(location.shard, self.table.wrong_index(first, last, starts, lengths))
        return starts, lengths

    def _refuse(self, shard: int, problem: str | None) -> None:
        if problem is not None:
            raise CorruptShardError(f"{self.name(shard)}: {problem}; copy it again or rebuild it")

    @contextmanager
    def _opened(self, shard: int) -> Iterator[int]:
        """Yield the descriptor of a shard, after its size, footer and stamp are compared with the expected ones."""
        stamp = None if self._stamps is None else self._stamps[shard]
        if stamp is not None and file_stamp(self.name(shard)) is None:
            raise self._changed(shard, stamp, None)
        info = self._infos[shard]
        with self._access.opened(self._urls[shard], info) as (handle, size):
            try:
                if info is not None and self._checked.get(shard) != (inode := os.fstat(handle).st_ino):
                    footer_of(os.pread(handle, TAIL, max(0, size - TAIL)), size, self.name(shard), info)
                    self._checked[shard] = inode
                yield handle
            finally:
                if stamp is not None and (now := file_stamp(handle)) != stamp:
                    raise self._changed(shard, stamp, now)

    def _changed(self, shard: int, then: Stamp, now: Stamp | None) -> ShardError:
        sizes = f"{then.size} bytes then, {'gone' if now is None else now.size} now"
        return ShardError(
            f"{self.name(shard)} was written since the stream was made ({sizes}), so its documents may have changed; "
            "do not write to shards that are read, and make the stream again"
        )

    def _scanned_index(self, shard: int) -> ShardIndex:
        with self._lock:
            index = self._indexes.get(shard)
            if index is not None:
                self._indexes.move_to_end(shard)
                return index
        index = self._access.index(self._urls[shard], self._infos[shard])
        known = int(np.diff(self.table.document_sums[self.table.shard_bounds[shard : shard + 2]])[0])
        if len(index.lengths) != known:
            raise CorruptShardError(
                f"{self.name(shard)}: {len(index.lengths)} documents, but it had {known} when they were counted; the shard was "
                "replaced meanwhile: make the stream again"
            )
        with self._lock:
            self._indexes[shard] = index
            while (
                len(self._indexes) > 1 and sum(16 * len(index) for index in self._indexes.values()) > self._index_bytes
            ):
                self._indexes.popitem(last=False)
        return index


def _fill(handle: int, offset: int, target: memoryview, name: str) -> None:
    """Fill ``target`` from byte ``offset`` of an open file on; raises ``TruncatedShardError`` if the file is too short."""
    done = 0
    while done < len(target):
        count = os.preadv(handle, [target[done:]], offset + done)
        if count == 0:
            raise TruncatedShardError(
                f"{name}: the file ends at byte {offset + done}, {len(target) - done} bytes before the end that its index "
                "states; it was changed or cut while it was read; copy it again or rebuild it"
            )
        done += count
