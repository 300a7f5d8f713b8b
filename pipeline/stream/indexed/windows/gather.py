"""The compiled loops of indexed readers: windows put in order, and tokens and documents copied out of their blocks.

Their plain definitions: `ShuffleWindow` says what `arrange` gives, ``TokenStream.read`` what `gather` does. They run without the
interpreter's lock.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import int64, types

from ....compiling import compiled
from ....intrinsics import array_at, copy_bytes, fetch, pointer

# Columns of the table of windows: addresses of ends (0: not loaded), places and blocks, and how many documents.
WINDOW_COLUMNS = 4
# Columns of a window's blocks: address of the first token (0: not in memory), tokens from there on.
BLOCK_COLUMNS = 2
PLACE_BITS = 40  # of a place: the token in its block; the bits above are the number of the block in its window
_IN_BLOCK = (1 << PLACE_BITS) - 1

_SEARCH_AFTER = 16  # documents that are passed over one by one before the place is searched for
_FETCH_AHEAD = 4  # documents whose first lines are asked of the memory early
_LINES, _LINE = 4, 64  # lines, and the bytes of one


@compiled(
    int64(
        types.Array(int64, 1, "C", readonly=True),
        types.Array(types.uint32, 1, "C", readonly=True),
        int64[:, ::1],
        int64[::1],
        int64,
        int64[::1],
        int64[::1],
    )
)
def arrange(starts: Any, lengths: Any, blocks: Any, order: Any, item: Any, ends: Any, places: Any) -> Any:
    """Write where the documents of a window end and lie, in its order; return the first that leaves its block, or -1.

    ``starts`` (bytes) and ``lengths`` (tokens) are listed block by block; ``blocks``: how many documents, the byte that it
    begins at, the tokens that it holds. ``order`` is empty where the documents stay as they are.
    """
    document = int64(0)
    listed = np.empty(len(starts) if len(order) else 0, np.int64)
    for block in range(len(blocks)):
        for _ in range(blocks[block, 0]):
            start = starts[document] - blocks[block, 1]
            begin = start // item
            if start < 0 or start % item or begin + lengths[document] > blocks[block, 2]:
                return document
            place = (int64(block) << PLACE_BITS) | begin
            if len(order):
                listed[document] = place
            else:
                places[document] = place
            document += 1
    before = int64(0)
    ends[0] = 0
    if len(order):
        for j in range(len(order)):
            places[j] = listed[order[j]]
            before += lengths[order[j]]
            ends[j + 1] = before
    else:
        for j in range(len(starts)):
            before += lengths[j]
            ends[j + 1] = before
    return int64(-1)


@compiled(int64(int64[::1], int64, int64))
def _last_at_most(ascending: Any, count: Any, value: Any) -> Any:
    """Return the last of the first ``count`` places whose number is at most ``value``."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if ascending[middle] <= value:
            low = middle
        else:
            high = middle
    return low


@compiled(types.void(int64, int64, int64, int64, int64))
def _write(target: Any, origin: Any, count: Any, item: Any, wide: Any) -> None:
    """Copy tokens of ``item`` bytes to where each takes ``wide`` bytes: as many, or the 8 of an int64."""
    if wide == item:
        copy_bytes(target, origin, count * item)
        return
    widened = array_at(pointer(target), count, numba.int64)
    if item == 2:
        short = array_at(pointer(origin), count, numba.uint16)
        for k in range(count):
            widened[k] = short[k]
    else:
        long = array_at(pointer(origin), count, numba.uint32)
        for k in range(count):
            widened[k] = long[k]


@compiled(types.void(int64))
def _fetch_lines(address: Any) -> None:
    """Ask the memory for the first lines of a document."""
    for line in range(_LINES):
        fetch(address + line * _LINE)


