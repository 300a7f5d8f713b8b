"""Hashes of integers. Their code runs both on NumPy arrays and in compiled loops.

They are part of definitions that never change: the order of a stream, the draws of a build, signatures.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

FNV_START, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)  # of the 64-bit FNV-1a
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # an odd factor that spreads consecutive numbers: 2**64 by the golden ratio

Words = TypeVar("Words", np.uint64, NDArray[np.uint64])


def mix64(x: Words) -> Words:
    """Mix 64-bit integers bijectively (the finaliser of SplitMix64, Steele et al. 2014).

    >>> [hex(mixed) for mixed in mix64(np.array([0, 1], np.uint64)).tolist()]
    ['0x0', '0x5692161d100b05e5']
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
