"""Texts -> MinHash signatures.

The shingles of a text are its word 5-grams (`filters.words`). A text of fewer words has one shingle, all of them. A text
without words has none. The hash of a shingle has 32 bits. The permutations are datasketch 2's
scheme ``affine32``: a bijective mix (MurmurHash3's finaliser), then ``a * h + b`` modulo 2**32 with odd a.

    word        h = 0xCBF29CE484222325; for each code point c: h = (h ^ c) * 0x100000001B3 (FNV-1a); h = mix64(h)
    shingle     s = 0; for each word: s = mix64(s * 0x9E3779B97F4A7C15 + h); its hash here is s >> 32
    mix64       the finaliser of SplitMix64
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from filters.compiled.text_arrays import code_points
from filters.words import lowered, word_table, words

from ...errors import ConfigError

SEED = 1  # of the permutations, whatever the seed of a recipe: later builds compare their signatures with these
EMPTY = np.uint32(0xFFFFFFFF)  # every value of the signature of a text without shingles
_BATCH_CHARACTERS = 1 << 20


def shingles(text: str, ngram: int = 5) -> Iterator[str]:
    """Yield the word n-grams of a text, or all its words if there are fewer: the slow reference.

    >>> list(shingles("A rose is a rose, is it?", ngram=6))
    ['a rose is a rose is', 'rose is a rose is it']
    """
    found = [word for word, *_ in words(text)]
    return (" ".join(found[k : k + ngram]) for k in range(max(1, len(found) - ngram + 1) if found else 0))


class MinHasher:
    """Makes signatures of ``num_perm`` values over word ``ngram``-grams; the default of ``num_perm`` is ``bands * rows``.

    The bands use the first ``bands * rows`` values. Later values serve only verification.

    >>> hasher = MinHasher()
    >>> a, b = hasher.signatures(["a rose is a rose is a rose today", "a rose is a rose is a rose!"])
    >>> a.shape, bool((a == b).mean() > 0.4)
    ((112,), True)
    """

    def __init__(self, ngram: int = 5, bands: int = 14, rows: int = 8, num_perm: int | None = None) -> None:
        self.ngram, self.bands, self.rows = ngram, bands, rows
        self.num_perm = signature_values(bands, rows, num_perm)
        self._a, self._b = permutations(self.num_perm)

    def signatures(self, texts: Sequence[str]) -> NDArray[np.uint32]:
        """Return the signatures of ``texts``, uint32 ``[n, num_perm]``."""
        out = np.full((len(texts), self.num_perm), EMPTY, np.uint32)
        from .kernels import sign  # numba: imported only if texts are signed

        table = word_table()
        first, size = 0, 0
        for number, text in enumerate(texts):
            size += len(text)
            if size >= _BATCH_CHARACTERS or number == len(texts) - 1:
                points, ends = code_points([lowered(text) for text in texts[first : number + 1]])
                sign(points, ends, table, self.ngram, self._a, self._b, out[first : number + 1])
                first, size = number + 1, 0
        return out

    def warm_up(self) -> None:
        """Compile, or load from the cache, before workers are forked."""
        self.signatures(["to compile"])


def shingle_sets(texts: Sequence[str], ngram: int = 5) -> Iterator[NDArray[np.uint64]]:
    """Yield the distinct shingles of each text, as increasing hashes of 64 bits.

    >>> [len(found) for found in shingle_sets(["a rose is a rose is a rose", "", "one"], ngram=3)]
    [3, 0, 1]
    """
    from .kernels import shingle

    points, ends = code_points([lowered(text) for text in texts])
    every, stops = np.empty(len(points), np.uint64), np.empty(len(texts), np.int64)
    shingle(points, ends, word_table(), ngram, every, stops)
    for begin, end in itertools.pairwise([0, *stops.tolist()]):
        values = every[begin:end]
        values.sort()  # np.unique takes twice the time
        new = np.ones(len(values), bool)
        np.not_equal(values[1:], values[:-1], out=new[1:])
        yield values[new]


def signature_values(bands: int, rows: int, num_perm: int | None) -> int:
    """Return how many values a signature has: ``num_perm``, or as many as the bands use.

    Raises ``ConfigError`` if the bands use more.
    """
    if num_perm is not None and bands * rows > num_perm:
        raise ConfigError(
            f"bands={bands} of rows={rows} use {bands * rows} values, but a signature has num_perm={num_perm}; raise "
            "num_perm, or lower bands or rows"
        )
    return bands * rows if num_perm is None else num_perm


def permutations(count: int) -> NDArray[np.uint32]:
    """Return datasketch's affine32 parameters: odd factors and offsets, uint32 ``[2, count]``.

    ``RandomState`` draws them: NumPy never changes its numbers.
    """
    generator = np.random.RandomState(SEED)
    factors = generator.randint(0, 1 << 31, count, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    return np.array([factors, generator.randint(0, 1 << 32, count, dtype=np.uint32)])
