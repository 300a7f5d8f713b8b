"""Keys of documents, sorted group by group on disk, so that all documents of a bucket of keys can be read together.

The documents are cut into groups, and each group's keys are one file:

    int64   [lists, buckets + 1]    where each bucket of each list begins among the entries below
    uint64  [entries]               keys, increasing within a list
    uint32  [entries]               the document of each key, counted from the start of the group
    uint32  [repeats, 2]            documents of the group with equal texts: the first, and each further one

List 0 has the first half of the texts' hashes, list k the keys of band k - 1. A bucket holds the keys that begin with the
same bits. Only the first document of equal texts within the group has entries, and none in a band without shingles.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...atomic import atomic_file
from ..limits import DEFAULT_LIMITS

Number = TypeVar("Number", np.uint32, np.uint64, np.int64)

ENTRY_BYTES = 48  # of memory that sorting needs for each entry


def buckets_for(documents: int, bucket_bytes: int = DEFAULT_LIMITS.bucket_bytes) -> int:
    """Return how many buckets keep each within its memory: a power of two.

    >>> buckets_for(50_000), buckets_for(20_000_000)
    (1, 64)
    """
    return 1 << max(0, -(-documents * ENTRY_BYTES // bucket_bytes) - 1).bit_length()


def write_keys(
    path: Path,
    hashes: NDArray[np.uint8],
    signatures: Iterable[NDArray[np.uint32]],
    bands: int,
    rows: int,
    buckets: int,
) -> None:
    """Write the keys of a group of documents.

    ``hashes``: uint8 ``[n, 16]``; ``signatures``: uint32 ``[n, num_perm]``, some documents at a time.
    """
    from .kernels import band_keys

    first, repeats = first_of_equal(hashes)
    halves = hashes.view("<u8")[:, 0]
    values, without = np.empty((bands, len(hashes)), np.uint64), np.empty((bands, len(hashes)), np.bool_)
    begin = 0
    for some in signatures:
        end = begin + len(some)
        band_keys(some, rows, values[:, begin:end], without[:, begin:end])
        begin = end
    bounds = np.arange(1, buckets, dtype=np.uint64) << np.uint64(65 - buckets.bit_length())
    offsets = np.empty((bands + 1, buckets + 1), np.int64)
    keys, documents, held = [], [], 0
    for number in range(bands + 1):
        mine = first if number == 0 else first[~without[number - 1][first]]
        found = (halves if number == 0 else values[number - 1])[mine]
        order = np.argsort(found, kind="stable")
        keys.append(found[order])
        documents.append(mine[order])
        offsets[number] = held + np.concatenate([[0], np.searchsorted(keys[-1], bounds), [len(order)]])
        held += len(order)
    with atomic_file(path) as file:
        for array in (offsets, *keys, *documents, repeats):
            file.write(np.ascontiguousarray(array).data)


def first_of_equal(hashes: NDArray[np.uint8]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the rows that no earlier row equals, increasing, and ``[repeats, 2]``: first and further equal rows."""
    halves = np.ascontiguousarray(hashes).view("<u8").reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))  # stable: the first of a run is the first in input order
    ordered = halves[order]
    new = np.ones(len(order), bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    firsts = order[new]
    repeats = np.stack([firsts[np.cumsum(new) - 1], order], axis=1)[~new]
    return np.sort(firsts).astype(np.uint32), repeats.astype(np.uint32)


@dataclass(frozen=True)
class KeyFiles:
    """The key files of all groups; ``starts`` (``[groups + 1]``) is the first document of each."""

    paths: Sequence[Path]
    starts: Sequence[int]
    lists: int
    buckets: int

    def read(
        self, number: int, bucket: int, only: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Return the keys of one bucket of a list, and their documents; those of equal keys increase.

        ``only``: bool, for every document, whether it takes part.
        """
        keys, documents = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
        for path, start, stop in zip(self.paths, self.starts, self.starts[1:], strict=False):
            mine, rows = self._entries(path, number, bucket)
            if only is not None:
                taking = only[start:stop][rows]
                mine, rows = mine[taking], rows[taking]
            keys.append(mine)
            documents.append(rows + np.uint32(start))
        return np.concatenate(keys), np.concatenate(documents)

    def repeats(self) -> Iterator[NDArray[np.uint32]]:
        """Yield ``[m, 2]`` documents of equal texts, group by group."""
        for path, start in zip(self.paths, self.starts, strict=False):
            with open(path, "rb") as file:
                entries = int(self._offsets(file.fileno())[-1, -1])
                place = self._header + 12 * entries
                size = os.fstat(file.fileno()).st_size
                yield _read(file.fileno(), np.uint32, place, (size - place) // 4).reshape(-1, 2) + np.uint32(start)

    @property
    def _header(self) -> int:
        return 8 * self.lists * (self.buckets + 1)

    def _offsets(self, file: int) -> NDArray[np.int64]:
        return _read(file, np.int64, 0, self._header // 8).reshape(self.lists, self.buckets + 1)

    def _entries(self, path: Path, number: int, bucket: int) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        with open(path, "rb") as file:
            offsets = self._offsets(file.fileno())
            begin, end, entries = (int(k) for k in (*offsets[number, bucket : bucket + 2], offsets[-1, -1]))
            keys = _read(file.fileno(), np.uint64, self._header + 8 * begin, end - begin)
            return keys, _read(file.fileno(), np.uint32, self._header + 8 * entries + 4 * begin, end - begin)


def _read(file: int, dtype: type[Number], offset: int, count: int) -> NDArray[Number]:
    return np.frombuffer(os.pread(file, count * np.dtype(dtype).itemsize, offset), dtype)