@compiled(
    int64(
        int64,
        int64[::1],
        int64[::1],
        int64[::1],
        int64[::1],
        int64[:, ::1],
        int64,
        int64[::1],
        int64,
        numba.uint8[:, ::1],
        int64,
        numba.uint8[:, ::1],
        int64,
        int64[::1],
        int64[:, ::1],
        int64[::1],
    )
)
def gather(
    number: Any,
    tokens: Any,
    lanes: Any,
    hints: Any,
    starts: Any,
    windows: Any,
    item: Any,
    rows: Any,
    width: Any,
    out: Any,
    lag: Any,
    late: Any,
    wide: Any,
    ends: Any,
    spans: Any,
    notes: Any,
) -> Any:
    """Fill ``rows`` from the ``number``-th on, each from its token; return the first that it could not fill.

    That is one that needs a window which is not loaded, or a block that is not in memory, or ends behind the epoch. The
    first of a row's ``width`` tokens go to ``out``, as many as there is room for, and those from ``lag`` on to ``late``,
    if that has rows: bytes, of which a token takes ``wide``, those that it is stored in or 8. ``hints[lane]`` is the
    document where the lane was last, whatever window that was in. ``ends``, ``spans`` and ``notes`` are a `RowBuffer`'s;
    no ends are told where there is no room for any.
    """
    base, late_base, kept = int64(out.ctypes.data), int64(late.ctypes.data), out.shape[1] // wide
    for k in range(number, len(tokens)):
        row, found, at = rows[k], notes[0], int64(0)
        w = _last_at_most(starts, len(starts) - 1, tokens[k])
        j = hints[lanes[k]]
        while at < width:
            if w == len(starts) - 1 or windows[w, 0] == 0:
                return k
            inside, documents = tokens[k] - starts[w], windows[w, 3]
            stops = array_at(pointer(windows[w, 0]), documents + 1, numba.int64)
            places = array_at(pointer(windows[w, 1]), documents, numba.int64)
            blocks = array_at(pointer(windows[w, 2]), (1 << 62) // 16, numba.int64)
            if j >= documents or stops[j] > inside + at or stops[min(j + _SEARCH_AFTER, documents)] <= inside + at:
                j = _last_at_most(stops, documents, inside + at)
            while stops[j + 1] <= inside + at:
                j += 1
            while True:
                if j + _FETCH_AHEAD < documents:
                    early = places[j + _FETCH_AHEAD]
                    _fetch_lines(blocks[BLOCK_COLUMNS * (early >> PLACE_BITS)] + (early & _IN_BLOCK) * item)
                end = stops[j + 1] - inside
                count = min(end, width) - at
                if count > 0:
                    address = blocks[BLOCK_COLUMNS * (places[j] >> PLACE_BITS)]
                    if address == 0:
                        return k
                    origin = address + ((places[j] & _IN_BLOCK) + max(inside - stops[j], 0)) * item
                    if at < kept:
                        _write(base + (row * kept + at) * wide, origin, min(count, kept - at), item, wide)
                    skipped = max(lag - at, 0)
                    if len(late) and skipped < count:
                        target = late_base + (row * kept + at + skipped - lag) * wide
                        _write(target, origin + skipped * item, count - skipped, item, wide)
                    at += count
                    if len(ends) and end <= width:
                        ends[found] = end
                        found += 1
                if at == width or j + 1 == documents:
                    break
                j += 1
            if at < width:  # the row goes on in the next window that has tokens
                w, j = w + 1, int64(0)
                while w < len(starts) - 1 and starts[w + 1] == starts[w]:
                    w += 1
        hints[lanes[k]] = j
        spans[row, 0], spans[row, 1] = notes[0], found
        notes[0] = found
    return len(tokens)


@compiled(int64(int64, int64[::1], int64[::1], int64[:, ::1], int64[:, ::1]))
def look_up(number: Any, documents: Any, starts: Any, windows: Any, found: Any) -> Any:
    """Find documents of an epoch, from the ``number``-th on; return the first that is in no loaded window.

    ``starts`` are the documents before each window. Of each, its window, its place there and its tokens go to ``found``
    (``[3, documents]``).
    """
    for k in range(number, len(documents)):
        w = _last_at_most(starts, len(starts) - 1, documents[k])
        if windows[w, 0] == 0:
            return k
        j, count = documents[k] - starts[w], windows[w, 3]
        stops = array_at(pointer(windows[w, 0]), count + 1, numba.int64)
        found[0, k] = w
        found[1, k] = array_at(pointer(windows[w, 1]), count, numba.int64)[j]
        found[2, k] = stops[j + 1] - stops[j]
    return len(documents)


@compiled(int64(int64, int64[:, ::1], int64[:, ::1], int64, numba.uint8[::1], int64[::1]))
def join(number: Any, found: Any, windows: Any, item: Any, out: Any, ends: Any) -> Any:
    """Copy documents that `look_up` found, from the ``number``-th on, one behind the other; return the first not in memory.

    ``ends`` are the tokens up to the end of each in ``out``; as many of its tokens are copied as that leaves room for.
    """
    base = int64(out.ctypes.data)
    for k in range(number, found.shape[1]):
        first = ends[k - 1] if k else int64(0)
        count = ends[k] - first
        if count == 0:
            continue
        blocks = array_at(pointer(windows[found[0, k], 2]), (1 << 62) // 16, numba.int64)
        address = blocks[BLOCK_COLUMNS * (found[1, k] >> PLACE_BITS)]
        if address == 0:
            return k
        copy_bytes(base + first * item, address + (found[1, k] & _IN_BLOCK) * item, count * item)
    return found.shape[1]


@compiled(types.void(int64, numba.uint8[::1]))
def copy_tokens(address: Any, out: Any) -> None:
    """Fill ``out`` from an address on."""
    copy_bytes(int64(out.ctypes.data), address, int64(len(out)))
