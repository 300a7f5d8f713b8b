"""Semantic dedup: finds documents whose vectors, made by the user's model, are near an earlier document's.

Two vectors are near if their cosine is at least a threshold. Documents are judged in input order. If a document is near one
that stays, it is dropped; otherwise it stays. So each dropped document is near one that stays, and no two that stay are near.

Blocks of products in float32 find candidates: pairs whose product is at most `_margin` below the threshold. Rounding changes a
product by less. Then exact sums give the cosine of each candidate. So the result is the same for any block size, number of
threads and processor.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, value_text
from ..progress import Progress
from .vectors import open_vectors

ROWS = 4096
"""Vectors of a block. The products of two blocks take 64 MiB."""
_ROUNDING = 2.0**-24  # the largest relative error of a float32


class NearVector(NamedTuple):
    """A document to drop: its ``key``, the key of the first near document that ``stays``, and the cosine of the two vectors."""

    key: str
    stays: str
    cosine: float


def near_vectors(
    vectors: Any,
    keys: str | os.PathLike[str] | Iterable[object] | None,
    threshold: float,
    *,
    column: str = "vector",
    id_key: str = "id",
    progress: Progress | None = None,
) -> list[NearVector]:
    """Return the documents whose vectors are near the vector of a document that stays: a list of `NearVector`, in order.

    Two vectors are near if their cosine is at least ``threshold``. The first one in input order stays. Vectors are compared
    as float32, and the result is the same for any number of threads.

    ``vectors``: an array ``[documents, dimensions]`` of float16, float32 or float64; the path of such an array as ``.npy``; or
    a file of Parquet or JSON Lines with lists of numbers in ``column``.
    ``keys``: the id of each document, in the order of the vectors; or the path of a text file with an id a line, or of a file
    of Parquet or JSON Lines with ids in ``id_key``. None takes the ids in the file of vectors.

    A million documents of 384 dimensions take 75 minutes of one core. The time grows with the square of their number. Memory
    holds the keys, blocks of 100 MB, and an array that is not in a file.

    Raises ``ConfigError`` if the threshold, the type or shape of the vectors, a vector or a key is wrong, and ``InputError`` if
    a file cannot be read.

    >>> vectors = np.array([[1, 0], [0, 1], [3, 0.1]], np.float32)
    >>> near_vectors(vectors, ["a", "b", "c"], 0.95, progress=Progress(quiet=True))
    [NearVector(key='c', stays='a', cosine=0.9994449069626251)]
    """
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold <= 1:
        raise ConfigError(f"threshold must be a cosine above 0 and at most 1, got {value_text(threshold)}")
    progress = progress or Progress()
    with open_vectors(vectors, keys, column, id_key) as (array, names):
        lengths = _lengths(array, names)
        pairs = len(array) * (len(array) - 1) // 2
        with progress.bar("compare", pairs, "pairs") as advance:
            found = near_rows(array, lengths, threshold, advance)
            return [NearVector(names[row], names[stays], cosine) for row, stays, cosine in found]


def near_rows(
    vectors: NDArray[Any],
    lengths: NDArray[np.float64],
    threshold: float,
    advance: Callable[[int], None] = lambda pairs: None,
    rows: int = ROWS,
) -> Iterator[tuple[int, int, float]]:
    """Yield each row to drop, the first near row that stays, and their cosine. ``rows`` are compared at once."""
    low = np.float32(threshold - _margin(vectors.shape[1]))

    def near(row: int, candidates: NDArray[np.int64]) -> list[tuple[int, int, float]]:
        """Return the row with the first candidate that is near it, in a list; an empty list if none is."""
        pairs = ((row, other, cosine(vectors[row], vectors[other])) for other in candidates.tolist())
        return list(itertools.islice((pair for pair in pairs if pair[2] >= threshold), 1))

    kept = np.zeros(0, np.int64)
    for begin in range(0, len(vectors), rows):
        left = np.arange(begin, min(begin + rows, len(vectors)))
        own, found = _units(vectors, lengths, left), []
        for first in range(0, len(kept), rows):
            some = kept[first : first + rows]
            products = own[left - begin] @ _units(vectors, lengths, some).T
            for at in np.flatnonzero(products.max(axis=1) >= low):
                found += near(int(left[at]), some[products[at] >= low])
            left = np.setdiff1d(left, [row for row, *_ in found], assume_unique=True)
        alike = own[left - begin] @ own[left - begin].T >= low
        stays = np.ones(len(left), bool)
        for at in np.flatnonzero(np.count_nonzero(alike, axis=1) > 1):  # a row is like itself
            pair = near(int(left[at]), left[:at][alike[at, :at] & stays[:at]])
            stays[at] = not pair
            found += pair
        kept = np.concatenate([kept, left[stays]])
        advance(len(own) * begin + len(own) * (len(own) - 1) // 2)
        yield from sorted(found)


def cosine(x: NDArray[Any], y: NDArray[Any]) -> float:
    """Return the cosine of two float32 vectors: the same on every machine, as each sum is exact and rounded once.

    >>> cosine(np.array([3, 4], np.float32), np.array([4, 3], np.float32))
    0.96
    """
    a, b = (np.asarray(vector, np.float32).astype(np.float64) for vector in (x, y))  # their products are exact
    dot, square, other = (math.fsum(products.tolist()) for products in (a * b, a * a, b * b))
    return dot / math.sqrt(square * other)


def _margin(dimensions: int) -> float:
    """Return the most by which a float32 product of two rounded unit vectors differs from their cosine.

    A sum of n products, in any order, has a relative error of at most nu / (1 - nu), where u is the rounding of one operation
    (Higham, Accuracy and Stability of Numerical Algorithms, 3.1). Both divisions and the threshold round, too.
    """
    error = (dimensions + 8) * _ROUNDING
    return error / (1 - error)


def _units(vectors: NDArray[Any], lengths: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return rows divided by their lengths."""
    some = np.asarray(vectors[rows], np.float32)
    return np.divide(some, lengths[rows, np.newaxis], out=np.empty(some.shape, np.float32), casting="same_kind")


def _lengths(vectors: NDArray[Any], keys: Sequence[str]) -> NDArray[np.float64]:
    """Return the length of each vector. Raises ``ConfigError`` for a vector that has no direction."""
    lengths = np.empty(len(vectors))
    for begin in range(0, len(vectors), ROWS):
        with np.errstate(over="ignore"):
            wide = np.asarray(vectors[begin : begin + ROWS], np.float32).astype(np.float64)
        lengths[begin : begin + ROWS] = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    if len(wrong := np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))):
        row = int(wrong[0])
        what = "is all zeros" if lengths[row] == 0 else "holds NaN or infinity"
        raise ConfigError(
            f"{len(wrong):,} vectors have no direction: as float32, row {row} (key {keys[row]!r}) {what}; leave these documents "
            "out, or embed them again"
        )
    return lengths
