"""What readers ask for documents: the indexes and the bytes of extents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]  # of the table of extents
Index = tuple[NDArray[np.int64], NDArray[np.uint32]]  # where documents start in their files (bytes), and their tokens


class Source(Protocol):
    """Documents by runs of extents of one shard each: rows of a table, ``first`` to before ``last``.

    Of many runs, ``firsts`` and ``lasts`` (int64) are these rows.

    ``waits``: an answer may take time, so threads load windows ahead. ``copies``: bytes take memory of their own.
    ``behind``: bytes arrive after their index (see `RemoteRanges`, which offers more).
    ``rows_first``: where blocks are not in memory yet, rows may be read before them.
    """

    waits: bool
    copies: bool
    behind: bool
    rows_first: bool

    def index(self, firsts: Rows, lasts: Rows) -> Index:
        """Return the index of the documents of runs, one behind the other."""

    def memory(self, first: int, last: int) -> Any:
        """Return the bytes of a run, with the ``address`` of the first."""

    def memories(self, firsts: Rows, lasts: Rows) -> tuple[NDArray[np.int64], Any] | None:
        """Return the addresses of the bytes of runs, and what keeps them there; None where `memory` must bring each."""

    def check(self, first: int, last: int) -> None:
        """Verify the bytes of a run at their first use, where that was asked for."""

    def read(self, shard: int, offset: int, target: memoryview) -> None:
        """Fill ``target`` from a byte of a shard on."""

    def read_all(self, wanted: list[tuple[int, int, memoryview]]) -> None:
        """Fill targets, each from a byte of a shard on."""

    def ask(self, firsts: Rows, lasts: Rows) -> None:
        """Ask for the indexes and the bytes of runs ahead of their use, and do not wait."""

    def ask_index(self, firsts: Rows, lasts: Rows) -> None:
        """Ask for the indexes of runs ahead of their use, and do not wait."""

    def ask_bytes(self, shard: int, offset: int, size: int) -> None:
        """Ask for these bytes of a shard ahead of their use, and do not wait."""

    def close(self) -> None:
        """Give back what is held."""


def joined(parts: Sequence[tuple[bytes, bytes]]) -> Index:
    """Return one index of the bytes of several: of starts (<i8) and of tokens (<u4)."""
    starts, lengths = (b"".join([part[k] for part in parts]) for k in (0, 1))
    return np.frombuffer(starts, "<i8"), np.frombuffer(lengths, "<u4")
