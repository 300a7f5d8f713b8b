"""Keys -> candidates -> verified edges -> components: how duplicates are found. stages/dedup.py describes the files between them.

Exact duplicates have the same hash of the text. MinHash finds near duplicates among the rest:

    band        documents that agree on all rows of a band are candidates: P = 1 - (1 - s ** rows) ** bands
    key         mix64 over the rows: key = mix64(key * 0x9E3779B97F4A7C15 + value + 1), from 0; a band without shingles has none
    star        a run is the documents with one key. Each is compared with the first of the run, so the cost is linear in the run
    verify      an edge counts if the signatures agree on at least `threshold` of their values. Candidates that fail
                form a run again, a few times, so that one first document that is unlike the others breaks no cluster
    component   documents that edges connect. kept_texts.py judges which texts of a component stay
    cluster     a text that stays, and those that are dropped for it, with all documents of these texts

The default of 14 bands of 8 rows finds 92% of pairs at a similarity of 0.8 and 99% at 0.85.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...atomic import atomic_file
from ..outcome import EXACT, KEPT, NEAR, OF_DEDUP
from .row_files import Rows, Scalar, write_npy

REPRESENTATIVES = 8  # a candidate is compared with at most this many documents of its run
_PAIRS = 1 << 13  # pairs whose signatures are in memory at once
CHUNK = 1 << 18  # documents whose results are in memory at once
_TEXTS_DIFFER = np.uint32(1 << 31)  # added to the size of a cluster of near duplicates; cluster_size.npy has 31 bits

Similar = Callable[[NDArray[np.uint32], NDArray[np.uint32]], NDArray[np.bool_]]
"""Takes pairs of documents as two arrays, of equal length; returns which pairs are duplicates."""


def star_edges(
    keys: NDArray[np.uint64], documents: NDArray[np.uint32], similar: Similar
) -> Iterator[NDArray[np.uint32]]:
    """Yield the verified edges among documents of equal keys, uint32 ``[edges, 2]``: the earlier document, its duplicate.

    ``documents`` of equal keys must be in input order. Each of at most ``REPRESENTATIVES`` rounds of comparisons yields an array.

    >>> [edges.tolist() for edges in star_edges(np.array([7, 5, 7], np.uint64), np.arange(3, dtype=np.uint32), np.less)]
    [[[0, 2]]]
    """
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    together = ~(first & np.append(first[1:], True))
    members, run = documents[order[together]], np.cumsum(first[together])
    for _ in range(REPRESENTATIVES):
        if len(members) == 0:
            return
        first = np.append(True, run[1:] != run[:-1])
        leaders = members[np.flatnonzero(first)[np.cumsum(first) - 1]]
        rest = np.flatnonzero(~first)
        joined = similar(leaders[rest], members[rest])
        yield np.stack([leaders[rest[joined]], members[rest[joined]]], axis=1)
        rest = rest[~joined]
        members, run = members[rest], run[rest]


def equal_rows(rows: Rows[np.uint8]) -> Similar:
    """Return a comparison of documents by their whole hashes: a key is only the first half of a hash."""

    def similar(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> NDArray[np.bool_]:
        equal = [(rows_read[x] == rows_read[y]).all(axis=1) for rows_read, x, y in _read_pairs(rows, a, b)]
        return np.concatenate([np.zeros(0, bool), *equal])

    return similar


def similar_rows(signatures: Rows[np.uint32], threshold: float) -> Similar:
    """Return a comparison of documents: do their signatures agree on at least ``threshold`` of their values?"""
    from .kernels import agreeing

    needed = least_agreement(signatures.width, threshold)

    def similar(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> NDArray[np.bool_]:
        counts = np.empty(len(a), np.int64)
        begin = 0
        for rows_read, x, y in _read_pairs(signatures, a, b):
            agreeing(rows_read, x, y, counts[begin : begin + len(x)])
            begin += len(x)
        return counts >= needed

    return similar


def least_agreement(values: int, threshold: float) -> int:
    """Return the fewest values on which the signatures of near duplicates agree."""
    return int(np.ceil(threshold * values - 1e-9))


def _read_pairs(
    rows: Rows[Scalar], a: NDArray[np.uint32], b: NDArray[np.uint32]
) -> Iterator[tuple[NDArray[Scalar], NDArray[np.int64], NDArray[np.int64]]]:
    """Yield batches of pairs: the rows of a batch's documents, and the indices in them of each pair's first and second row."""
    for begin in range(0, len(a), _PAIRS):
        pairs = np.concatenate([a[begin : begin + _PAIRS], b[begin : begin + _PAIRS]])
        wanted, inverse = np.unique(pairs, return_inverse=True)
        count = len(pairs) // 2
        yield rows.take(wanted), inverse[:count], inverse[count:]


def roots_of(parents: NDArray[np.uint32], edges: Iterable[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    """Join the trees of the forest ``parents`` that ``edges`` (``[m, 2]``) connect, and return it with every parent a root.

    The root of a tree is its smallest member, in any order of the edges.

    >>> roots_of(np.arange(5, dtype=np.uint32), [np.array([[3, 4], [1, 3]], np.uint32)]).tolist()
    [0, 1, 2, 1, 1]
    """
    from .kernels import flatten, unite

    for some in edges:
        unite(parents, np.ascontiguousarray(some))
    flatten(parents)
    return parents


def write_highest(path: Path, exact: NDArray[np.uint32], before: int, numbers: Iterable[NDArray[np.int64]]) -> None:
    """Write at the first document of each text its document with the highest number, and that number, uint32 ``[2, n]``.

    The first of equal numbers wins, and one of the ``before`` documents of earlier builds always. ``numbers`` are those of the
    other documents, such as lengths, in order: at most 32 bits each.
    """
    from .kernels import highest_members

    found = np.zeros((2, len(exact)), np.uint32)
    begin = before
    for some in numbers:
        highest_members(exact, begin, np.ascontiguousarray(some), *found)
        begin += len(some)
    found[0, :before] = np.arange(before)
    with atomic_file(path) as file:
        np.save(file, found)


def write_clusters(
    directory: Path,
    roots: NDArray[np.uint32],
    exact: NDArray[np.uint32],
    before: int,
    keepers: NDArray[np.uint32] | None = None,
) -> dict[str, dict[str, int]]:
    """Write kind.npy, keeper.npy and cluster_size.npy for the documents after the first ``before``; return the counts.

    ``roots`` is the text that stays in the cluster of each document. ``exact`` is the first document with equal text, and may be
    a memory map. ``keepers`` has at each root the document that is kept; None: the root itself.
    """
    from .kernels import count_members

    sizes = np.zeros(len(roots), np.uint32)
    count_members(roots, sizes)
    of_near: Counter[int] = Counter()
    for begin in range(before, len(roots), CHUNK):
        root = roots[begin : begin + CHUNK]
        sizes[root[exact[begin : begin + CHUNK] != root]] |= _TEXTS_DIFFER
    for begin in range(0, len(sizes), CHUNK):
        some = sizes[begin : begin + CHUNK]
        of_near.update((some[some > _TEXTS_DIFFER] - _TEXTS_DIFFER).tolist())
    shape = (len(roots) - before,)
    kinds = np.zeros(3, np.int64)
    of_size: Counter[int] = Counter()
    with (
        open(directory / "kind.npy", "wb") as kind_file,
        open(directory / "keeper.npy", "wb") as keeper_file,
        open(directory / "cluster_size.npy", "wb") as size_file,
    ):
        write_npy(kind_file, shape, np.uint8, [])
        write_npy(keeper_file, shape, np.int64, [])
        write_npy(size_file, shape, np.int32, [])
        for begin in range(before, len(roots), CHUNK):
            root, first = roots[begin : begin + CHUNK], exact[begin : begin + CHUNK]
            keeper = root if keepers is None else keepers[root]
            stays = keeper == np.arange(begin, begin + len(root))
            same = first == (root if keepers is None else exact[keeper])  # a root is the first document with its text
            kind = np.where(stays, KEPT, np.where(same, EXACT, NEAR)).astype(np.uint8)
            size = (sizes[root] & ~_TEXTS_DIFFER).astype(np.int32)
            kind.tofile(kind_file)
            (keeper.astype(np.int64) - before).tofile(keeper_file)
            size.tofile(size_file)
            kinds += np.bincount(kind, minlength=3)
            of_size.update(size[stays].tolist())
    return {
        "duplicates": {OF_DEDUP[kind].key: int(kinds[kind]) for kind in (EXACT, NEAR)},
        "cluster_sizes": {str(size): of_size[size] for size in sorted(of_size)},
        "near_cluster_sizes": {str(size): of_near[size] for size in sorted(of_near)},
    }
