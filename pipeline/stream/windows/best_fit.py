"""Best-fit packing: whole documents in sequences of a fixed size, cut only if they are longer than one.

Concatenating documents and cutting sequences breaks most documents. Packing the longest first, each where it fits best, breaks
no document that fits into a sequence, and pads about a percent (Ding et al. 2024, "Fewer Truncations Improve Language Modeling").
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

from ...shards.extents.extent_table import runs
from ..order import permutation
from .window import Window


def best_fit_decreasing(sizes: NDArray[np.int64], capacity: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Put items of ``sizes`` (1 to ``capacity``) into bins: largest first, each into the bin where it leaves least room.

    If bins have equal room, the bin that reached this room last takes the item. Returns the items bin by bin, ascending in each
    bin, and the bounds of the bins in this list. Bins are in the order of their first items.

    >>> items, cuts = best_fit_decreasing(np.array([3, 6, 5, 2]), 8)
    >>> items.tolist(), cuts.tolist()
    ([0, 2, 1, 3], [0, 2, 4])
    """
    bins = np.empty(len(sizes), np.int64)
    by_room: dict[int, list[int]] = {}  # room left -> bins
    rooms: list[int] = []  # the keys of `by_room`, ascending
    made = 0
    for item in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[item])
        at = bisect_left(rooms, size)
        if at == len(rooms):
            room, bin, made = capacity, made, made + 1
        else:
            room = rooms[at]
            bin = by_room[room].pop()
            if not by_room[room]:
                del rooms[at], by_room[room]
        bins[item] = bin
        left = room - size
        if left in by_room:
            by_room[left].append(bin)
        elif left:
            by_room[left] = [bin]
            insort(rooms, left)
    _, firsts, counts = np.unique(bins, return_index=True, return_counts=True)
    order = np.argsort(firsts)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return np.argsort(ranks[bins], kind="stable"), np.concatenate([[0], np.cumsum(counts[order])])


def pack_documents(window: Window, seq_len: int, extra: int, key: int | None) -> tuple[Window, NDArray[np.int64]]:
    """Return the documents of a window as sequences of up to ``seq_len`` tokens, end to end, and the bounds of the sequences.

    A sequence that was cut out of a longer document has ``extra`` more tokens of the document, for labels. ``key`` shuffles the
    sequences; None keeps them in the order of their first documents.
    """
    lengths = np.diff(window.ends)
    counts = -(-lengths // seq_len)
    document_ends = np.repeat(window.ends[1:], counts)
    number = runs(np.zeros_like(counts), counts)  # of a part in its document
    starts = document_ends - np.repeat(lengths, counts) + number * seq_len
    sizes = np.minimum(document_ends - starts, seq_len)
    items, cuts = best_fit_decreasing(sizes, seq_len)
    order = np.arange(len(cuts) - 1) if key is None else permutation(len(cuts) - 1, key)
    counts = np.diff(cuts)[order]
    parts = items[runs(cuts[order], counts)]
    starts, sizes, document_ends = starts[parts], sizes[parts], document_ends[parts]
    stops = np.where(sizes == seq_len, np.minimum(starts + seq_len + extra, document_ends), starts + sizes)
    copied = runs(starts, stops - starts)
    ends = np.append(0, np.cumsum(stops - starts))
    is_last = np.append(True, stops == document_ends)
    mask = None if window.mask is None else window.mask[copied]
    return Window(window.tokens[copied], ends[is_last], has_empty=False, mask=mask), ends[
        np.append(0, np.cumsum(counts))
    ]
