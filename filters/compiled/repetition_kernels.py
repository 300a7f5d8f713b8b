"""The compiled loops that find repeated lines and n-grams, by 64-bit hashes of lines and pieces.

They take little time, because an n-gram can occur twice only if its first n - 1 pieces do: the search for each n looks only at
the repeats of n - 1.
"""

from __future__ import annotations

import numpy as np

from pipeline.compiling import compiled
from pipeline.integer_hash import FNV_PRIME, GOLDEN

_FIRST_N, _LAST_TOP_N, _LAST_N = 2, 4, 10
_MANY = 1 << 15


@compiled("uint64(uint64)")
def mix(value):  # type: ignore[no-untyped-def]
    value ^= value >> np.uint64(32)
    value *= GOLDEN
    return value ^ (value >> np.uint64(29))


@compiled("int64(int64)")
def table_size(entries):  # type: ignore[no-untyped-def]
    size = 16
    while size < entries * (4 if entries < _MANY else 2):  # sparse is faster while the table fits the processor's cache
        size *= 2
    return size


@compiled("Tuple((int64, int64))(uint64[::1], int64[::1], int64)")
def count_duplicates(hashes, lengths, count):  # type: ignore[no-untyped-def]
    """Return how many of the first `count` parts repeat an earlier part, and their characters."""
    size = table_size(count)
    table = np.full(size, -1, np.int32)
    duplicates = characters = 0
    for at in range(count):
        slot = np.int64(mix(hashes[at]) & np.uint64(size - 1))
        while table[slot] >= 0 and hashes[table[slot]] != hashes[at]:
            slot = (slot + 1) & (size - 1)
        if table[slot] >= 0:
            duplicates += 1
            characters += lengths[at]
        else:
            table[slot] = at
    return duplicates, characters


@compiled("void(uint64[::1], int64[::1], int64, float64, float64[::1])")
def measure_ngrams(hashes, reach, pieces, characters, ratios):  # type: ignore[no-untyped-def]
    """Write the nine n-gram ratios; `reach[i]` is the number of characters in the first i pieces."""
    grams = hashes[:pieces].copy()
    starts = np.arange(pieces, dtype=np.int32)  # starts of n-grams that may occur more than once
    first = np.empty(pieces, np.int32)  # the start of the first equal n-gram
    counts = np.empty(pieces, np.int32)
    seen = np.empty(pieces, np.bool_)
    live = pieces
    for n in range(_FIRST_N, _LAST_N + 1):
        while live and starts[live - 1] + n > pieces:
            live -= 1
        if live == 0:
            return
        size = table_size(live)
        table = np.full(size, -1, np.int32)
        for index in range(live):
            at = starts[index]
            gram = grams[at] * FNV_PRIME + hashes[at + n - 1]
            grams[at] = gram
            slot = np.int64(mix(gram) & np.uint64(size - 1))
            before = table[slot]
            while before >= 0 and grams[before] != gram:
                slot = (slot + 1) & (size - 1)
                before = table[slot]
            if before < 0:
                table[slot] = first[at] = at
                counts[at] = 1
            else:
                first[at] = before
                counts[before] += 1
        kept = 0
        for index in range(live):  # no branch: the processor could not predict it
            at = starts[index]
            starts[kept] = at
            seen[at] = False
            kept += counts[first[at]] > 1
        live = kept
        if n <= _LAST_TOP_N:
            best = -1
            for index in range(live):
                at = starts[index]
                if first[at] == at and (best < 0 or counts[at] > counts[best]):
                    best = at
            if best >= 0:
                ratios[n - _FIRST_N] = counts[best] * (reach[best + n] - reach[best] + n - 1) / characters
        else:
            repeated = resume = 0
            for index in range(live):
                at = starts[index]
                if at < resume:
                    continue
                if seen[first[at]]:
                    repeated += reach[at + n] - reach[at]
                    resume = at + n
                else:
                    seen[first[at]] = True
            ratios[n - _FIRST_N] = repeated / characters
