"""Keys of documents, sorted group by group on disk, so that all documents of a bucket of keys can be read together.

The documents are cut into groups. The keys of a group are one file:

    int64           [lists, buckets + 1]    the first entry of each bucket of each list
    uint64, uint32  [entries]               keys, increasing within a list, each with the number of its document in the group
    uint32          [repeats, 2]            documents of the group with equal texts: the first, and each further one

List 0 has the first half of the texts' hashes, list k the keys of band k - 1. A bucket holds the keys that begin with the
same bits. Only the first of a group's documents with equal texts has entries. A band without shingles has no entry.

Two reads fetch a bucket from a group, for any number of buckets, and there are at most `MOST_GROUPS` groups. So the bytes
read for all buckets grow in proportion to the documents.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...atomic import atomic_file
from ..limits import DEFAULT_LIMITS

ENTRY = np.dtype([("key", "<u8"), ("document", "<u4")])  # without padding
ENTRY_BYTES = 48  # of memory for each entry while it is sorted
MOST_GROUPS = 1024


def buckets_for(documents: int, bucket_bytes: int = DEFAULT_LIMITS.bucket_bytes) -> int:
    """Return the number of buckets, a power of two, for which each bucket fits into ``bucket_bytes`` of memory.

    >>> buckets_for(50_000), buckets_for(20_000_000)
    (1, 64)
    """
    return 1 << max(0, -(-documents * ENTRY_BYTES // bucket_bytes) - 1).bit_length()


def group_rows_for(documents: int, least: int = DEFAULT_LIMITS.group_rows) -> int:
    """Return how many documents a group has: ``least``, or more, so that there are at most `MOST_GROUPS` groups.

    >>> group_rows_for(50_000), group_rows_for(1_024_000_000)
    (32768, 1000000)
    """
    return max(least, -(-documents // MOST_GROUPS))


def write_keys(
    path: Path, hashes: NDArray[np.uint8], signatures: Iterable[NDArray[np.uint32]], bands: int, rows: int, buckets: int
) -> None:
    """Write the keys of a group of documents.

    ``hashes`` are uint8 ``[n, 16]``. ``signatures`` are uint32 ``[n, num_perm]``, some documents at a time.
    """
    from .kernels import band_keys

    first, repeats = first_of_equal(hashes)
    hash_keys = hashes.view("<u8")[:, 0]
    values, empty = np.empty((bands, len(hashes)), np.uint64), np.empty((bands, len(hashes)), np.bool_)
    begin = 0
    for some in signatures:
        end = begin + len(some)
        band_keys(some, rows, values[:, begin:end], empty[:, begin:end])
        begin = end
    bounds = np.arange(1, buckets, dtype=np.uint64) << np.uint64(65 - buckets.bit_length())
    offsets = np.zeros((bands + 1, buckets + 1), np.int64)
    written = 0
    with atomic_file(path) as file:
        file.write(offsets.data)
        for number in range(bands + 1):
            mine = first if number == 0 else first[~empty[number - 1][first]]
            keys = (hash_keys if number == 0 else values[number - 1])[mine]
            order = np.argsort(keys, kind="stable")
            entries = np.empty(len(order), ENTRY)
            entries["key"], entries["document"] = keys[order], mine[order]
            file.write(entries.tobytes())
            offsets[number] = written + np.concatenate([[0], np.searchsorted(entries["key"], bounds), [len(order)]])
            written += len(order)
        file.write(repeats.tobytes())
        file.seek(0)
        file.write(offsets.data)


def first_of_equal(hashes: NDArray[np.uint8]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return the rows that no earlier row equals, increasing; and for every other row ``[first equal row, row]``."""
    numbers = np.ascontiguousarray(hashes).view("<u8").reshape(-1, 2)
    order = np.lexsort((numbers[:, 1], numbers[:, 0]))  # stable: the first of a run is the first in input order
    ordered = numbers[order]
    new = np.ones(len(order), bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    firsts = order[new]
    repeats = np.stack([firsts[np.cumsum(new) - 1], order], axis=1)[~new]
    return np.sort(firsts).astype(np.uint32), repeats.astype(np.uint32)


@dataclass(frozen=True)
class KeyFiles:
    """The key files of all groups. ``starts`` (``[groups + 1]``) are the first documents of the groups, and the end."""

    paths: Sequence[Path]
    starts: Sequence[int]
    lists: int
    buckets: int

    def read(
        self, number: int, bucket: int, only: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Return the keys of one bucket of a list, and their documents. The documents of equal keys increase.

        ``only`` says for every document whether to include it.
        """
        keys, documents = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)]
        for path, start, stop in zip(self.paths, self.starts, self.starts[1:], strict=False):
            entries = self._entries(path, number, bucket)
            if only is not None:
                entries = entries[only[start:stop][entries["document"]]]
            keys.append(entries["key"])
            documents.append(entries["document"] + np.uint32(start))
        return np.concatenate(keys), np.concatenate(documents)

    def repeats(self) -> Iterator[NDArray[np.uint32]]:
        """Yield the pairs ``[m, 2]`` of documents with equal texts, group by group."""
        for path, start in zip(self.paths, self.starts, strict=False):
            with open(path, "rb", buffering=0) as file:
                (entries,) = self._offsets(file.fileno(), self.lists - 1, self.buckets, 1)
                pairs = np.fromfile(file, np.uint32, offset=self._byte_of(entries))
            yield pairs.reshape(-1, 2) + np.uint32(start)

    def _entries(self, path: Path, number: int, bucket: int) -> NDArray[np.void]:
        with open(path, "rb", buffering=0) as file:
            begin, end = self._offsets(file.fileno(), number, bucket, 2)
            read = os.pread(file.fileno(), (end - begin) * ENTRY.itemsize, self._byte_of(begin))
        return np.frombuffer(read, ENTRY)

    def _offsets(self, file: int, number: int, bucket: int, count: int) -> list[int]:
        start = 8 * (number * (self.buckets + 1) + bucket)
        offsets: list[int] = np.frombuffer(os.pread(file, 8 * count, start), np.int64).tolist()
        return offsets

    def _byte_of(self, entry: int) -> int:
        return 8 * self.lists * (self.buckets + 1) + entry * ENTRY.itemsize
