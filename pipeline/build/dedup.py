"""Signatures -> bands -> verified duplicates, over the whole input.

Exact duplicates are found by the hash of the text; near duplicates, among what is left, by MinHash:

    band        documents that agree on all rows of a band are candidates: P = 1 - (1 - s ** rows) ** bands
    star        each candidate is held against the first of its run only, so cost is linear in the run
    verify      an edge counts if the signatures agree on at least `threshold` of their values; a candidate that fails
                against the first is tried against the next few that also failed, so that no cluster is broken by one
    component   documents that edges connect are one cluster; its first document in input order stays

The default of 14 bands of 8 rows finds 92% of pairs at a similarity of 0.8 and 99% at 0.85.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from .minhash import EMPTY

REPRESENTATIVES = 8  # of one run, that a candidate is held against before it counts as alone
_CHUNK = 1 << 16  # documents whose signatures are in memory at once

MARGIN = 0.12  # three standard deviations of a signature's estimate near the threshold

KEPT, EXACT, NEAR = 0, 1, 2

Confirm = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]], NDArray[np.bool_]]
"""Takes pairs of documents, and whether their signatures agree; returns which are duplicates."""


@dataclass(frozen=True, slots=True)
class Duplicates:
    """What became of each document.

    ``keeper`` (int64): the document that stands for it, itself if it stays; ``kind`` (uint8): 0 kept, 1 exact, 2 near
    duplicate; ``cluster_size`` (int32): documents in its cluster.
    """

    keeper: NDArray[np.int64]
    kind: NDArray[np.uint8]
    cluster_size: NDArray[np.int32]


def find_duplicates(
    hashes: NDArray[np.uint8],
    signatures: NDArray[np.uint32],
    *,
    threshold: float = 0.8,
    bands: int = 14,
    rows: int = 8,
    before: int = 0,
    keep: str = "first",
    lengths: NDArray[np.int64] | None = None,
    confirm: Confirm | None = None,
) -> Duplicates:
    """Find exact and near duplicates among documents in input order.

    ``hashes``: uint8 ``[n, 16]`` of the texts; ``signatures``: uint32 ``[n, num_perm]``, of which the first
    ``bands * rows`` make the bands; a memory map where there are many. The first ``before`` documents belong to earlier
    builds: they always stay, and win. ``keep="longest"`` keeps the longest of a cluster by ``lengths``, the first of several.
    ``confirm`` has the last word on pairs whose signatures come near the threshold; without it the signatures decide.
    Memory: about 60 bytes a document.

    >>> from pipeline.build.minhash import MinHasher, text_hashes
    >>> texts = ["one two three four five six", "another text", "one two three four five six"]
    >>> find_duplicates(text_hashes(texts), MinHasher().signatures(texts)).keeper.tolist()
    [0, 1, 0]
    """
    n = len(hashes)
    if len(signatures) != n or (n and signatures.shape[1] < bands * rows):
        raise ConfigError(
            f"{n} hashes do not fit signatures of shape {signatures.shape} in {bands} bands of {rows} rows"
        )
    if keep not in ("first", "longest"):
        raise ConfigError(f"keep={keep!r} is neither 'first' nor 'longest'")
    if keep == "longest" and lengths is None:
        raise ConfigError("keep='longest' needs the lengths of the documents")
    from .kernels import find_roots, unite

    exact = _first_of_equal(hashes)
    unique = np.flatnonzero(exact == np.arange(n))
    parents = np.arange(n, dtype=np.int64)
    for band in range(bands):
        for leaders, members in verified_edges(signatures, unique, band, rows, threshold, confirm):
            unite(parents, leaders, members)
    roots = find_roots(parents)[exact]
    keeper = _choose(roots, before, lengths if keep == "longest" else None)
    kind = np.where(keeper == np.arange(n), KEPT, np.where(_equal_rows(hashes, keeper), EXACT, NEAR)).astype(np.uint8)
    kind[:before] = KEPT
    keeper[:before] = np.arange(before)
    return Duplicates(keeper, kind, np.bincount(roots, minlength=n)[roots].astype(np.int32))


def band_keys(signatures: NDArray[np.uint32], documents: NDArray[np.int64], band: int, rows: int) -> NDArray[np.uint64]:
    """Return one 64-bit key a document for a band; those without shingles get the document's own number."""
    keys = np.empty(len(documents), np.uint64)
    for begin in range(0, len(documents), _CHUNK):
        part = np.asarray(signatures[documents[begin : begin + _CHUNK], band * rows : (band + 1) * rows])
        key = np.zeros(len(part), np.uint64)
        for value in part.T:
            key = _mix(key * np.uint64(0x9E3779B97F4A7C15) + value.astype(np.uint64) + np.uint64(1))
        empty = (part == EMPTY).all(axis=1)
        key[empty] = documents[begin : begin + _CHUNK][empty].astype(np.uint64)
        keys[begin : begin + _CHUNK] = key
    return keys


