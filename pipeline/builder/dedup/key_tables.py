"""Keys of many partitions, sorted bucket by bucket: how often each occurs in all of them, and where first.

The table of a partition is the file ``keys.bin`` in a folder, with an entry for each different key:

    uint64 [n]    the keys, increasing
    uint32 [n]    the smallest number that the partition has for the key; 2 ** 32 - 1 if none of them counts as a first
    uint32 [n]    how often the partition has the key

A bucket holds the keys of one range, of all partitions. A partition that repeats a key adds it once. So a key that is in every
document takes no more memory than one entry for each partition.

    starts.npy    int64 [partitions + 1]: where the entries of each partition begin
    totals.npy    uint32: how often all partitions have the key of an entry; more than 2 ** 32 - 1 counts as that
    firsts.npy    uint64: the first partition that has the key, times 2 ** 32, plus the key's number there; 2 ** 64 - 1 if
                  the key has no first
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...atomic_directory import result_directory

_NAME, _ENTRY_BYTES = "keys.bin", 16
_MOST, NO_FIRST = np.iinfo(np.uint32).max, np.iinfo(np.uint64).max


class Found(NamedTuple):
    """The entry of each key of a partition: three arrays of ``[n]``, the totals uint32, the others uint64."""

    keys: NDArray[np.uint64]
    totals: NDArray[np.uint32]
    firsts: NDArray[np.uint64]


def write_table(
    folder: Path,
    keys: NDArray[np.uint64],
    numbers: NDArray[np.int64] | None = None,
    among: NDArray[np.bool_] | None = None,
) -> NDArray[np.uint32]:
    """Write the table of keys into a folder, and return the entry of each key.

    ``numbers`` (below 2 ** 32 - 1, increasing) go with the keys; by default their index. Only keys ``among`` may be a first one.
    """
    unique, entries, counts = np.unique(keys, return_inverse=True, return_counts=True)
    numbers = np.arange(len(keys)) if numbers is None else numbers
    some = slice(None) if among is None else among
    firsts = np.full(len(unique), _MOST, np.uint32)
    firsts[entries[some][::-1]] = numbers[some][::-1]  # of equal keys, the last one that is assigned stays
    with open(folder / _NAME, "wb") as file:
        for array in (unique, firsts, counts.astype(np.uint32)):
            array.tofile(file)
    return entries.astype(np.uint32)


def in_bucket(keys: NDArray[np.uint64], bucket: int, buckets: int) -> NDArray[np.uint64]:
    """Return the keys in one of ``buckets`` equal ranges; ``keys`` are sorted."""
    # A copy: a view would keep in memory all pages that the search touched.
    return np.array(keys[_range(keys, bucket, buckets)])


def _range(keys: NDArray[np.uint64], bucket: int, buckets: int) -> slice:
    first, last = (bucket << 64) // buckets, ((bucket + 1) << 64) // buckets - 1
    begin = np.searchsorted(keys, np.uint64(first), side="left")
    return slice(int(begin), int(np.searchsorted(keys, np.uint64(last), side="right")))


def sort_bucket(tables: Sequence[Path], result: Path, buckets: int, bucket: int) -> None:
    """Sort one bucket of the keys of all tables, which are in input order."""
    keys, counts, firsts = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)], [np.zeros(0, np.uint64)]
    for number, folder in enumerate(tables):
        table = _read_table(folder)
        mine = _range(table.keys, bucket, buckets)
        keys.append(np.array(table.keys[mine]))
        counts.append(np.array(table.counts[mine]))
        placed = table.firsts[mine] + (np.uint64(number) << np.uint64(32))
        firsts.append(np.where(table.firsts[mine] == _MOST, NO_FIRST, placed))
    starts = np.cumsum([0, *map(len, keys[1:])], dtype=np.int64)
    joined = np.concatenate(keys)
    del keys  # a bucket takes about 75 bytes of memory an entry
    order = np.argsort(joined, kind="stable")  # among equal keys, input order
    joined = joined[order]
    new = np.ones(len(joined), bool)
    new[1:] = joined[1:] != joined[:-1]
    del joined
    runs, group = np.flatnonzero(new), np.cumsum(new, dtype=np.int32) - 1
    totals, places = np.empty(len(order), np.uint32), np.empty(len(order), np.uint64)
    if len(order):
        sums = np.add.reduceat(np.concatenate(counts)[order], runs, dtype=np.uint64)
        totals[order] = np.minimum(sums, _MOST).astype(np.uint32)[group]
        places[order] = np.minimum.reduceat(np.concatenate(firsts)[order], runs)[group]
    with result_directory(result) as directory:
        np.save(directory / "starts.npy", starts)
        np.save(directory / "totals.npy", totals)
        np.save(directory / "firsts.npy", places)


def load_found(table: Path, results: Sequence[Path], number: int) -> Found:
    """Return how often, and where first, the keys of table ``number`` occur in all tables."""
    totals, firsts = [np.zeros(0, np.uint32)], [np.zeros(0, np.uint64)]
    for result in results:
        starts = _load(result, "starts")
        mine = slice(int(starts[number]), int(starts[number + 1]))
        totals.append(np.array(_load(result, "totals")[mine]))
        firsts.append(np.array(_load(result, "firsts")[mine]))
    return Found(np.array(_read_table(table).keys), np.concatenate(totals), np.concatenate(firsts))


def count_buckets(tables: Iterable[Path], most: int) -> int:
    """Return in how many buckets, of at most about ``most`` entries, all tables are sorted. Up to 8 keep workers busy."""
    entries = count_keys(tables)
    return max(1, -(-entries // most), min(8, entries >> 17))


def count_keys(tables: Iterable[Path]) -> int:
    """Return how many entries all tables have."""
    return sum((folder / _NAME).stat().st_size // _ENTRY_BYTES for folder in tables)


class _Table(NamedTuple):
    keys: NDArray[np.uint64]
    firsts: NDArray[np.uint32]
    counts: NDArray[np.uint32]


def _read_table(folder: Path) -> _Table:
    """Map the table of a folder. One file is mapped, because a large build maps each table for each bucket."""
    size = count_keys([folder])
    data = np.memmap(folder / _NAME, np.uint8, "r") if size else np.zeros(0, np.uint8)
    keys, firsts, counts = np.split(data, [8 * size, 12 * size])
    return _Table(keys.view(np.uint64), firsts.view(np.uint32), counts.view(np.uint32))


def _load(folder: Path, name: str) -> NDArray[Any]:
    array: NDArray[Any] = np.load(folder / f"{name}.npy", mmap_mode="r")
    return array
