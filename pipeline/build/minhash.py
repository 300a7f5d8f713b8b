"""Texts -> hashes and MinHash signatures.

The shingles of a text are its word 5-grams, words being ``re.findall(r"\\w+", text.lower())``; a text of fewer words
has one shingle, all of them, and one without words has none. A shingle's hash is 32 bits, and the permutations are
datasketch 2's scheme ``affine32``: a bijective mix (MurmurHash3's finaliser), then ``a * h + b`` modulo 2**32 with odd a.

    word        h = 0xCBF29CE484222325; for each code point c: h = (h ^ c) * 0x100000001B3 (FNV-1a); h = mix64(h)
    shingle     s = 0; for each word: s = mix64(s * 0x9E3779B97F4A7C15 + h); its hash is s >> 32
    mix64       the finaliser of SplitMix64
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

EMPTY = np.uint32(0xFFFFFFFF)  # every value of the signature of a text without shingles
_BATCH_CHARACTERS = 1 << 20


def text_hashes(texts: Sequence[str]) -> NDArray[np.uint8]:
    """Return the 128-bit BLAKE2b of each text's UTF-8, uint8 ``[n, 16]``: equal for equal texts, and no others."""
    digests = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16)


class MinHasher:
    """Makes signatures of ``bands * rows`` values over word ``ngram``-grams.

    >>> hasher = MinHasher()
    >>> a, b = hasher.signatures(["a rose is a rose is a rose today", "a rose is a rose is a rose!"])
    >>> a.shape, bool((a == b).mean() > 0.4)
    ((112,), True)
    """

    def __init__(self, ngram: int = 5, bands: int = 14, rows: int = 8, seed: int = 1) -> None:
        self.ngram, self.bands, self.rows, self.seed = ngram, bands, rows, seed
        self._a, self._b = permutations(bands * rows, seed)

    def signatures(self, texts: Sequence[str]) -> NDArray[np.uint32]:
        """Return the signatures of ``texts``, uint32 ``[n, bands * rows]``."""
        out = np.full((len(texts), self.bands * self.rows), EMPTY, np.uint32)
        kernel, words = _kernel(), _word_table()
        first, size = 0, 0
        for number, text in enumerate(texts):
            size += len(text)
            if size >= _BATCH_CHARACTERS or number == len(texts) - 1:
                points, ends = code_points([each.lower() for each in texts[first : number + 1]])
                kernel(points, ends, words, self.ngram, self._a, self._b, out[first : number + 1])
                first, size = number + 1, 0
        return out

    def warm_up(self) -> None:
        """Compile, or load from the cache, before workers are forked."""
        self.signatures(["to compile"])


def permutations(count: int, seed: int) -> NDArray[np.uint32]:
    """Return datasketch's affine32 parameters: odd factors and offsets, uint32 ``[2, count]``.

    They come from ``RandomState``, whose stream NumPy has frozen.
    """
    generator = np.random.RandomState(seed)
    factors = generator.randint(0, 1 << 31, count, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    return np.array([factors, generator.randint(0, 1 << 32, count, dtype=np.uint32)])


def code_points(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the code points of all texts joined, and where each text ends."""
    joined = "".join(texts).encode("utf-32-le", "surrogatepass")
    return np.frombuffer(joined, dtype="<u4"), np.cumsum([len(text) for text in texts], dtype=np.int64)


@functools.cache
def _word_table() -> NDArray[np.bool_]:
    """Return for every code point whether a word can hold it: what ``\\w`` matches."""
    table = np.array([chr(c).isalnum() for c in range(sys.maxunicode + 1)])
    table[ord("_")] = True
    return table


@functools.cache
def _kernel() -> Callable[..., None]:
    import numba

    @numba.njit("uint64(uint64)", cache=True, nogil=True, inline="always")
    def mix64(x: Any) -> Any:
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    @numba.njit("void(uint64, uint32[::1], uint32[::1], uint32[::1])", cache=True, nogil=True)
    def add(shingle: Any, a: Any, b: Any, signature: Any) -> None:
        h = np.uint32(shingle >> np.uint64(32))
        h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
        h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
        h = np.uint32(h ^ (h >> np.uint32(16)))
        for k in range(len(signature)):
            signature[k] = min(signature[k], np.uint32(a[k] * h + b[k]))

    @numba.njit(
        "void(Array(uint32, 1, 'C', readonly=True), int64[::1], Array(bool_, 1, 'C'), int64, uint32[::1], uint32[::1],"
        " uint32[:, ::1])",
        cache=True,
        nogil=True,
    )
    def sign(points: Any, ends: Any, words: Any, ngram: Any, a: Any, b: Any, out: Any) -> None:
        recent = np.zeros(ngram, np.uint64)
        begin = 0
        for text in range(len(ends)):
            end = ends[text]
            count = 0
            place = begin
            while place < end:
                if not words[points[place]]:
                    place += 1
                    continue
                h = np.uint64(0xCBF29CE484222325)
                while place < end and words[points[place]]:
                    h = (h ^ np.uint64(points[place])) * np.uint64(0x100000001B3)
                    place += 1
                recent[count % ngram] = mix64(h)
                count += 1
                if count >= ngram:
                    s = np.uint64(0)
                    for k in range(ngram):
                        s = mix64(s * np.uint64(0x9E3779B97F4A7C15) + recent[(count + k) % ngram])
                    add(s, a, b, out[text])
            if 0 < count < ngram:
                s = np.uint64(0)
                for k in range(count):
                    s = mix64(s * np.uint64(0x9E3779B97F4A7C15) + recent[k])
                add(s, a, b, out[text])
            begin = end

    return sign
