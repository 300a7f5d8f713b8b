"""Slices of the indexes of remote shards: where the documents of blocks start, and how long they are."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from ..extents.table import ExtentTable
from ..remote.requests import INDEX, Requests
from .block_store import BlockStore, WrongBytesError
from .document_starts import index_by_headers, one_member_each, starts_by_lengths
from .mapped import read_bytes
from .source import joined

Index = tuple[bytes, bytes]  # starts as <i8, lengths as <u4
Run = tuple[int, int]  # rows of the table, first and behind the last
Wanted = tuple[int, int, float]  # a run, and when the order needs it, in epochs
Bring = Callable[[Sequence[Wanted], Sequence["Future[Index]"]], None]
_NEAR = 64 << 10  # bytes between the slices of two blocks that one request brings


class RemoteIndexes:
    """The indexes of runs of extents, by the checksums of a table; neighbours that are asked for together come by one request.

    Where documents start follows from their lengths for most runs, so these alone are asked for.
    """

    def __init__(self, table: ExtentTable, store: BlockStore, requests: Requests) -> None:
        self._table = table
        self._store = store
        self._requests = requests
        self._asked: dict[Run, Future[Index]] = {}
        self._lengths: dict[Run, Future[Index]] = {}  # their starts are b"" where no index was in the cache
        self._lock = threading.Lock()

    def ask(self, wanted: Sequence[Wanted]) -> None:
        """Have indexes at hand soon, the first of them first."""
        self._ask(wanted, self._asked, self.bring_all)

    def ask_lengths(self, wanted: Sequence[Wanted]) -> list[Future[Index]]:
        """Ask for what blocks do not tell of their indexes, for `of_block`; return what is to be waited for."""
        shared = [each for each in wanted if not one_member_each(self._table, *each[:2])]
        return self._ask(shared, self._lengths, self.bring_lengths)

    def get(self, first: int, last: int) -> Index:
        """Return an index, waiting for it."""
        self.ask([(first, last, 0.0)])
        with self._lock:
            asked = self._asked.pop((first, last), None)
        return asked.result() if asked is not None else self.bring(first, last, 0.0)

    def of_block(self, first: int, last: int, due: float, block: memoryview) -> Index:
        """Return the index of a block that is here, with the lengths that were asked for; else it is fetched."""
        with self._lock:
            asked = self._lengths.pop((first, last), None)
        starts, lengths = asked.result() if asked is not None else (b"", b"")
        if starts:
            return starts, lengths
        if not lengths and not one_member_each(self._table, first, last):
            return self.bring(first, last, due)
        found = index_by_headers(self._table, first, last, block, lengths)
        if found is None or self._wrong(first, last, *found) is not None:
            return self.bring(first, last, due)
        if (cache := self._store.cache) is not None:
            folder = self._store.id(int(self._table.shard_of(first)))
            held = cache.bring(folder, self.name(first, last), due, lambda: b"".join(found))
            if isinstance(held, int):
                os.close(held)
        return found

    def close(self) -> None:
        """Ask for nothing more."""
        for future in (*self._asked.values(), *self._lengths.values()):
            future.cancel()
        self._asked, self._lengths = {}, {}

    def name(self, first: int, last: int) -> str:
        """Return the name of an index in the cache."""
        _, begin, count = self._documents(first, last)
        return f"{begin}-{count}.index"

    def bring_all(self, wanted: Sequence[Wanted], futures: Sequence[Future[Index]]) -> None:
        """Bring the indexes of one shard, near each other, and give each to its future."""
        ahead: dict[Run, bytes] = {}
        if len(wanted) > 1:
            try:
                ahead = self._read_together([rows[:2] for rows in wanted])
            except Exception:  # each is tried alone, with retries
                ahead = {}
        for (first, last, due), future in zip(wanted, futures, strict=True):
            try:
                future.set_result(self.bring(first, last, due, ahead.get((first, last), b"")))
            except BaseException as error:
                future.set_exception(error)

    def bring_lengths(self, wanted: Sequence[Wanted], futures: Sequence[Future[Index]]) -> None:
        """Bring lengths of one shard, or indexes where the cache holds them."""
        left = []
        for (first, last, _), future in zip(wanted, futures, strict=True):
            if (held := self._find(first, last)) is not None:
                future.set_result(held)
            else:
                left.append(((first, last), future))
        if not left:
            return
        shard = int(self._table.shard_of(left[0][0][0]))
        try:
            found = self._store.checked(
                lambda attempt: self._read_lengths([rows for rows, _ in left], attempt),
                shard,
                "read lengths of documents",
            )
        except BaseException as error:
            for _, future in left:
                future.set_exception(error)
            return
        for rows, future in left:
            future.set_result((b"", found[rows]))

    def bring(self, first: int, last: int, due: float, ahead: bytes = b"") -> Index:
        """Return an index from the cache, or fetch it; ``ahead`` are its lengths where they were read already."""
        cache = self._store.cache
        if cache is None:
            return self._fetch(first, last, ahead)
        shard, _, count = self._documents(first, last)
        folder, name = self._store.id(shard), self.name(first, last)
        raw = _read_whole(cache.bring(folder, name, due, lambda: b"".join(self._fetch(first, last, ahead))), 12 * count)
        if self._wrong(first, last, raw[: 8 * count], raw[8 * count :]) is not None:
            cache.discard(folder, name)
            return self._fetch(first, last, ahead)
        return raw[: 8 * count], raw[8 * count :]

    def _ask(self, wanted: Sequence[Wanted], asked: dict[Run, Future[Index]], bring: Bring) -> list[Future[Index]]:
        """Return the futures of runs in ``asked``, and have those that are new there brought, neighbours together."""
        new: list[tuple[int, Wanted, Future[Index]]] = []
        with self._lock:
            for number, (first, last, due) in enumerate(wanted):
                if (first, last) not in asked:
                    future = asked[first, last] = Future()
                    new.append((number, (first, last, due), future))
            futures = [asked[first, last] for first, last, _ in wanted]
        runs: list[list[tuple[int, Wanted, Future[Index]]]] = []
        end = (-1, 0)
        for each in sorted(new, key=lambda each: each[1][:2]):
            shard, begin, count = self._documents(*each[1][:2])
            if end[0] != shard or 4 * begin - end[1] > _NEAR:
                runs.append([])
            runs[-1].append(each)
            end = shard, 4 * (begin + count)
        runs.sort(key=lambda run: min(number for number, _, _ in run))
        self._requests.submit_all(INDEX, [_Run(bring, [(rows, future) for _, rows, future in run]) for run in runs])
        return futures

    def _find(self, first: int, last: int) -> Index | None:
        """Return an index that the cache holds."""
        cache, (shard, _, count) = self._store.cache, self._documents(first, last)
        held = None if cache is None else cache.find(self._store.id(shard), self.name(first, last))
        raw = b"" if held is None else _read_whole(held, 12 * count)
        found = raw[: 8 * count], raw[8 * count :]
        return found if raw and self._wrong(first, last, *found) is None else None

    def _read_together(self, runs: list[Run]) -> dict[Run, bytes]:
        """Read the lengths of runs that are not in the cache, where they are several; nothing is checked."""
        cache = self._store.cache
        if cache is not None:
            folder = self._store.id(int(self._table.shard_of(runs[0][0])))
            runs = [rows for rows in runs if not cache.holds(folder, self.name(*rows))]
        return self._read_lengths(runs) if len(runs) > 1 else {}

    def _read_lengths(self, runs: list[Run], attempt: int = 1) -> dict[Run, bytes]:
        """Read the lengths of the documents of runs of one shard by one request."""
        places = {rows: self._documents(*rows) for rows in runs}
        shard = places[runs[0]][0]
        base = min(begin for _, begin, _ in places.values())
        count = max(begin + documents for _, begin, documents in places.values()) - base
        lengths = self._store.objects.read(shard, int(self._table.lengths_at[shard]) + 4 * base, 4 * count, attempt)
        return {
            rows: lengths[4 * (begin - base) : 4 * (begin - base + documents)]
            for rows, (_, begin, documents) in places.items()
        }

    def _fetch(self, first: int, last: int, ahead: bytes) -> Index:
        table = self._table
        shard, begin, count = self._documents(first, last)

        def fetch(attempt: int) -> Index:
            lengths = ahead if attempt == 1 else b""
            if not lengths:
                lengths = self._read_lengths([(first, last)], attempt)[first, last]
            found = starts_by_lengths(table, first, last, np.frombuffer(lengths, "<u4"))
            if found is not None:
                return found.astype("<i8").tobytes(), lengths
            starts = self._store.objects.read(shard, int(table.starts_at[shard]) + 8 * begin, 8 * count, attempt)
            wrong = self._wrong(first, last, starts, lengths)
            if wrong is not None:
                raise WrongBytesError(wrong)
            return starts, lengths

        return self._store.checked(fetch, shard, f"read the index of documents {begin} to {begin + count}")

    def _wrong(self, first: int, last: int, starts: bytes, lengths: bytes) -> str | None:
        wrong = self._table.wrong_index(np.arange(first, last), *joined([(starts, lengths)]))
        return None if wrong is None else wrong[1]

    def _documents(self, first: int, last: int) -> tuple[int, int, int]:
        """Return shard, first document and documents of a run of extents."""
        table = self._table
        count = int(table.document_sums[last] - table.document_sums[first])
        return int(table.shard_of(first)), int(table.first_document_of(first)), count


class _Run:
    """What is brought by one request, unless nobody holds the indexes any more."""

    def __init__(self, bring: Bring, wanted: list[tuple[Wanted, Future[Index]]]) -> None:
        self._bring = weakref.WeakMethod(bring)
        self._wanted = wanted

    def __call__(self) -> None:
        bring = self._bring()
        running = [each for each in self._wanted if each[1].set_running_or_notify_cancel()]
        if bring is not None and running:
            try:
                bring([rows for rows, _ in running], [future for _, future in running])
            except BaseException as error:
                for _, future in running:
                    if not future.done():  # else who waits for it waits for ever
                        future.set_exception(error)


def _read_whole(held: int | bytes | memoryview, size: int) -> bytes:
    if not isinstance(held, int):
        return bytes(held)
    try:
        return read_bytes(held, 0, size, "cache") if os.fstat(held).st_size == size else b""
    finally:
        os.close(held)
