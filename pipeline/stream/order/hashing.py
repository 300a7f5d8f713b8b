"""Randomness from names: a 64-bit key for named parts, and permutations under a key."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...integer_hash import GOLDEN, mix64


@lru_cache(maxsize=64, typed=True)  # a sampled stream derives one key for every batch
def derive_key(tag: str, *parts: int | str) -> int:
    """Return a 64-bit key for named parts: blake2b of their JSON, so that no two lists of parts share one.

    >>> derive_key("shards", 0, 1) == derive_key("shards", 0, 1)
    True
    >>> derive_key("shards", 0, 1) == derive_key("shards", 1, 0)
    False
    """
    return int.from_bytes(hashlib.blake2b(json.dumps([tag, *parts]).encode(), digest_size=8).digest(), "little")


def keyed_hashes(n: int, key: int) -> NDArray[np.uint64]:
    """Return mix64(mix64(number * 0x9E3779B97F4A7C15) ^ key) of the numbers below ``n``, all different."""
    hashes: NDArray[np.uint64] = mix64(mix64(np.arange(n, dtype=np.uint64) * GOLDEN) ^ np.uint64(key))
    return hashes


def permutation(n: int, key: int) -> NDArray[np.int64]:
    """Return the numbers below ``n`` by ascending hashes under a key.

    >>> sorted(permutation(5, derive_key("example"))) == [0, 1, 2, 3, 4]
    True
    """
    return np.argsort(keyed_hashes(n, key))
