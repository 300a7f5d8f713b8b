"""The compiled loops of the order: permutations, and what a rank takes of a step. They run without the interpreter's lock.

``hashing.permutation`` says what `permute` gives; section 5 of the definition what `sorted_runs` does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int64, types, uint64

from ...compiling import compiled
from ...integer_hash import GOLDEN, mix64

_mix64 = compiled(uint64(uint64))(mix64)


@compiled(uint64(int64, uint64))
def _hash(number: Any, key: Any) -> Any:
    return _mix64(_mix64(np.uint64(number) * GOLDEN) ^ key)


@compiled(types.void(uint64[::1], int64[::1], int64, int64, int64[::1], uint64[::1], int64[::1]))
def _sort(hashes: Any, numbers: Any, known: Any, bits: Any, order: Any, ascending: Any, ends: Any) -> None:
    """Write numbers by their hashes, whose ``known`` first bits are alike: by the next ``bits``, then one by one.

    ``ascending`` and ``ends`` are memory to work in.
    """
    n, shift, mask = len(hashes), np.uint64(64 - known - bits), np.uint64((1 << bits) - 1)
    ends[:] = 0
    for i in range(n):
        ends[((hashes[i] >> shift) & mask) + np.uint64(1)] += 1
    for bucket in range(1 << bits):
        ends[bucket + 1] += ends[bucket]
    for i in range(n):
        bucket = (hashes[i] >> shift) & mask
        order[ends[bucket]], ascending[ends[bucket]] = numbers[i], hashes[i]
        ends[bucket] += 1
    for last in range(1, n):
        place, moved, its_hash = last, order[last], ascending[last]
        while place > 0 and ascending[place - 1] > its_hash:
            order[place], ascending[place] = order[place - 1], ascending[place - 1]
            place -= 1
        order[place], ascending[place] = moved, its_hash


_COARSE_BITS = 10  # buckets that can be filled in turn without leaving the cache of a core


@compiled(int64[::1](int64, uint64))
def permute(n: Any, key: Any) -> Any:
    """Sort ``range(n)`` by a hash under ``key``: into buckets by its first bits, those into finer ones, then inside them."""
    bits = 1
    while bits < 24 and n >> bits:
        bits += 1
    coarse = max(0, bits - _COARSE_BITS)
    hashes, numbers = np.empty(n, np.uint64), np.empty(n, np.int64)
    bounds = np.zeros((1 << coarse) + 1, np.int64)
    if coarse == 0:
        for i in range(n):
            hashes[i], numbers[i] = _hash(i, key), i
        bounds[1] = n
    else:
        shift = np.uint64(64 - coarse)
        for i in range(n):
            bounds[(_hash(i, key) >> shift) + np.uint64(1)] += 1
        for bucket in range(1 << coarse):
            bounds[bucket + 1] += bounds[bucket]
        ends = bounds[:-1].copy()
        for i in range(n):
            found = _hash(i, key)
            place = ends[found >> shift]
            ends[found >> shift] += 1
            hashes[place], numbers[place] = found, i
    order = np.empty(n, np.int64)
    fine = bits - coarse
    largest = 0
    for bucket in range(1 << coarse):
        if bounds[bucket + 1] - bounds[bucket] > largest:
            largest = bounds[bucket + 1] - bounds[bucket]
    ascending, ends = np.empty(largest, np.uint64), np.empty((1 << fine) + 1, np.int64)
    for bucket in range(1 << coarse):
        first, last = bounds[bucket], bounds[bucket + 1]
        _sort(hashes[first:last], numbers[first:last], coarse, fine, order[first:last], ascending, ends)
    return order


@compiled(types.void(int64[::1], int64, int64, int64, int64, int64[:, ::1]))
def sorted_runs(begins: Any, size: Any, place: Any, lanes: Any, inverse: Any, out: Any) -> None:
    """Sort the indices of steps by lane, and write those from ``place`` on, as many as ``out`` has room for, to a row each.

    A step is ``size`` indices from one that is ``begins[k]`` modulo ``lanes`` on; index ``i`` is sorted by
    ``(i * s % lanes, i)``, where ``inverse * s % lanes`` is 1. What is written is less the step's first index.
    """
    least, more = size // lanes, size % lanes
    for k in range(len(begins)):
        before, row = -place, 0
        for key in range(lanes):
            lag = (key * inverse - begins[k]) % lanes
            count = least + (lag < more)
            for turn in range(max(0, -before), min(count, out.shape[1] - before)):
                out[k, row] = lag + turn * lanes
                row += 1
            before += count