def verified_edges(
    signatures: NDArray[np.uint32],
    documents: NDArray[np.int64],
    band: int,
    rows: int,
    threshold: float,
    confirm: Confirm | None = None,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the edges of one band: which of ``documents`` (int64, increasing) stand for which others, int64 ``[edges]`` each.

    At most ``REPRESENTATIVES`` pairs of arrays come, one for each place in its run that a representative has.
    """
    keys = band_keys(signatures, documents, band, rows)
    order = np.argsort(keys, kind="stable")  # within a run, input order
    keys = keys[order]
    new_run = np.concatenate([[True], keys[1:] != keys[:-1]]) if len(keys) else np.zeros(0, bool)
    run = np.cumsum(new_run) - 1
    alone = np.bincount(run, minlength=1)[run] == 1 if len(keys) else np.zeros(0, bool)
    members, run = documents[order[~alone]], run[~alone]
    for _ in range(REPRESENTATIVES):
        if len(members) == 0:
            return
        first = np.concatenate([[True], run[1:] != run[:-1]])
        leaders = members[np.flatnonzero(first)[np.cumsum(first) - 1]]
        verified = first | _similar(signatures, members, leaders, threshold, confirm)
        joined = verified & ~first
        yield leaders[joined], members[joined]
        members, run = members[~verified], run[~verified]


def _similar(
    signatures: NDArray[np.uint32],
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    threshold: float,
    confirm: Confirm | None,
) -> NDArray[np.bool_]:
    """Return which pairs are duplicates."""
    if confirm is None:
        return _agree(signatures, a, b, threshold)
    near = _agree(signatures, a, b, max(0.0, threshold - MARGIN)) & (a != b)
    near[near] = confirm(a[near], b[near], _agree(signatures, a[near], b[near], threshold))
    return near


def _agree(
    signatures: NDArray[np.uint32], a: NDArray[np.int64], b: NDArray[np.int64], threshold: float
) -> NDArray[np.bool_]:
    """Return which pairs agree on at least ``threshold`` of their signatures' values."""
    needed = int(np.ceil(threshold * signatures.shape[1] - 1e-9))
    verified = np.zeros(len(a), bool)
    for begin in range(0, len(a), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        equal = np.asarray(signatures[a[part]]) == np.asarray(signatures[b[part]])
        verified[part] = np.count_nonzero(equal, axis=1) >= needed
    return verified


def _first_of_equal(hashes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return for each row the first row that equals it."""
    if len(hashes) == 0:
        return np.zeros(0, np.int64)
    halves = np.ascontiguousarray(hashes).view("<u8").reshape(-1, 2)
    order = np.lexsort((halves[:, 1], halves[:, 0]))  # stable, so the first of a run is the first in input order
    ordered = halves[order]
    new = np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])
    first = np.empty(len(hashes), np.int64)
    first[order] = order[np.flatnonzero(new)[np.cumsum(new) - 1]]
    return first


def _choose(roots: NDArray[np.int64], before: int, lengths: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Return each document's keeper: the cluster's first, or its longest unless it reaches into earlier builds."""
    if lengths is None:
        return roots.copy()
    order = np.lexsort((np.arange(len(roots)), -lengths, roots))
    first = np.concatenate([[True], np.diff(roots[order]) != 0]) if len(roots) else np.zeros(0, bool)
    longest = np.empty(len(roots), np.int64)
    longest[roots[order][first]] = order[first]
    return np.where(roots < before, roots, longest[roots])


def _equal_rows(hashes: NDArray[np.uint8], other: NDArray[np.int64]) -> NDArray[np.bool_]:
    halves = np.ascontiguousarray(hashes).view("<u8").reshape(-1, 2)
    return (halves == halves[other]).all(axis=1)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
