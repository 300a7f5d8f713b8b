"""Texts as arrays for compiled code: code points, and the hash of a word."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipeline.integer_hash import FNV_PRIME, FNV_START


def code_points(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the code points of all texts joined, uint32, and the end of each text, int64.

    >>> [array.tolist() for array in code_points(["ab", "", "c"])]
    [[97, 98, 99], [2, 2, 3]]
    """
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    return codes, np.cumsum([len(text) for text in texts], dtype=np.int64)


def fnv(word: str) -> int:
    """Return the 64-bit FNV-1a hash of a word's code points.

    >>> hex(fnv("a"))
    '0xaf63dc4c8601ec8c'
    """
    value = int(FNV_START)
    for character in word:
        value = (value ^ ord(character)) * int(FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return value
