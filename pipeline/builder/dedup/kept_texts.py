"""Components of similar texts -> the texts that stay, and the text that each of the others is dropped for.

A chain of edges (lsh.py) may join texts that are unlike each other, so a component is not yet a cluster. Its texts are judged one
after the other:

    order       texts of earlier builds first; then the longest or the highest first if one of these is to be kept; then by number
    candidates  the kept texts of the component that agree with the text on all rows of a band: in each band, the last `LATEST`
    judgement   a text of an earlier build stays. Another text is dropped for the candidate whose signature agrees with its own on
                the most values, the first of equal ones, if they agree on at least `threshold` of them. Else it stays

So the work is linear in the texts of a component. It takes at most 0.3 kB of memory a text.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...atomic import atomic_file
from ...integer_hash import GOLDEN
from .lsh import least_agreement, roots_of
from .row_files import Rows

LATEST = 8  # a text is compared with at most this many kept texts of each of its bands
_READ = 1 << 10  # texts whose signatures, and those of their candidates, are in memory at once


def write_members(path: Path, exact: NDArray[np.uint32], edges: Iterable[NDArray[np.uint32]]) -> None:
    """Write the texts of components of several texts, uint32 ``[2, members]``: the roots, which increase, and the texts.

    ``exact`` is the first document of equal text, which stands for the text. The texts of a component increase.
    """
    from .kernels import place_texts, start_components

    roots, starts = roots_of(np.array(exact), edges), np.zeros(len(exact), np.uint32)
    shape = (2, int(start_components(roots, exact, starts)))
    with atomic_file(path) as file:
        members = np.lib.format.open_memmap(file.name, "w+", np.uint32, shape)  # the kernel may drop its pages
        place_texts(roots, exact, starts, np.asarray(members))
        members.flush()


def whole_components(roots: NDArray[np.uint32], members: range) -> slice:
    """Return the members of the components that begin in a range of members. ``roots`` increase.

    >>> whole_components(np.array([2, 2, 2, 5, 5]), range(2, 4))
    slice(3, 5, None)
    """
    ends = (min(at, len(roots)) for at in (members.start, members.stop))
    return slice(*(int(np.searchsorted(roots, roots[at - 1], side="right")) if at else 0 for at in ends))


def dropped_texts(
    roots: NDArray[np.uint32],
    texts: NDArray[np.uint32],
    numbers: NDArray[np.uint32],
    signatures: Rows[np.uint32],
    bands: int,
    rows: int,
    threshold: float,
    before: int,
) -> NDArray[np.uint32]:
    """Judge the texts of whole components; return each dropped text and the text that it is dropped for, uint32 ``[m, 2]``.

    Higher ``numbers`` are to be kept. The texts below ``before`` are of earlier builds.
    """
    from .kernels import judge

    stays, needed = texts < before, least_agreement(signatures.width, threshold)
    order = np.lexsort((texts, -numbers.astype(np.int64), ~stays, roots))
    texts, stays = texts[order], stays[order]
    runs, count = _runs(roots, texts, signatures, bands, rows)
    latest = np.full((count, LATEST), -1, np.int32)
    keepers, row_of = np.empty((2, len(texts)), np.int32)
    for begin in range(0, len(texts), _READ):
        end = min(len(texts), begin + _READ)
        candidates = np.unique(latest[runs[begin:end][runs[begin:end] >= 0]])
        read = np.concatenate([candidates[candidates >= 0], np.arange(begin, end, dtype=np.int32)])
        read = read[np.argsort(texts[read])]
        row_of[read] = np.arange(len(read))
        judge(signatures.take(texts[read]), row_of, runs, latest, stays, needed, begin, end, keepers)
    dropped = np.flatnonzero(keepers != np.arange(len(texts)))
    return np.stack([texts[dropped], texts[keepers[dropped]]], axis=1)


def _runs(
    roots: NDArray[np.uint32], texts: NDArray[np.uint32], signatures: Rows[np.uint32], bands: int, rows: int
) -> tuple[NDArray[np.int32], int]:
    """Return which run each band of each text is in, int32 ``[texts, bands]``, and the number of runs.

    A run is the texts of a component that agree on all rows of a band; a text that agrees with no other has the run -1.
    """
    from .kernels import band_keys

    keys, empty = np.empty((bands, len(texts)), np.uint64), np.empty((bands, len(texts)), np.bool_)
    ascending = np.argsort(texts)
    for begin in range(0, len(texts), _READ):
        read = ascending[begin : begin + _READ]
        found = np.empty((bands, len(read)), np.uint64)
        band_keys(signatures.take(texts[read]), rows, found, empty[:, : len(read)])
        keys[:, read] = found
    keys += roots * GOLDEN  # equal keys of two components are two runs
    runs, count = np.empty((len(texts), bands), np.int32), 0
    for band in range(bands):
        _, inverse, sizes = np.unique(keys[band], return_inverse=True, return_counts=True)
        shared = sizes > 1
        runs[:, band] = np.where(shared, count + np.cumsum(shared) - 1, -1)[inverse]
        count += int(shared.sum())
    return runs, count
