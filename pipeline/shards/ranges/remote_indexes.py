"""Slices of the indexes of remote shards: where the documents of blocks start, and how long they are."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from ..extents.table import ExtentTable
from ..format import BLOCK, NPY_HEADER
from ..remote.requests import INDEX, Requests
from .block_store import BlockStore, WrongBytesError
from .mapped import read_bytes
from .member_headers import index_by_headers
from .source import joined

Index = tuple[bytes, bytes]  # starts as <i8, lengths as <u4
Wanted = tuple[int, int, float]  # rows of the table, first and behind the last; when the order needs them, in epochs
_NEAR = 64 << 10  # bytes between the slices of two blocks that one request brings


class RemoteIndexes:
    """The indexes of runs of extents, by the checksums of a table; neighbours that are asked for together come by one request.

    Where each document is a member of its own, its start follows from the lengths, so these alone are asked for.
    """

    def __init__(self, table: ExtentTable, store: BlockStore, requests: Requests) -> None:
        self._table = table
        self._store = store
        self._requests = requests
        self._one_member = True  # a document, as far as is known
        self._asked: dict[tuple[int, int], Future[Index]] = {}
        self._lock = threading.Lock()

    def ask(self, wanted: Sequence[Wanted]) -> None:
        """Have indexes at hand soon, the first of them first."""
        new: list[tuple[int, Wanted, Future[Index]]] = []
        with self._lock:
            for number, (first, last, due) in enumerate(wanted):
                if (first, last) not in self._asked:
                    future = self._asked[first, last] = Future()
                    new.append((number, (first, last, due), future))
        runs: list[list[tuple[int, Wanted, Future[Index]]]] = []
        end = (-1, 0)
        for each in sorted(new, key=lambda each: each[1][:2]):
            shard, begin, count = self._documents(*each[1][:2])
            if end[0] != shard or 4 * begin - end[1] > _NEAR:
                runs.append([])
            runs[-1].append(each)
            end = shard, 4 * (begin + count)
        for run in sorted(runs, key=lambda run: min(number for number, _, _ in run)):
            self._requests.submit(INDEX, _Run(self, [(rows, future) for _, rows, future in run]))

    def get(self, first: int, last: int) -> Index:
        """Return an index, waiting for it."""
        self.ask([(first, last, 0.0)])
        with self._lock:
            asked = self._asked.pop((first, last), None)
        return asked.result() if asked is not None else self.bring(first, last, 0.0)

    @property
    def told_by_blocks(self) -> bool:
        """Whether blocks tell their indexes, as far as is known: each document is a member of its own."""
        return self._one_member

    def of_block(self, first: int, last: int, due: float, block: memoryview) -> Index:
        """Return the index of a block that is here; where its headers do not tell it, it is fetched."""
        found = index_by_headers(self._table, first, last, block)
        if found is None or self._wrong(first, last, *found) is not None:
            self._one_member = False
            return self.bring(first, last, due)
        if (cache := self._store.cache) is not None:
            held = cache.bring(
                self._store.id(self._documents(first, last)[0]), self.name(first, last), due, lambda: b"".join(found)
            )
            if isinstance(held, int):
                os.close(held)
        return found

    def close(self) -> None:
        """Ask for nothing more."""
        for future in self._asked.values():
            future.cancel()
        self._asked = {}

    def name(self, first: int, last: int) -> str:
        """Return the name of an index in the cache."""
        _, begin, count = self._documents(first, last)
        return f"{begin}-{count}.index"

    def bring_all(self, wanted: Sequence[tuple[Wanted, Future[Index]]]) -> None:
        """Bring the indexes of one run, and give each to its future."""
        running = [(rows, future) for rows, future in wanted if future.set_running_or_notify_cancel()]
        ahead: dict[tuple[int, int], Index] = {}
        if len(running) > 1:
            try:
                ahead = self._read_together([rows[:2] for rows, _ in running])
            except Exception:  # each is tried alone, with retries
                ahead = {}
        for (first, last, due), future in running:
            try:
                future.set_result(self.bring(first, last, due, ahead.get((first, last))))
            except BaseException as error:
                future.set_exception(error)

    def bring(self, first: int, last: int, due: float, ahead: Index | None = None) -> Index:
        """Return an index from the cache, or fetch it; ``ahead`` is what was read of it already."""
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

    def _read_together(self, runs: list[tuple[int, int]]) -> dict[tuple[int, int], Index]:
        """Read slices of one shard that lie near each other, those of the starts where they are needed; nothing is checked."""
        table, cache = self._table, self._store.cache
        shard = self._documents(*runs[0])[0]
        if cache is not None:
            runs = [rows for rows in runs if not cache.holds(self._store.id(shard), self.name(*rows))]
        if len(runs) < 2:
            return {}
        places = {rows: self._documents(*rows)[1:] for rows in runs}
        base = min(begin for begin, _ in places.values())
        count = max(begin + documents for begin, documents in places.values()) - base
        lengths = self._store.objects.read(shard, int(table.lengths_at[shard]) + 4 * base, 4 * count)
        starts = b""
        if not self._one_member:
            starts = self._store.objects.read(shard, int(table.starts_at[shard]) + 8 * base, 8 * count)
        found = {}
        for rows, (begin, documents) in places.items():
            at, stop = begin - base, begin - base + documents
            found[rows] = starts[8 * at : 8 * stop], lengths[4 * at : 4 * stop]
        return found

    def _fetch(self, first: int, last: int, ahead: Index | None) -> Index:
        table = self._table
        shard, begin, count = self._documents(first, last)

        def fetch(attempt: int) -> Index:
            starts, lengths = ahead if ahead is not None and attempt == 1 else (b"", b"")
            if not lengths:
                lengths = self._store.objects.read(shard, int(table.lengths_at[shard]) + 4 * begin, 4 * count, attempt)
            if self._one_member and not starts:
                starts = self._starts_of(first, lengths)
                if self._wrong(first, last, starts, lengths) is None:
                    return starts, lengths
                starts = b""
            if not starts:
                starts = self._store.objects.read(shard, int(table.starts_at[shard]) + 8 * begin, 8 * count, attempt)
            wrong = self._wrong(first, last, starts, lengths)
            if wrong is not None:
                raise WrongBytesError(wrong)
            self._one_member = False
            return starts, lengths

        return self._store.checked(fetch, shard, f"read the index of documents {begin} to {begin + count}")

    def _starts_of(self, first: int, lengths: bytes) -> bytes:
        """Return where documents start if each is a member of its own."""
        sizes = NPY_HEADER + np.frombuffer(lengths, "<u4").astype(np.int64) * self._table.itemsize
        steps = sizes + -sizes % BLOCK + BLOCK
        offset = int(self._table.offset_of(first))
        begin = offset if offset else BLOCK + NPY_HEADER
        starts: NDArray[np.int64] = begin + np.cumsum(steps) - steps
        return starts.astype("<i8").tobytes()

    def _wrong(self, first: int, last: int, starts: bytes, lengths: bytes) -> str | None:
        wrong = self._table.wrong_index(np.arange(first, last), *joined([(starts, lengths)]))
        return None if wrong is None else wrong[1]

    def _documents(self, first: int, last: int) -> tuple[int, int, int]:
        """Return shard, first document and documents of a run of extents."""
        table = self._table
        count = int(table.document_sums[last] - table.document_sums[first])
        return int(table.shard_of(first)), int(table.first_document_of(first)), count


class _Run:
    """Indexes to bring by one request, unless nobody holds the indexes any more."""

    def __init__(self, indexes: RemoteIndexes, wanted: list[tuple[Wanted, Future[Index]]]) -> None:
        self._indexes = weakref.ref(indexes)
        self._wanted = wanted

    def __call__(self) -> None:
        indexes = self._indexes()
        if indexes is not None:
            indexes.bring_all(self._wanted)


def _read_whole(held: int | bytes | memoryview, size: int) -> bytes:
    if not isinstance(held, int):
        return bytes(held)
    try:
        return read_bytes(held, 0, size, "cache") if os.fstat(held).st_size == size else b""
    finally:
        os.close(held)
