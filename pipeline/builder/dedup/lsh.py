"""Keys -> candidates -> verified edges -> clusters: how duplicates are found. The files in between: stages/dedup.py.

Exact duplicates are found by the hash of the text; near duplicates, among the rest, by MinHash:

    band        documents that agree on all rows of a band are candidates: P = 1 - (1 - s ** rows) ** bands
    key         mix64 over the rows: key = mix64(key * 0x9E3779B97F4A7C15 + value + 1), from 0; a band without shingles has none
    star        each candidate is compared only with the first of its run, so the cost is linear in the run
    verify      an edge counts if the signatures agree on at least `threshold` of their values; a candidate that fails
                against the first is compared with the next few that also failed, so that one document breaks no cluster
    component   documents that edges connect are one cluster; its first document in input order stays. A chain of edges may join
                documents that are less alike than `threshold`: `chained` counts the members that are so to the one that stays

The default of 14 bands of 8 rows finds 92% of pairs at a similarity of 0.8 and 99% at 0.85.

Memory holds 8 bytes a document while edges are joined: the forest and the sizes of clusters; with ``keep="longest"`` 12, since
each cluster also has its longest member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..outcome import EXACT, KEPT, NEAR, OUTCOMES
from .row_files import Rows, Scalar, write_npy

REPRESENTATIVES = 8  # documents of a run that a candidate is compared with at most
_PAIRS = 1 << 13  # whose signatures are in memory at once
CHUNK = 1 << 18  # documents whose results are in memory at once

Similar = Callable[[NDArray[np.uint32], NDArray[np.uint32]], NDArray[np.bool_]]
"""Takes pairs of documents, one array of each side; returns which are duplicates."""


def star_edges(
    keys: NDArray[np.uint64], documents: NDArray[np.uint32], similar: Similar
) -> Iterator[NDArray[np.uint32]]:
    """Yield the verified edges among documents of equal keys, uint32 ``[edges, 2]``: a document that is kept, a duplicate.

    ``documents`` of equal keys come in input order. There are at most ``REPRESENTATIVES`` arrays, one for each
    round of comparisons.

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
    """Return the comparison of documents by their rows: whole hashes, of which a key is only the first half."""

    def similar(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> NDArray[np.bool_]:
        equal = [(rows_read[x] == rows_read[y]).all(axis=1) for rows_read, x, y in _gathered(rows, a, b)]
        return np.concatenate([np.zeros(0, bool), *equal])

    return similar


def similar_rows(signatures: Rows[np.uint32], threshold: float) -> Similar:
    """Return the comparison of documents by whether their signatures agree on at least ``threshold`` of their values."""
    from .kernels import agreeing

    needed = int(np.ceil(threshold * signatures.width - 1e-9))

    def similar(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> NDArray[np.bool_]:
        counts = np.empty(len(a), np.int64)
        begin = 0
        for rows_read, x, y in _gathered(signatures, a, b):
            agreeing(rows_read, x, y, counts[begin : begin + len(x)])
            begin += len(x)
        return counts >= needed

    return similar


def _gathered(
    rows: Rows[Scalar], a: NDArray[np.uint32], b: NDArray[np.uint32]
) -> Iterator[tuple[NDArray[Scalar], NDArray[np.int64], NDArray[np.int64]]]:
    """Yield pairs in batches: the rows that they need, and which of these are the two rows of each pair."""
    for begin in range(0, len(a), _PAIRS):
        pairs = np.concatenate([a[begin : begin + _PAIRS], b[begin : begin + _PAIRS]])
        wanted, inverse = np.unique(pairs, return_inverse=True)
        count = len(pairs) // 2
        yield rows.take(wanted), inverse[:count], inverse[count:]


def roots_of(parents: NDArray[np.uint32], edges: Iterable[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    """Join what ``edges`` (``[m, 2]``) connect in the forest ``parents``, in place; return it with every parent a root.

    The root of a tree is its smallest member, whatever the order of the edges.

    >>> roots_of(np.arange(5, dtype=np.uint32), [np.array([[3, 4], [1, 3]], np.uint32)]).tolist()
    [0, 1, 2, 1, 1]
    """
    from .kernels import flatten, unite

    for some in edges:
        unite(parents, np.ascontiguousarray(some))
    flatten(parents)
    return parents


def longest_of(roots: NDArray[np.uint32], before: int, lengths: Iterable[NDArray[np.int64]]) -> NDArray[np.uint32]:
    """Return at each root the longest member, the first of equally long ones.

    A cluster with documents of earlier builds, the first ``before``, keeps its first member. ``lengths``: those of the
    other documents in order, some at a time.
    """
    from .kernels import longest_members

    best = np.arange(len(roots), dtype=np.uint32)
    best_lengths = np.zeros(len(roots), np.uint32)
    begin = before
    for some in lengths:
        longest_members(roots, begin, np.ascontiguousarray(some), best, best_lengths)
        begin += len(some)
    best[:before] = np.arange(before, dtype=np.uint32)
    return best


def chained(directory: Path, documents: range, before: int, signatures: Rows[np.uint32], threshold: float) -> int:
    """Count the near duplicates among some documents whose signatures agree with that of their keeper on less than ``threshold``.

    ``directory`` has the files of `write_clusters`, which are without the first ``before`` documents. Two documents alone
    are joined by the edge between them.
    """
    kind, keeper, size = (
        np.load(directory / f"{name}.npy", mmap_mode="r")[documents.start : documents.stop]
        for name in ("kind", "keeper", "cluster_size")
    )
    chosen = np.flatnonzero((kind == NEAR) & (size > 2))
    alike = similar_rows(signatures, threshold)(
        (keeper[chosen] + before).astype(np.uint32), (chosen + documents.start + before).astype(np.uint32)
    )
    return int(np.count_nonzero(~alike))


def write_clusters(
    directory: Path,
    roots: NDArray[np.uint32],
    exact: NDArray[np.uint32],
    before: int,
    longest: NDArray[np.uint32] | None = None,
) -> dict[str, dict[str, int]]:
    """Write kind.npy, keeper.npy and cluster_size.npy for the documents after the first ``before``; return the counts.

    ``roots``: each document's cluster; ``exact``: the first document with equal text, which may be a memory map.
    """
    from .kernels import count_members

    sizes = np.zeros(len(roots), np.uint32)
    count_members(roots, sizes)
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
            keeper = root if longest is None else longest[root]
            stays = keeper == np.arange(begin, begin + len(root))
            # A keeper is the first of the documents with its text: equal texts are equally long.
            kind = np.where(stays, KEPT, np.where(first == keeper, EXACT, NEAR)).astype(np.uint8)
            size = sizes[root].astype(np.int32)
            kind.tofile(kind_file)
            (keeper.astype(np.int64) - before).tofile(keeper_file)
            size.tofile(size_file)
            kinds += np.bincount(kind, minlength=3)
            of_size.update(size[stays].tolist())
    return {
        "duplicates": {OUTCOMES[kind].key: int(kinds[kind]) for kind in (EXACT, NEAR)},
        "cluster_sizes": {str(size): of_size[size] for size in sorted(of_size)},
    }
