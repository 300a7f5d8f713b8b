"""Keys of many partitions, sorted on disk: how often each occurs in all of them, and where first.

    tables/000034     the different keys of a partition, increasing, each with its first place and how often the partition has it.
                      A place is a partition times 2 ** 32, plus a number there: 2 ** 32 - 1 if no key counts as a first
    groups/000003     the entries of the tables of some partitions: a section for each bucket
    buckets/000002    how often all partitions have the key of each entry (more than 2 ** 32 - 1 counts as that), and its first
                      place in all; 2 ** 64 - 1 if it has none. A bucket has the keys of a range, in a section for each group
    results/000003    the same for a group: a section for each partition

A file of sections begins with their starts, int64 [sections + 1]. A partition that repeats a key adds it once. So a key that is
in every document takes no more memory than one entry for each partition. There are at most as many groups as buckets. So a
bucket reads few files, however many partitions there are, and no worker holds more than about one bucket, or one group.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...atomic import atomic_file
from ...atomic_directory import result_directory

_NAME = "keys.bin"
_MOST, NO_FIRST = np.iinfo(np.uint32).max, np.iinfo(np.uint64).max
_ENTRY = np.dtype([("key", "<u8"), ("place", "<u8"), ("count", "<u4")])  # without padding
_FOUND = np.dtype([("total", "<u4"), ("first", "<u8")])


def write_table(
    folder: Path,
    partition: int,
    keys: NDArray[np.uint64],
    numbers: NDArray[np.int64],
    among: NDArray[np.bool_] | slice = slice(None),
) -> NDArray[np.uint32]:
    """Write the table of the keys of a partition into a folder, and return the entry of each key.

    ``numbers`` (below 2 ** 32 - 1, increasing) go with the keys. Only keys ``among`` may be a first one.
    """
    unique, entries, counts = np.unique(keys, return_inverse=True, return_counts=True)
    firsts = np.full(len(unique), _MOST, np.uint64)
    firsts[entries[among][::-1]] = numbers[among][::-1]  # of equal keys, the last one that is assigned stays
    table = np.empty(len(unique), _ENTRY)
    table["key"], table["place"], table["count"] = unique, firsts + (np.uint64(partition) << np.uint64(32)), counts
    table.tofile(folder / _NAME)
    return entries.astype(np.uint32)


def load_keys(folder: Path) -> NDArray[np.uint64]:
    """Return the keys of the table in a folder."""
    return np.array(np.fromfile(folder / _NAME, _ENTRY)["key"])


def count_keys(tables: Iterable[Path]) -> int:
    """Return how many entries all tables have."""
    return sum((folder / _NAME).stat().st_size // _ENTRY.itemsize for folder in tables)


def count_buckets(entries: int, most: int) -> int:
    """Return in how many buckets, of at most about ``most`` entries, all tables are sorted. Up to 8 keep workers busy."""
    return max(1, -(-entries // most), min(8, entries >> 17))


@dataclass(frozen=True)
class KeyTables:
    """The tables of some ``partitions`` in a folder, and the files that are made of them."""

    folder: Path
    partitions: Sequence[int]
    buckets: int

    @property
    def groups(self) -> int:
        return max(1, min(self.buckets, len(self.partitions)))

    def path(self, kind: str, number: int) -> Path:
        return self.folder / kind / f"{number:06d}"

    def steps(self) -> list[tuple[str, range, Callable[[int], None], Callable[[int], Path]]]:
        """Return the verb, the units and the function of each step, and the path that it makes of a unit."""
        groups, buckets, path = range(self.groups), range(self.buckets), self.path
        return [
            ("group", groups, self.write_group, functools.partial(path, "groups")),
            ("sort", buckets, self.sort_bucket, functools.partial(path, "buckets")),
            ("return", groups, self.write_result, functools.partial(path, "results")),
        ]

    def _members(self, group: int) -> Sequence[int]:
        size = len(self.partitions)
        return self.partitions[group * size // self.groups : (group + 1) * size // self.groups]

    def write_group(self, group: int) -> None:
        tables = [np.fromfile(self.path("tables", number) / _NAME, _ENTRY) for number in self._members(group)]
        entries = np.concatenate([np.empty(0, _ENTRY), *tables])
        del tables
        # Of a key, its upper half alone: times the number of buckets, it fits into 64 bits.
        bucket = (entries["key"] >> np.uint64(32)) * np.uint64(self.buckets) >> np.uint64(32)
        _write_sections(self.path("groups", group), bucket.astype(np.int64), self.buckets, entries)

    def sort_bucket(self, bucket: int) -> None:
        pieces = [_read_sections(self.path("groups", at), [bucket], self.buckets, _ENTRY) for at in range(self.groups)]
        group, entries = np.repeat(np.arange(self.groups), [*map(len, pieces)]), np.concatenate(pieces)
        del pieces  # a bucket takes about 75 bytes of memory an entry
        order = np.argsort(entries["key"], kind="stable")  # among equal keys, input order
        ordered = entries["key"][order]
        new = np.ones(len(ordered), bool)
        new[1:] = ordered[1:] != ordered[:-1]
        del ordered
        runs, run = np.flatnonzero(new), np.cumsum(new, dtype=np.int32) - 1
        found = np.empty(len(order), _FOUND)
        if len(order):
            sums = np.add.reduceat(entries["count"][order], runs, dtype=np.uint64)
            found["total"][order] = np.minimum(sums, _MOST).astype(np.uint32)[run]
            places = entries["place"][order]
            places[places.astype(np.uint32) == _MOST] = NO_FIRST
            found["first"][order] = np.minimum.reduceat(places, runs)[run]
        _write_sections(self.path("buckets", bucket), group, self.groups, found)

    def write_result(self, group: int) -> None:
        places = _read_sections(self.path("groups", group), range(self.buckets), self.buckets, _ENTRY)["place"]
        buckets = (self.path("buckets", bucket) for bucket in range(self.buckets))
        found = [_read_sections(bucket, [group], self.groups, _FOUND) for bucket in buckets]
        members = np.array(self._members(group), np.int64)
        member = np.searchsorted(members, (places >> np.uint64(32)).astype(np.int64))
        _write_sections(self.path("results", group), member, len(members), np.concatenate(found))

    def found(self, partition: int) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """Return how often each key of a partition occurs in all, uint32 ``[n]``, and its first place, uint64 ``[n]``."""
        group = ((bisect_left(self.partitions, partition) + 1) * self.groups - 1) // len(self.partitions)
        members = self._members(group)
        found = _read_sections(self.path("results", group), [members.index(partition)], len(members), _FOUND)
        return np.array(found["total"]), np.array(found["first"])


def write_key_set(path: Path, keys: Sequence[Path]) -> None:
    """Write a set that has all keys of some files, which `numpy` saved, and hardly any others: a bit for each range of keys.

    The ranges are at least 16 times as many as the keys, which are hashes, and at least 2 ** 27. So at most one key in 16 is in
    the set by chance, and hardly any if the set is small. The file takes no room for ranges without keys.
    """
    count = sum(len(np.load(each, mmap_mode="r")) for each in keys)
    with result_directory(path) as directory:
        shape = (1 << max(24, (2 * count).bit_length()),)
        bits = np.lib.format.open_memmap(directory / "bits.npy", "w+", np.uint8, shape)
        for each in keys:
            byte, bit = _bit_of(np.load(each), bits)
            np.bitwise_or.at(bits, byte, bit)


def in_key_set(path: Path, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return which keys are in a set that `write_key_set` wrote."""
    bits = np.load(path / "bits.npy", mmap_mode="r")
    byte, bit = _bit_of(keys, bits)
    return np.asarray(bits[byte] & bit > 0)


def _bit_of(keys: NDArray[np.uint64], bits: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    at = (keys >> np.uint64(65 - (8 * len(bits)).bit_length())).astype(np.int64)
    return at >> 3, np.left_shift(1, at & 7).astype(np.uint8)


def _write_sections(path: Path, section: NDArray[np.int64], sections: int, entries: NDArray[np.void]) -> None:
    """Write the entries of each section, in the order in which they are given."""
    order = np.argsort(section.astype(np.min_scalar_type(sections)), kind="stable")  # fast for small integers
    with atomic_file(path) as file:
        np.concatenate([[0], np.cumsum(np.bincount(section, minlength=sections))]).astype(np.int64).tofile(file)
        entries[order].tofile(file)


def _read_sections(path: Path, some: Sequence[int], sections: int, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """Return the entries of some sections in a row, of so many."""
    with open(path, "rb", buffering=0) as file:
        file.seek(8 * some[0])
        begin, *_, end = np.fromfile(file, np.int64, len(some) + 1).tolist()
        file.seek(8 * (sections + 1) + begin * dtype.itemsize)
        return np.fromfile(file, dtype, end - begin)
