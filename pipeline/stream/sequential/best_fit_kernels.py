"""The compiled loops of best-fit packing; ``best_fit.py`` says what they do, its tests define them plainly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int64, types, uint64

from ...compiling import compiled

WIDTHS = (np.dtype(np.uint16), np.dtype(np.uint32), np.dtype(np.int32), np.dtype(np.int64))  # that `fill` knows


@compiled(int64[::1](int64[::1], int64[::1], int64))
def fit(sizes: Any, order: Any, capacity: Any) -> Any:
    """Return the bin of each item, where those in ``order`` each go where they leave the least room.

    Of bins with equal room the one that came to it last takes the item. A bit for each room says whether some bin has
    it, so the next larger one is found in a few words.
    """
    bins = np.empty(len(sizes), np.int64)
    tops, below = np.full(capacity + 1, -1, np.int64), np.empty(len(sizes), np.int64)  # stacks of bins by room
    words = np.zeros((capacity >> 6) + 1, np.uint64)
    made = 0
    for item in order:
        size = sizes[item]
        word = size >> 6
        bits = (words[word] >> uint64(size & 63)) << uint64(size & 63)
        while bits == 0 and word + 1 < len(words):
            word += 1
            bits = words[word]
        if bits == 0:
            room, bin = capacity, made
            made += 1
        else:
            room = word << 6
            while not bits & uint64(1):
                bits >>= uint64(1)
                room += 1
            bin = tops[room]
            tops[room] = below[bin]
            if tops[room] < 0:
                words[room >> 6] &= ~(uint64(1) << uint64(room & 63))
        bins[item] = bin
        left = room - size
        if left:
            below[bin] = tops[left]
            tops[left] = bin
            words[left >> 6] |= uint64(1) << uint64(left & 63)
    return bins


def _filling(kind: Any) -> Any:
    ids = types.Array(kind, 1, "C", readonly=True)
    return types.void(ids, int64[:, ::1], int64[::1], int64, kind[:, ::1], int64[::1], int64[::1], int64[:, ::1])


@compiled([_filling(kind) for kind in (types.uint16, types.uint32, types.int32, types.int64)])
def fill(ids: Any, pieces: Any, cuts: Any, seq_len: Any, rows: Any, available: Any, places: Any, spans: Any) -> None:
    """Copy ``pieces`` (columns start, stop, end), ``cuts[r]`` to ``cuts[r + 1]`` of them to row ``r``.

    ``available`` gets how many tokens each row has, ``places`` and ``spans`` where documents end in them, as ``Ends``. A
    piece that fills its sequence and was cut from a longer document goes on to the end of the row, for labels.
    """
    found = 0
    for r in range(len(rows)):
        at, spans[r, 0] = 0, found
        for j in range(cuts[r], cuts[r + 1]):
            start, stop, end = pieces[j]
            if stop - start == seq_len:
                stop = min(start + rows.shape[1], end)
            for k in range(start, stop):
                rows[r, at + k - start] = ids[k]
            at += stop - start
            if stop == end:
                places[found] = at
                found += 1
        available[r], spans[r, 1] = at, found
        rows[r, at:] = 0
