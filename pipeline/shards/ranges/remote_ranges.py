"""Remote shards read by extents: blocks by ranged requests, many in flight, through memory or a cache on disk."""

from __future__ import annotations

import os
import threading
import weakref
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ..extents.table import ExtentTable
from ..manifest import ShardInfo
from ..remote.access import Access
from ..remote.block_cache import BlockCache
from ..remote.objects import RemoteObjects
from ..remote.requests import BLOCKS, LATER, REQUESTS, ROWS, Requests
from ..remote.transport import attempting
from .block_store import BlockStore, WrongBytesError
from .coming_bytes import ComingBytes, memory_at
from .mapped import BufferedBytes, Bytes, map_range, read_bytes
from .remote_indexes import RemoteIndexes
from .source import Index, Rows, joined

Run = tuple[int, int]  # rows of the table, first and behind the last
Read = tuple[int, int, memoryview]  # shard, offset, where to
_NEAR = 32 << 10  # bytes between two rows that are read by one request


class RemoteRanges:
    """Remote shards that have indexes, on servers that know ranges.

    Of ``urls``, ``infos`` are what a manifest says. Blocks are kept in ``cache``, or in memory alone. ``requests`` bounds what
    is in flight.
    """

    waits = True
    behind = True
    rows_first = False  # as `behind` says, they are

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
        self._store = BlockStore(self._objects, infos, access, cache)
        self._indexes = RemoteIndexes(table, self._store, requests)
        self._access = access
        self._cache = cache
        self._requests = requests
        self._later: dict[Run, Future[Any]] = {}
        self._coming: weakref.WeakSet[ComingBytes] = weakref.WeakSet()
        self._lock = threading.Lock()

    def ask_indexes(self, wanted: Sequence[tuple[int, int, float]]) -> None:
        """Have the indexes of runs of extents at hand soon; each comes with when the order needs it, in epochs."""
        self._indexes.ask(wanted)

    def ask_index(self, firsts: Rows, lasts: Rows) -> None:
        self._indexes.ask([(*run, 0.0) for run in zip(firsts.tolist(), lasts.tolist(), strict=True)])

    def index(self, firsts: Rows, lasts: Rows) -> Index:
        return joined([self._indexes.get(*run) for run in zip(firsts.tolist(), lasts.tolist(), strict=True)])

    def ask_lengths(self, wanted: Sequence[tuple[int, int, float]]) -> list[Future[Any]]:
        """Ask for what these runs' blocks do not tell of their indexes; return what `index_of_block` waits for."""
        return [*self._indexes.ask_lengths(wanted)]

    def index_of_block(self, coming: ComingBytes, first: int, last: int, due: float) -> tuple[bytes, bytes]:
        """Return an index out of a block that was brought."""
        if coming.future is not None:
            coming.future.result()
        return self._indexes.of_block(first, last, due, coming.view())

    # Blocks

    def memory(self, first: int, last: int) -> ComingBytes:
        """Return bytes that are here if the cache holds them; else they are asked for by `bring`."""
        shard, offset, size = self._place(first, last)
        coming = ComingBytes(shard, offset, size)
        held = None if self._cache is None else self._cache.find(self._store.id(shard), f"{offset}-{size}.block")
        found = None if held is None else self._sound(first, last, held)
        if found is not None:
            coming.come(found, self._objects.name(shard))
        return coming

    def memories(self, firsts: Rows, lasts: Rows) -> None:
        """Each block takes memory of its own."""

    def bring(self, coming: ComingBytes, first: int, last: int, due: float, *, now: bool = False) -> None:
        """Ask for bytes, before others if they are needed ``now``; ``due`` is when the order needs them."""
        self.bring_all([coming], [(first, last)], due, now=now)

    def bring_all(self, blocks: Sequence[ComingBytes], runs: Sequence[Run], due: float, *, now: bool = False) -> None:
        """Do what `bring` does for several."""
        wanted = [each for each in zip(blocks, runs, strict=True) if not each[0].address]
        works, futures = [], []
        with self._lock:
            for coming, rows in wanted:
                asked = self._later.pop(rows, None)
                if asked is not None:
                    asked.cancel()
                if coming.future is None:
                    coming.future = Future()
                    self._coming.add(coming)
                elif not now or coming.future.running() or coming.future.done():
                    continue
                works.append(_of(self, _Block(coming, rows, due)))
                futures.append(coming.future)
        self._requests.submit_all(ROWS if now else BLOCKS, works, futures)

    def ask(self, firsts: Rows, lasts: Rows) -> None:
        for run in zip(firsts.tolist(), lasts.tolist(), strict=True):
            self.ask_run(*run)

    def ask_run(self, first: int, last: int, due: float = 0.0) -> None:
        """Have index and bytes of these extents in the cache on disk, when nothing else is asked for."""
        if self._cache is None:
            return

        def work(ranges: RemoteRanges) -> None:
            found = ranges._bring_block(first, last, due)
            ranges._indexes.of_block(first, last, due, memory_at(found, ranges._place(first, last)[2]))

        with self._lock:
            self._later = {rows: future for rows, future in self._later.items() if not future.done()}
            if (first, last) not in self._later:
                self._later[first, last] = self._requests.submit(LATER, _of(self, work))

    def used(self, first: int, last: int, due: float) -> None:
        """Note when the order needs these extents again."""
        if self._cache is not None:
            shard, offset, size = self._place(first, last)
            for name in (f"{offset}-{size}.block", self._indexes.name(first, last)):
                self._cache.mark(self._store.id(shard), name, due)

    def _bring_block(self, first: int, last: int, due: float) -> Bytes:
        shard, offset, size = self._place(first, last)
        if self._cache is None:
            return self._fetch_block(first, last)
        name, fetched = f"{offset}-{size}.block", False

        def fetch() -> memoryview:
            nonlocal fetched
            fetched = True
            return memoryview(self._fetch_block(first, last).memory)[:size]

        held = self._cache.bring(self._store.id(shard), name, due, fetch)
        found = _as_memory(held, size) if fetched else self._sound(first, last, held)
        return found if found is not None else self._fetch_block(first, last)

    def _sound(self, first: int, last: int, held: int | bytes | memoryview) -> Bytes | None:
        """Return what the cache gave as memory; None where it is damaged, and then removed."""
        shard, offset, size = self._place(first, last)
        found = _as_memory(held, size)
        if found is not None and self._wrong(first, last, memory_at(found, size)) is None:
            return found
        if self._cache is not None:
            self._cache.discard(self._store.id(shard), f"{offset}-{size}.block")
        return None

    def _fetch_block(self, first: int, last: int) -> BufferedBytes:
        shard, offset, size = self._place(first, last)

        def fetch(attempt: int) -> BufferedBytes:
            found = BufferedBytes(size)
            view = memoryview(found.memory)[:size]
            self._objects.fill(shard, offset, view, attempt)
            wrong = self._wrong(first, last, view)
            if wrong is not None:
                raise WrongBytesError(wrong)
            return found

        found: BufferedBytes = self._store.checked(fetch, shard, f"read bytes {offset} to {offset + size}")
        return found

    def _wrong(self, first: int, last: int, view: memoryview) -> str | None:
        return self.table.wrong_bytes(first, last, lambda begin, end: zlib.crc32(view[begin:end]))

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

        for future in self._requests.submit_all(ROWS, [_bound(fill, run) for run in runs]):
            future.result()

    def check(self, first: int, last: int) -> None:
        """Every extent is checked when it comes."""

    def ask_bytes(self, shard: int, offset: int, size: int) -> None:
        """Nothing is asked for ahead of `read_all`."""

    def close(self) -> None:
        self._indexes.close()
        with self._lock:
            futures = [*self._later.values(), *(each.future for each in self._coming if each.future is not None)]
            self._later = {}
        for future in futures:
            future.cancel()

    def _place(self, first: int, last: int) -> tuple[int, int, int]:
        table = self.table
        size = int(table.size_sums[last] - table.size_sums[first])
        return int(table.shard_of(first)), int(table.offset_of(first)), size


class _Block:
    """A block to bring, unless nobody waits for it any more."""

    def __init__(self, coming: ComingBytes, rows: Run, due: float) -> None:
        self._coming = weakref.ref(coming)
        self._rows = rows
        self._due = due

    def __call__(self, ranges: RemoteRanges) -> None:
        wanted = self._coming()
        if wanted is not None:
            wanted.come(ranges._bring_block(*self._rows, self._due), ranges._objects.name(wanted.shard))


def _of(ranges: RemoteRanges, work: Callable[[RemoteRanges], Any]) -> Callable[[], Any]:
    """Return work that is left undone once nobody else holds the ranges."""
    reference = weakref.ref(ranges)

    def run() -> Any:
        held = reference()
        return work(held) if held is not None else None

    return run


def _bound(work: Callable[[Any], None], argument: Any) -> Callable[[], None]:
    return lambda: work(argument)


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
