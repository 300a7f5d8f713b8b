"""Near duplicates confirmed on their texts: the Jaccard similarity of their shingles itself, not its estimate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .minhash import shingles
from .parts import read_columns

_PAIRS = 4_096  # whose texts are in memory at once


class ExactSimilarity:
    """Says which pairs of documents are at least ``threshold`` similar.

    ``starts`` (int64) is where each part's documents begin. The first ``before`` documents belong to earlier builds, whose
    texts are not read again: of pairs with these the signatures' word stands.
    """

    def __init__(self, work: Path, starts: NDArray[np.int64], before: int, ngram: int, threshold: float) -> None:
        self._work = work
        self._starts = starts
        self._before = before
        self._ngram = ngram
        self._threshold = threshold

    def __call__(self, a: NDArray[np.int64], b: NDArray[np.int64], agree: NDArray[np.bool_]) -> NDArray[np.bool_]:
        found = agree.copy()
        ours = np.flatnonzero((a >= self._before) & (b >= self._before))
        for begin in range(0, len(ours), _PAIRS):
            pairs = ours[begin : begin + _PAIRS]
            held = self._shingles(np.unique([a[pairs], b[pairs]]) - self._before)
            for pair in pairs.tolist():
                one, other = held[int(a[pair]) - self._before], held[int(b[pair]) - self._before]
                shared = len(one & other)
                found[pair] = shared >= self._threshold * (len(one) + len(other) - shared) - 1e-9
        return found

    def _shingles(self, rows: NDArray[np.int64]) -> Mapping[int, frozenset[str]]:
        """Read documents, given by their places among all parts in order; return their shingles."""
        held: dict[int, frozenset[str]] = {}
        bounds = np.searchsorted(rows, self._starts)
        for part in np.flatnonzero(np.diff(bounds)).tolist():
            mine = rows[bounds[part] : bounds[part + 1]]
            place = int(self._starts[part])
            for batch in read_columns(self._work, part, "text"):
                column = batch.column(0)
                for row in mine[(mine >= place) & (mine < place + len(column))].tolist():
                    text = column[row - place].as_py()
                    held[row] = frozenset(shingles(text, self._ngram))
                place += len(column)
        return held
