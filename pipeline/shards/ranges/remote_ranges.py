"""Remote shards read by extents: blocks by ranged requests, many in flight, through memory or a cache on disk."""

from __future__ import annotations

import os
import threading
import weakref
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptShardError
from ..extents.table import ExtentTable
from ..format import BLOCK, NPY_HEADER
from ..manifest import ShardInfo
from ..remote.access import Access, Transient, shown
from ..remote.block_cache import BlockCache, shard_id
from ..remote.objects import RemoteObjects
from ..remote.requests import BLOCKS, INDEX, LATER, REQUESTS, ROWS, Requests
from ..remote.transport import attempting
from .coming_bytes import ComingBytes, memory_at
from .mapped import BufferedBytes, Bytes, map_range, read_bytes

Rows = tuple[int, int]
Read = tuple[int, int, memoryview]  # shard, offset, where to
_NEAR = 32 << 10  # bytes between two rows that are read by one request


class RemoteRanges:
    """Remote shards that have indexes, on servers that know ranges.

    Of ``urls``, ``infos`` are what a manifest says. Blocks are kept in ``cache``, or in memory alone. ``requests`` bounds what
    is in flight.
    """

    waits = True
    behind = True

    def __init__(
        self,
        table: ExtentTable,
        urls: Sequence[str],
        infos: Sequence[ShardInfo | None],
        access: Access,
        cache: BlockCache | None = None,
        requests: Requests = REQUESTS,
    ) -> None:
        self.table = table
        self.copies = cache is None
        self._objects = RemoteObjects(urls, [None if info is None else info.bytes for info in infos], access)
        self._infos = infos
        self._urls = urls
        self._access = access
        self._cache = cache
        self._requests = requests
        self._indexes: dict[Rows, Future[tuple[bytes, bytes]]] = {}
        self._later: dict[Rows, Future[Any]] = {}
        self._one_member = True  # a document: then its start follows from the lengths
        self._ids: dict[int, str] = {}
        self._lock = threading.Lock()

    # Indexes

    def ask_index(self, first: int, last: int, due: float) -> None:
        """Have the index of these extents at hand soon."""
        with self._lock:
            if (first, last) not in self._indexes:
                work = _of(self, lambda ranges: ranges._bring_index(first, last, due))
                self._indexes[first, last] = self._requests.submit(INDEX, work)

    def index(self, first: int, last: int) -> tuple[bytes, bytes]:
        self.ask_index(first, last, 0.0)
        with self._lock:
            asked = self._indexes.pop((first, last), None)
        return asked.result() if asked is not None else self._bring_index(first, last, 0.0)

    def _bring_index(self, first: int, last: int, due: float) -> tuple[bytes, bytes]:
        shard, begin, count = self._documents(first, last)
        if self._cache is None:
            return self._fetch_index(first, last)
        name = f"{begin}-{count}.index"
        held = self._cache.bring(self._id(shard), name, due, lambda: b"".join(self._fetch_index(first, last)))
        raw = _read_whole(held, 12 * count)
        if not self._is_sound_index(first, last, raw[: 8 * count], raw[8 * count :]):
            self._cache.discard(self._id(shard), name)
            return self._fetch_index(first, last)
        return raw[: 8 * count], raw[8 * count :]

    def _fetch_index(self, first: int, last: int) -> tuple[bytes, bytes]:
        table = self.table
        shard, begin, count = self._documents(first, last)

        def fetch(attempt: int) -> tuple[bytes, bytes]:
            lengths = self._objects.read(shard, int(table.lengths_at[shard]) + 4 * begin, 4 * count, attempt)
            if self._one_member:
                starts = self._starts_of(first, lengths)
                if self._is_sound_index(first, last, starts, lengths):
                    return starts, lengths
            starts = self._objects.read(shard, int(table.starts_at[shard]) + 8 * begin, 8 * count, attempt)
            if self._is_sound_index(first, last, starts, lengths):
                self._one_member = False
                return starts, lengths
            raise Transient(f"the index of documents {begin} to {begin + count} is not the one that was counted before")

        found: tuple[bytes, bytes] = self._checked(
            fetch, shard, f"read the index of documents {begin} to {begin + count}"
        )
        return found

    def _starts_of(self, first: int, lengths: bytes) -> bytes:
        """Return where documents start if each is a member of its own."""
        sizes = NPY_HEADER + np.frombuffer(lengths, "<u4").astype(np.int64) * self.table.itemsize
        steps = sizes + -sizes % BLOCK + BLOCK
        offset = int(self.table.offsets[first])
        begin = offset if offset else BLOCK + NPY_HEADER
        starts: NDArray[np.int64] = begin + np.cumsum(steps) - steps
        return starts.astype("<i8").tobytes()

    def _is_sound_index(self, first: int, last: int, starts: bytes, lengths: bytes) -> bool:
        begin = 0
        for row in range(first, last):
            end = begin + int(self.table.documents[row])
            if zlib.crc32(lengths[4 * begin : 4 * end], zlib.crc32(starts[8 * begin : 8 * end])) != int(
                self.table.index_crc32[row]
            ):
                return False
            begin = end
        return True

    # Blocks

    def memory(self, first: int, last: int) -> ComingBytes:
        """Return bytes that are here if the cache holds them; else they are asked for by `bring`."""
        shard, offset, size = self._place(first, last)
        coming = ComingBytes(shard, offset, size)
        held = None if self._cache is None else self._cache.find(self._id(shard), f"{offset}-{size}.block")
        found = None if held is None else self._sound(first, last, held)
        if found is not None:
            coming.come(found, self.name(shard))
        return coming

    def bring(self, coming: ComingBytes, first: int, last: int, due: float, *, now: bool = False) -> None:
        """Ask for bytes, before others if they are needed ``now``; ``due`` is when the order needs them."""
        if coming.address:
            return
        with self._lock:
            asked = self._later.pop((first, last), None)
            if asked is not None:
                asked.cancel()
            if coming.future is None:
                coming.future = Future()
            elif not now or coming.future.running() or coming.future.done():
                return
        reference = weakref.ref(coming)

        def work(ranges: RemoteRanges) -> None:
            wanted = reference()
            if wanted is not None:
                wanted.come(ranges._bring_block(first, last, due), ranges.name(wanted.shard))

        self._requests.submit(ROWS if now else BLOCKS, _of(self, work), coming.future)

    def ask(self, first: int, last: int, due: float = 0.0) -> None:
        """Have index and bytes of these extents in the cache on disk, when nothing else is asked for."""
        if self._cache is None:
            return

        def work(ranges: RemoteRanges) -> None:
            ranges._bring_index(first, last, due)
            ranges._bring_block(first, last, due)

        with self._lock:
            self._later = {rows: future for rows, future in self._later.items() if not future.done()}
            if (first, last) not in self._later:
                self._later[first, last] = self._requests.submit(LATER, _of(self, work))

    def used(self, first: int, last: int, due: float) -> None:
        """Note when the order needs these extents again."""
        if self._cache is not None:
            shard, offset, size = self._place(first, last)
            _, begin, count = self._documents(first, last)
            for name in (f"{offset}-{size}.block", f"{begin}-{count}.index"):
                self._cache.mark(self._id(shard), name, due)

    def _bring_block(self, first: int, last: int, due: float) -> Bytes:
        shard, offset, size = self._place(first, last)
        if self._cache is None:
            return self._fetch_block(first, last)
        name, fetched = f"{offset}-{size}.block", False

        def fetch() -> memoryview:
            nonlocal fetched
            fetched = True
            return memoryview(self._fetch_block(first, last).memory)[:size]

        held = self._cache.bring(self._id(shard), name, due, fetch)
        found = _as_memory(held, size) if fetched else self._sound(first, last, held)
        return found if found is not None else self._fetch_block(first, last)

    def _sound(self, first: int, last: int, held: int | bytes | memoryview) -> Bytes | None:
        """Return what the cache gave as memory; None where it is damaged, and then removed."""
        shard, offset, size = self._place(first, last)
        found = _as_memory(held, size)
        if found is not None and self._wrong_extent(first, last, memory_at(found, size)) is None:
            return found
        if self._cache is not None:
            self._cache.discard(self._id(shard), f"{offset}-{size}.block")
        return None

    def _fetch_block(self, first: int, last: int) -> BufferedBytes:
        shard, offset, size = self._place(first, last)

        def fetch(attempt: int) -> BufferedBytes:
            found = BufferedBytes(size)
            view = memoryview(found.memory)[:size]
            self._objects.fill(shard, offset, view, attempt)
            wrong = self._wrong_extent(first, last, view)
            if wrong is not None:
                raise Transient(wrong)
            return found

        found: BufferedBytes = self._checked(fetch, shard, f"read bytes {offset} to {offset + size}")
        return found

    def _wrong_extent(self, first: int, last: int, view: memoryview) -> str | None:
        """Say which extent has not the checksum of the table, where it has one."""
        if self.table.crc32 is None:
            return None
        begin = 0
        for row in range(first, last):
            end = begin + int(self.table.sizes[row])
            found, stated = zlib.crc32(view[begin:end]), int(self.table.crc32[row])
            if found != stated:
                offset = int(self.table.offsets[row])
                return f"bytes {offset} to {offset + end - begin} have checksum {found}, but the table of extents says {stated}"
            begin = end
        return None

    def _checked(self, fetch: Callable[[int], Any], shard: int, doing: str) -> Any:
        """Fetch with retries; bytes that are wrong twice are wrong at the source."""
        wrong = 0

        def attempt(number: int) -> Any:
            nonlocal wrong
            try:
                return fetch(number)
            except Transient as error:
                if "checksum" not in str(error) and "counted before" not in str(error):
                    raise
                wrong += 1
                if wrong > 1:
                    raise CorruptShardError(
                        f"{self.name(shard)}: {error}; it is damaged or was replaced at the source: copy it again or rebuild it"
                    ) from None
                raise

        return attempting(attempt, self._objects.target(shard), doing, self._access)

    # Rows

    def read(self, shard: int, offset: int, target: memoryview) -> None:
        self.read_all([(shard, offset, target)])

    def read_all(self, wanted: list[Read]) -> None:
        """Fill targets, at once and before anything else; neighbours by one request."""
        runs: list[list[Read]] = []
        for each in sorted(wanted, key=lambda each: each[:2]):
            before = runs[-1][-1] if runs else None
            if before is None or before[0] != each[0] or each[1] - before[1] - len(before[2]) > _NEAR:
                runs.append([])
            runs[-1].append(each)

        def fill(run: list[Read]) -> None:
            shard, begin = run[0][:2]
            end = max(offset + len(target) for _, offset, target in run)
            data = attempting(
                lambda attempt: self._objects.read(shard, begin, end - begin, attempt),
                self._objects.target(shard),
                f"read {end - begin} bytes from byte {begin}",
                self._access,
            )
            for _, offset, target in run:
                target[:] = data[offset - begin : offset - begin + len(target)]

        for future in [self._requests.submit(ROWS, _bound(fill, run)) for run in runs]:
            future.result()

    def check(self, first: int, last: int) -> None:
        """Every extent is checked when it comes."""

    def ask_bytes(self, shard: int, offset: int, size: int) -> None:
        """Nothing is asked for ahead of `read_all`."""

    def close(self) -> None:
        for future in [*self._indexes.values(), *self._later.values()]:
            future.cancel()
        self._indexes, self._later = {}, {}

    def name(self, shard: int) -> str:
        """Return what errors call a shard."""
        return shown(self._urls[shard])

    def _place(self, first: int, last: int) -> tuple[int, int, int]:
        table = self.table
        size = int(table.size_sums[last] - table.size_sums[first])
        return int(table.shard_numbers[first]), int(table.offsets[first]), size

    def _documents(self, first: int, last: int) -> tuple[int, int, int]:
        table = self.table
        count = int(table.document_sums[last] - table.document_sums[first])
        return int(table.shard_numbers[first]), int(table.first_documents[first]), count

    def _id(self, shard: int) -> str:
        """Return the folder of a shard in the cache: by its contents, or by its place and version."""
        found = self._ids.get(shard)
        if found is None:
            info = self._infos[shard]
            marks = (info.sha256, info.bytes) if info is not None else (self.name(shard), *self._objects.info(shard))
            found = self._ids[shard] = shard_id(*marks)
        return found


def _of(ranges: RemoteRanges, work: Callable[[RemoteRanges], Any]) -> Callable[[], Any]:
    """Return work that is left undone once nobody else holds the ranges."""
    reference = weakref.ref(ranges)

    def run() -> Any:
        held = reference()
        return work(held) if held is not None else None

    return run


def _bound(work: Callable[[Any], None], argument: Any) -> Callable[[], None]:
    return lambda: work(argument)


def _read_whole(held: int | bytes | memoryview, size: int) -> bytes:
    if not isinstance(held, int):
        return bytes(held)
    try:
        return read_bytes(held, 0, size, "cache") if os.fstat(held).st_size == size else b""
    finally:
        os.close(held)


def _as_memory(held: int | bytes | memoryview, size: int) -> Bytes | None:
    """Return what the cache gave as memory; None where it has another size."""
    if isinstance(held, int):
        try:
            if os.fstat(held).st_size != size:
                return None
            found: Bytes | None = map_range(held, 0, size, random=False)
            if found is None:
                found = BufferedBytes(size)
                memoryview(found.memory)[:size] = read_bytes(held, 0, size, "cache")
            return found
        finally:
            os.close(held)
    found = BufferedBytes(size)
    memoryview(found.memory)[:size] = held
    return found
