"""Near duplicates confirmed on their shingles: the Jaccard similarity itself, not its estimate.

The shingles of a group of documents are one file, so that any two documents are compared without reading texts again:

    uint64  [shingles]          the distinct shingles of each document, increasing, by the 64-bit hashes of minhash.py
    int64   [documents + 1]     where the shingles of each document begin

About eight bytes a word, kept until the stage is done.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...atomic import atomic_file
from .minhash import shingle_sets


def write_sets(path: Path, without: int, batches: Iterable[list[str]], ngram: int) -> None:
    """Write the shingles of documents; the first ``without`` documents are of earlier builds and have none here."""
    starts = [0] * (without + 1)
    with atomic_file(path) as file:
        for texts in batches:
            for found in shingle_sets(texts, ngram):
                file.write(found.data)
                starts.append(starts[-1] + len(found))
        file.write(np.array(starts, np.int64).data)


class ExactSimilarity:
    """Says which pairs of documents are at least ``threshold`` similar.

    ``paths`` are the files of groups; ``starts`` (``[groups + 1]``) is the first document of each. The first ``before``
    documents belong to earlier builds, whose texts are not read again: pairs with these are decided by their signatures.
    """

    def __init__(self, paths: Sequence[Path], starts: Sequence[int], before: int, threshold: float) -> None:
        self._paths = paths
        self._starts = np.asarray(starts, np.int64)
        self._before = before
        self._threshold = threshold

    def __call__(self, a: NDArray[np.uint32], b: NDArray[np.uint32], agree: NDArray[np.bool_]) -> NDArray[np.bool_]:
        from .kernels import count_shared

        similar = agree.copy()
        own = (a >= self._before) & (b >= self._before)
        held, one = -1, np.zeros(0, np.uint64)
        for place in np.flatnonzero(own).tolist():
            if int(a[place]) != held:  # many consecutive pairs have the same first document
                held = int(a[place])
                one = self._shingles(held)
            other = self._shingles(int(b[place]))
            shared = count_shared(one, other)
            similar[place] = shared >= self._threshold * (len(one) + len(other) - shared) - 1e-9
        return similar

    def _shingles(self, document: int) -> NDArray[np.uint64]:
        group = int(np.searchsorted(self._starts, document, side="right")) - 1
        row, documents = document - int(self._starts[group]), int(self._starts[group + 1] - self._starts[group])
        with open(self._paths[group], "rb") as file:
            handle = file.fileno()
            place = os.fstat(handle).st_size - 8 * (documents + 1 - row)
            begin, end = np.frombuffer(os.pread(handle, 16, place), np.int64).tolist()
            return np.frombuffer(os.pread(handle, 8 * (end - begin), 8 * begin), np.uint64)
