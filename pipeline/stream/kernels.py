"""The compiled loops of the stream: permutations, and tokens and documents out of mapped shards.

Each has its plain definition elsewhere: ``order.permutation`` says what `permute` gives, ``TokenStream.read`` what `gather`
does, and the tests look documents up one by one. They run without the interpreter's lock. Addresses are those of arrays that
their caller keeps alive.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import int64, types, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from ..compiling import compiled

# Columns of the table of shards: address of the first token (0: not open), tokens, when it was used last.
SHARD_COLUMNS = 3
# Columns of the table of windows: addresses of ends (0: not loaded, -1: being built), begins and shards, documents, when
# it was used last.
WINDOW_COLUMNS = 5
USED = 4

BUILD_AHEAD = 1 << 19  # tokens of a lane before the end of its window from which on the next window is built
_SEARCH_AFTER = 16  # documents that are passed over one by one before the place is searched for
_FETCH_AHEAD = 4  # documents whose first lines are asked of the memory early
_LINE = 64  # bytes


def _typed_pointer(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


def _typed_copy(typing: Any, target: Any, source: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, origin = (builder.inttoptr(address, cgutils.voidptr_t) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, origin, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _typed_fetch(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # To read, to keep in all caches, data.
        builder.call(prefetch, [builder.inttoptr(arguments[0], cgutils.voidptr_t), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


array_at: Any = numba.carray
pointer: Any = intrinsic(_typed_pointer)  # address -> pointer
_copy: Any = intrinsic(_typed_copy)  # target, source, bytes
_fetch: Any = intrinsic(_typed_fetch)  # asks the memory for the line at an address, which need not be there


# As in build/kernels.py, on purpose: of a function in another file numba's cache would not notice a change.
@compiled(uint64(uint64))
def _mix64(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled(int64[::1](int64, uint64))
def permute(n: Any, key: Any) -> Any:
    """Sort ``range(n)`` by a hash under ``key``: into about n buckets by its first bits, then inside them."""
    bits = 1
    while bits < 24 and n >> bits:
        bits += 1
    shift = np.uint64(64 - bits)
    hashes = np.empty(n, np.uint64)
    ends = np.zeros((1 << bits) + 1, np.int64)
    for i in range(n):
        hashes[i] = _mix64(_mix64(np.uint64(i) * np.uint64(0x9E3779B97F4A7C15)) ^ key)
        ends[(hashes[i] >> shift) + np.uint64(1)] += 1
    for bucket in range(len(ends) - 1):
        ends[bucket + 1] += ends[bucket]
    order, ascending = np.empty(n, np.int64), np.empty(n, np.uint64)
    for i in range(n):
        place = ends[hashes[i] >> shift]
        ends[hashes[i] >> shift] += 1
        order[place] = i
        ascending[place] = hashes[i]
    for last in range(1, n):
        place, moved, its_hash = last, order[last], ascending[last]
        while place > 0 and ascending[place - 1] > its_hash:
            order[place], ascending[place] = order[place - 1], ascending[place - 1]
            place -= 1
        order[place], ascending[place] = moved, its_hash
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


@compiled(
    int64(
        int64,
        int64[::1],
        int64[::1],
        int64[::1],
        int64[::1],
        int64[:, ::1],
        int64[:, ::1],
        int64,
        int64,
        int64[::1],
        int64,
        numba.uint8[:, ::1],
        int64,
        numba.uint8[:, ::1],
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
    shards: Any,
    tick: Any,
    item: Any,
    rows: Any,
    width: Any,
    out: Any,
    lag: Any,
    late: Any,
    ends: Any,
    spans: Any,
    notes: Any,
) -> Any:
    """Fill ``rows`` from the ``number``-th on, each from its token; return the first that it could not fill.

    That is one whose window is not loaded or ends within it, or that needs a shard that is not open or holds less than
    its index says. The first of a row's ``width`` tokens go to ``out`` (bytes), as many as there is room for, and those
    from ``lag`` on to ``late``, if that has rows. ``hints[lane]`` is the document where the lane was last, whatever window
    that was in. ``ends``, ``spans`` and ``notes`` are a `RowBuffer`'s; no ends are told where there is no room for any.
    The rows noted are those less than ``BUILD_AHEAD`` tokens before a window that nobody builds.
    """
    base, late_base, kept = int64(out.ctypes.data), int64(late.ctypes.data), out.shape[1] // item
    epoch_windows = len(starts) - 1
    notes[1] = 0
    for k in range(number, len(tokens)):
        token, row = tokens[k], rows[k]
        w = _last_at_most(starts, epoch_windows, token)
        inside = token - starts[w]
        if windows[w, 0] <= 0 or token + width > starts[w + 1]:
            return k
        if starts[w + 1] - token < BUILD_AHEAD + width and (w + 1 == epoch_windows or windows[w + 1, 0] == 0):
            notes[1] += 1
            notes[1 + notes[1]] = k
        windows[w, USED] = tick
        documents = windows[w, 3]
        stops = array_at(pointer(windows[w, 0]), documents + 1, numba.int64)
        begins = array_at(pointer(windows[w, 1]), documents, numba.int64)
        places = array_at(pointer(windows[w, 2]), documents, numba.int32)
        j = hints[lanes[k]]
        if j >= documents or stops[j] > inside or stops[min(j + _SEARCH_AFTER, documents)] <= inside:
            j = _last_at_most(stops, documents, inside)
        while stops[j + 1] <= inside:
            j += 1
        found = notes[0]
        at = int64(0)
        while True:
            if j + _FETCH_AHEAD < documents:
                early = j + _FETCH_AHEAD
                first = shards[places[early], 0] + begins[early] * item
                _fetch(first)
                _fetch(first + _LINE)
                _fetch(first + 2 * _LINE)
                _fetch(first + 3 * _LINE)
            end = stops[j + 1] - inside
            count = min(end, width) - at
            if count > 0:
                begin = begins[j] + max(inside - stops[j], 0)
                shard = places[j]
                if shards[shard, 0] == 0 or begin + count > shards[shard, 1]:
                    return k
                shards[shard, 2] = tick
                origin = shards[shard, 0] + begin * item
                if at < kept:
                    _copy(base + (row * kept + at) * item, origin, min(count, kept - at) * item)
                skipped = max(lag - at, 0)
                if len(late) and skipped < count:
                    target = late_base + (row * kept + at + skipped - lag) * item
                    _copy(target, origin + skipped * item, (count - skipped) * item)
                at += count
                if len(ends) and end <= width:
                    ends[found] = end
                    found += 1
            if at == width:
                break
            j += 1
        hints[lanes[k]] = j
        spans[row, 0], spans[row, 1] = notes[0], found
        notes[0] = found
    return len(tokens)


@compiled(int64(int64, int64[::1], int64[::1], int64[:, ::1], int64, int64[:, ::1]))
def look_up(number: Any, documents: Any, starts: Any, windows: Any, tick: Any, found: Any) -> Any:
    """Write shard, begin and stop of documents of an epoch, from the ``number``-th on; return the first in no loaded window.

    ``starts`` are the documents before each window, ``found`` is ``[3, documents]``.
    """
    for k in range(number, len(documents)):
        w = _last_at_most(starts, len(starts) - 1, documents[k])
        if windows[w, 0] <= 0:
            return k
        windows[w, USED] = tick
        j, count = documents[k] - starts[w], windows[w, 3]
        stops = array_at(pointer(windows[w, 0]), count + 1, numba.int64)
        found[0, k] = array_at(pointer(windows[w, 2]), count, numba.int32)[j]
        found[1, k] = array_at(pointer(windows[w, 1]), count, numba.int64)[j]
        found[2, k] = found[1, k] + stops[j + 1] - stops[j]
    return len(documents)
