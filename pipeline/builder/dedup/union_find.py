"""Edges -> clusters -> the outcome of each document. Memory holds 8 bytes a document: the forest and the sizes of clusters.

With ``keep="longest"`` it holds 12, since each cluster also has its longest member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..outcome import EXACT, KEPT, NEAR, OUTCOMES
from .row_files import write_npy

_CHUNK = 1 << 18  # documents whose results are in memory at once


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
        for begin in range(before, len(roots), _CHUNK):
            root, first = roots[begin : begin + _CHUNK], exact[begin : begin + _CHUNK]
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
