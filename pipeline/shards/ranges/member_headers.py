"""The index of a block out of the headers of its members, where each document is a member of its own.

A block that is here then needs no request for its index. What is found is a guess until its checksums are compared: tokens may
look like a header, and members may hold several documents.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..extents.table import ExtentTable
from ..format import BLOCK, NPY_HEADER

_MAGIC = np.frombuffer(b"ustar", np.uint8)
_MAGIC_PLACE, _SIZE_PLACE = slice(257, 262), slice(124, 135)  # of a header
_DIGITS = 8 ** np.arange(10, -1, -1, dtype=np.int64)


def index_by_headers(table: ExtentTable, first: int, last: int, block: memoryview) -> tuple[bytes, bytes] | None:
    """Return starts (<i8) and lengths (<u4) of the documents of extents ``first`` to before ``last``, whose bytes are ``block``.

    None where the headers do not tell them.
    """
    offset = int(table.offset_of(first))
    documents = int(table.document_sums[last] - table.document_sums[first])
    tokens = int(table.token_sums[last] - table.token_sums[first])
    found, sizes = _members(block, -offset % BLOCK)
    starts, lengths = offset + found, (sizes - NPY_HEADER) // table.itemsize
    if offset:  # the header of the first document lies before the block
        starts, lengths = np.append(offset, starts), np.append(tokens - lengths.sum(), lengths)
    if len(lengths) != documents or (documents and int(lengths.min()) < 0):
        return None
    return starts.astype("<i8").tobytes(), lengths.astype("<u4").tobytes()


def _members(block: memoryview, first: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where payloads of arrays begin in a block, and the sizes of their members; headers may begin at byte ``first``."""
    count = max(0, (len(block) - first) // BLOCK)
    rows = np.asarray(block)[first : first + count * BLOCK].reshape(count, BLOCK)
    headers = np.flatnonzero((rows[:, _MAGIC_PLACE] == _MAGIC).all(axis=1))
    begins = first + headers * BLOCK + BLOCK + NPY_HEADER
    inside = begins < len(block)  # the last may be that of the next block's first document
    return begins[inside], (rows[headers[inside], _SIZE_PLACE] & 7) @ _DIGITS
