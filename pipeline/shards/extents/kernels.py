"""The compiled loop that computes the checksum of each extent's part of an index, as `checksums.index_crc32` defines it.

Such a part has about a kilobyte: a call of zlib costs more than its work, and it runs with the interpreter's lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import int64, types, uint32
from numpy.typing import NDArray

from ...compiling import compiled

_POLYNOMIAL = 0xEDB88320  # of zlib's CRC-32, its bits reversed


def _make_tables() -> NDArray[np.uint32]:
    """Return what a byte does to a checksum that 0 to 7 more bytes follow (``[8, 256]``).

    M. E. Kounavis and F. L. Berry, "A Systematic Approach to Building High Performance Software-based CRC Generators", 2005.
    """
    tables = np.empty((8, 256), np.uint32)
    tables[0] = np.arange(256)
    for _ in range(8):
        tables[0] = np.where(tables[0] & 1, tables[0] >> 1 ^ _POLYNOMIAL, tables[0] >> 1)
    for k in range(1, 8):
        tables[k] = tables[0][tables[k - 1] & 255] ^ tables[k - 1] >> 8
    return tables


_TABLES = _make_tables()
_ALL = uint32(0xFFFFFFFF)


@compiled(
    types.void(
        types.Array(int64, 1, "C", readonly=True),
        types.Array(uint32, 1, "C", readonly=True),
        int64[::1],
        uint32[::1],
    )
)
def index_checksums(starts: Any, lengths: Any, documents: Any, found: Any) -> None:
    """Write the checksum of each extent, which has so many ``documents``; they are listed extent by extent."""
    begin = int64(0)
    for extent in range(len(documents)):
        end, crc = begin + documents[extent], _ALL
        for k in range(begin, end):
            low, high = crc ^ uint32(starts[k]), uint32(starts[k] >> 32)
            crc = (
                _TABLES[7, low & 255] ^ _TABLES[6, low >> 8 & 255] ^ _TABLES[5, low >> 16 & 255] ^ _TABLES[4, low >> 24]
                ^ _TABLES[3, high & 255] ^ _TABLES[2, high >> 8 & 255] ^ _TABLES[1, high >> 16 & 255] ^ _TABLES[0, high >> 24]
            )  # fmt: skip
        for k in range(begin, end):
            low = crc ^ lengths[k]
            crc = (
                _TABLES[3, low & 255] ^ _TABLES[2, low >> 8 & 255] ^ _TABLES[1, low >> 16 & 255] ^ _TABLES[0, low >> 24]
            )
        found[extent] = crc ^ _ALL
        begin = end
