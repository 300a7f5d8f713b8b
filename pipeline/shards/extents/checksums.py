"""Checksums of extents: of their bytes, and of what the index says of their documents."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray


def index_crc32(starts: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]) -> int:
    """Return the CRC-32 of where documents start (8 bytes each), then of their lengths (4 bytes each)."""
    return zlib.crc32(lengths.data, zlib.crc32(starts.data))


class RangeChecksums:
    """CRC-32 of byte ranges that follow each other, of bytes that come in pieces; ``ends`` are the ends of the ranges.

    >>> sums = RangeChecksums([2, 5])
    >>> for piece in (b"a", b"bcd", b"ef"):
    ...     sums.update(piece)
    >>> sums.values == [zlib.crc32(b"ab"), zlib.crc32(b"cde")]
    True
    """

    def __init__(self, ends: Iterable[int]) -> None:
        self.values: list[int] = []
        self._ends = list(ends)
        self._at = 0
        self._crc32 = 0

    def update(self, piece: bytes) -> None:
        """Take the next bytes; those behind the last range are ignored."""
        view = memoryview(piece)
        while view and len(self.values) < len(self._ends):
            end = self._ends[len(self.values)]
            part = view[: end - self._at]
            self._crc32 = zlib.crc32(part, self._crc32)
            self._at += len(part)
            view = view[len(part) :]
            if self._at == end:
                self.values.append(self._crc32)
                self._crc32 = 0
