"""Where the documents of extents start, found without a request for it.

A block that is here tells it by the headers of its members. Else the table of extents and the lengths of documents do: the bytes
of an extent that are no tokens tell how many members end in it, each with padding and the headers of the next one.

What is found is a guess until the checksums of the index agree: tokens may look like a header, and members of several
documents may end behind any of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..extents.checksums import index_crc32
from ..extents.table import ExtentTable
from ..format import BLOCK, HEADERS, NPY_HEADER

_MOST_LAYOUTS = 1024  # of an extent, for each document that ends the last member
_MAGIC = np.frombuffer(b"ustar", np.uint8)
_MAGIC_PLACE, _SIZE_PLACE = slice(257, 262), slice(124, 135)  # of a header
_DIGITS = 8 ** np.arange(10, -1, -1, dtype=np.int64)

Starts = NDArray[np.int64]


def one_member_each(table: ExtentTable, first: int, last: int) -> bool:
    """Whether each document of extents ``first`` to before ``last`` can be a member of its own, by their bytes."""
    others, documents = _other_bytes(table, first, last), table.documents[first:last].tolist()
    return all(count == 1 or other >= HEADERS * count for other, count in zip(others, documents, strict=True))


def index_by_headers(
    table: ExtentTable, first: int, last: int, block: memoryview, lengths: bytes = b""
) -> tuple[bytes, bytes] | None:
    """Return starts (<i8) and lengths (<u4) of the documents of extents ``first`` to before ``last``, whose bytes are ``block``.

    Without ``lengths`` each document is taken for a member of its own. None where the headers do not tell them.
    """
    offset = int(table.offset_of(first))
    documents = int(table.document_sums[last] - table.document_sums[first])
    tokens = int(table.token_sums[last] - table.token_sums[first])
    found, sizes = _members(block, -offset % BLOCK, len(block) + bool(lengths))
    begins, held = offset + found, (sizes - NPY_HEADER) // table.itemsize
    if lengths:  # the last member may go on behind the block, or begin there: then with documents of no tokens
        held = np.minimum(held, (len(block) - found) // table.itemsize)
    if offset:  # the header of the first member lies before the block
        begins, held = np.append(offset, begins), np.append(tokens - held.sum(), held)
    if not len(held) or int(held.min()) < 0 or (not lengths and len(held) != documents):
        return None
    if not lengths:
        return begins.astype("<i8").tobytes(), held.astype("<u4").tobytes()
    counts = np.frombuffer(lengths, "<u4").astype(np.int64)
    before, first_tokens = np.cumsum(counts) - counts, np.cumsum(held) - held
    members = np.searchsorted(first_tokens, before, side="right") - 1
    starts = begins[members] + (before - first_tokens[members]) * table.itemsize
    return starts.astype("<i8").tobytes(), lengths


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


def _members(block: memoryview, first: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where payloads of arrays begin before byte ``stop`` of a block, and the sizes of their members.

    Headers may begin at byte ``first``.
    """
    count = max(0, (len(block) - first) // BLOCK)
    rows = np.asarray(block)[first : first + count * BLOCK].reshape(count, BLOCK)
    headers = np.flatnonzero((rows[:, _MAGIC_PLACE] == _MAGIC).all(axis=1))
    begins = first + headers * BLOCK + HEADERS
    inside = begins < stop  # the last may be that of the next block's first document
    return begins[inside], (rows[headers[inside], _SIZE_PLACE] & 7) @ _DIGITS
