"""The compiled loops of collators: rows into ids and labels, document ends into boundaries, documents into padded rows.

Their plain definitions: the last lines of ``collate.spread`` for `widen`, loops in the tests for `bound` and `pad`. `narrow`
is for batches on their way between processes. They run without the interpreter's lock.
"""

from __future__ import annotations

from typing import Any

from numba import int64, types

from ...compiling import compiled
from ...intrinsics import array_at, pointer


def _widening(kind: Any) -> Any:
    ids = int64[:, ::1]
    return types.void(types.Array(kind, 2, "A", readonly=True), int64, ids, ids)


@compiled([_widening(types.uint16), _widening(types.uint32)])
def widen(tokens: Any, lag: Any, ids: Any, labels: Any) -> None:
    """Write rows of tokens, contiguous each, to ``ids``, and those from token ``lag`` on to ``labels``."""
    for r in range(len(ids)):
        row = array_at(pointer(tokens.ctypes.data + r * tokens.strides[0]), tokens.shape[1], tokens.dtype)
        later, to_ids, to_labels = row[lag:], ids[r], labels[r]
        for k in range(len(to_ids)):
            to_ids[k] = row[k]
        for k in range(len(to_labels)):
            to_labels[k] = later[k]


@compiled(int64(types.Array(int64, 1, "C", readonly=True), types.uint16[::1]))
def narrow(values: Any, out: Any) -> Any:
    """Write the low 16 bits of each value; return the bits that any of them has: from 0 to 65,535 where these are all."""
    bits = int64(0)
    for k in range(len(values)):
        bits |= values[k]
        out[k] = values[k]
    return bits


@compiled(types.void(int64[::1]))
def _count_up(places: Any) -> None:
    for k in range(len(places)):
        places[k] = k


@compiled(
    types.void(
        int64[::1],
        int64[:, ::1],
        int64[::1],
        int64,
        int64,
        int64[:, ::1],
        types.int32[::1],
        int64[::1],
        int64[::1],
    )
)
def bound(
    ends: Any,
    spans: Any,
    available: Any,
    width: Any,
    shift: Any,
    positions: Any,
    begins: Any,
    ignored: Any,
    counts: Any,
) -> None:
    """Derive everything about boundaries from where documents end in the rows of a batch.

    Row ``r`` has ``width`` tokens, its labels' included, of which ``available[r]`` exist, or all where that is empty; labels
    lie ``shift`` ahead.
    ``positions`` become the tokens since the last begin in the row. ``begins`` are the flat places where documents begin,
    as each row does, ``ignored`` those of labels behind what exists, and of the ``shift`` labels before each begin, or for
    a shift of 0 of the label at it: ``counts`` says how many there are of both, and the longest document.
    """
    begun, masked, longest = counts
    rows, length = positions.shape
    for r in range(rows):
        flat, row = r * length, positions[r]
        have = available[r] if len(available) else width
        labelled = min(max(have - shift, 0), length)
        begin = free = int64(0)
        begins[begun] = flat
        begun += 1
        for end in ends[spans[r, 0] : spans[r, 1]]:
            if end >= width or end > have:
                break
            for place in range(max(free, end - shift), min(end + (shift == 0), labelled)):
                ignored[masked] = flat + place
                masked += 1
            free = end
            if end < length:
                _count_up(row[begin:end])
                longest = max(longest, end - begin)
                begin = end
                begins[begun] = flat + end
                begun += 1
        _count_up(row[begin:])
        longest = max(longest, length - begin)
        for place in range(labelled, length):
            ignored[masked] = flat + place
            masked += 1
    counts[0], counts[1], counts[2] = begun, masked, longest


@compiled(types.void(int64[::1], int64[::1], int64, int64, types.bool_, int64[:, ::1], int64[:, ::1], int64[:, ::1]))
def pad(tokens: Any, lengths: Any, eos_id: Any, ignore: Any, same: Any, ids: Any, labels: Any, mask: Any) -> None:
    """Write documents that follow one another to a row each: ids, labels (the next ids, or the ``same``) and a mask.

    What is left of a row is ``eos_id``, ``ignore`` and 0.
    """
    first = int64(0)
    for r in range(len(ids)):
        count = lengths[r] if r < len(lengths) else int64(0)
        row_ids, row_labels, row_mask = ids[r], labels[r], mask[r]
        own = tokens[first : first + count]
        for k in range(count):
            row_ids[k] = own[k]
            row_mask[k] = 1
        row_ids[count:] = eos_id
        row_mask[count:] = 0
        kept = own if same else own[1:]
        for k in range(len(kept)):
            row_labels[k] = kept[k]
        row_labels[len(kept) :] = ignore
        first += count
