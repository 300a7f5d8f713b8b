"""Where the documents of extents start, by their lengths, without a request for it.

The bytes of an extent that are no tokens tell how many members end in it, each with padding and the headers of the next one. What
is found is a guess until the checksum of the index agrees: members of several documents may end behind any of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..extents.table import ExtentTable, index_crc32
from ..format import BLOCK, HEADERS, NPY_HEADER

_MOST_LAYOUTS = 1024  # of an extent, for each document that ends the last member

Starts = NDArray[np.int64]


def starts_by_lengths(table: ExtentTable, first: int, last: int, lengths: NDArray[np.uint32]) -> Starts | None:
    """Return where the documents of extents of one shard start, by their ``lengths``, as the checksums say.

    None where that is not found: members of several documents end behind too many of them, or the lengths are wrong.
    """
    parts, done, offset = [], 0, int(table.offset_of(first))
    columns = (column[first:last].tolist() for column in (table.documents, table.sizes, table.index_crc32))
    for other, count, size, wanted in zip(_other_bytes(table, first, last), *columns, strict=True):
        part = lengths[done : done + count]
        layouts = _layouts(offset or HEADERS, part.astype(np.int64) * table.itemsize, other)
        found = next((starts for starts in layouts if index_crc32(starts, part) == wanted), None)
        if found is None:
            return None
        parts.append(found)
        done, offset = done + count, offset + size
    return np.concatenate(parts)


def _other_bytes(table: ExtentTable, first: int, last: int) -> list[int]:
    """Return the bytes of each extent that are no tokens: of each member that ends there, padding and the next one's headers.

    The headers that begin a shard are left out, and its last member counts as if another followed it.
    """
    begin, end = table.shard_bounds[(shard := int(table.shard_of(first))) : shard + 2].tolist()
    counts = zip(table.sizes[first:last].tolist(), table.tokens[first:last].tolist(), strict=True)
    found = [size - tokens * table.itemsize for size, tokens in counts]
    found[0] -= HEADERS * (first == begin)
    found[-1] += HEADERS * (last == end)
    return found


def _layouts(begin: int, sizes: NDArray[np.int64], other: int) -> Iterator[Starts]:
    """Yield where documents of so many bytes may start, the first at ``begin``, where ``other`` bytes are no tokens.

    Each may be a member of its own, or none, one or two members end behind some of them.
    """
    count, ends = len(sizes), np.cumsum(sizes)
    starts = begin - sizes + ends
    if count == 1 or other >= HEADERS * count:
        jumps = HEADERS + -(NPY_HEADER + sizes) % BLOCK
        yield starts + np.cumsum(jumps) - jumps
    if other == 0:
        yield starts
    # A member that began before ends behind document j. What follows is aligned, as is what follows the last of two.
    numbers, firsts = np.arange(count), HEADERS + -(begin + ends) % BLOCK
    for j in np.flatnonzero(firsts == other).tolist():
        yield starts + firsts[j] * (numbers > j)
    if 2 * HEADERS <= other < 2 * (HEADERS + BLOCK):
        for k in np.flatnonzero((begin + ends + other - HEADERS) % BLOCK == 0).tolist():
            seconds = HEADERS + -(NPY_HEADER + ends[k] - ends[:k]) % BLOCK
            some = np.flatnonzero(firsts[:k] + seconds == other)[:_MOST_LAYOUTS, None]
            yield from starts + firsts[some] * (numbers > some) + seconds[some] * (numbers > k)
