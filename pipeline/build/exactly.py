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
        self._known: dict[tuple[int, int], bool] = {}  # the same pair comes from band after band

    def __call__(self, a: NDArray[np.int64], b: NDArray[np.int64], agree: NDArray[np.bool_]) -> NDArray[np.bool_]:
        pairs = list(zip(a.tolist(), b.tolist(), strict=True))
        ours = (a >= self._before) & (b >= self._before)
        new = [pair for pair, mine in zip(pairs, ours.tolist(), strict=True) if mine and pair not in self._known]
        for begin in range(0, len(new), _PAIRS):
            part = new[begin : begin + _PAIRS]
            held = self._shingles(np.unique(np.array(part)) - self._before)
            for one, other in part:
                alike = self._alike(held[one - self._before], held[other - self._before])
                self._known[one, other] = alike
        known = [self._known.get(pair, False) for pair in pairs]
        return np.where(ours, known, agree)

    def _alike(self, a: frozenset[str], b: frozenset[str]) -> bool:
        shared = len(a & b)
        return shared >= self._threshold * (len(a) + len(b) - shared) - 1e-9

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
