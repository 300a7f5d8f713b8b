"""Rows of a step, between the reader that reads them and the collator that makes a batch of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Rows(NamedTuple):
    """Packed rows, valid until the next read: the first ``filled`` rows of a batch.

    ``tokens``: ``[filled, width]``, labels included, as they are stored. ``document_ends``: where documents end in each row,
    ascending, from 1 to its width; None unless boundaries were asked for. ``valid``: int64 ``[filled]``, the tokens of each
    row before the end of a bounded stream, or None where none is cut. ``missing``: rows that were asked for but lie behind
    the end of a stream whose end was unknown in advance. ``masks``: uint8 ``[filled, width]``, 0 for tokens that no label
    counts, or None where all count.
    """

    filled: int
    tokens: NDArray[Any]
    document_ends: list[NDArray[np.int64]] | None
    valid: NDArray[np.int64] | None = None
    missing: int = 0
    masks: NDArray[np.uint8] | None = None


class DocumentRows(NamedTuple):
    """Whole documents, valid until the next read: 1-D token ids for each of the first ``filled`` rows of a batch.

    ``missing`` is as in `Rows`, and so are ``masks``, one for each document.
    """

    filled: int
    documents: list[NDArray[Any]]
    missing: int = 0
    masks: list[NDArray[np.uint8]] | None = None


class RowBuffer:
    """Rows of ``width`` tokens to be filled, in any order, again and again: valid until the next call of `begin`.

    ``tokens`` is ``[rows, width]``. ``ends`` takes where documents end in each row, ascending, from 1 to its width; None where
    that is not asked for. ``masks`` (uint8, as ``tokens``) is 0 for tokens that no label counts; None where all count.
    """

    def __init__(self, width: int, dtype: np.dtype[Any], *, with_ends: bool, with_masks: bool = False) -> None:
        self.tokens: NDArray[Any] = np.empty((0, width), dtype)
        self.masks = np.empty((0, width), np.uint8) if with_masks else None
        self.ends: list[NDArray[np.int64]] | None = [] if with_ends else None
        self._memory = self.tokens

    def begin(self, count: int) -> None:
        """Make room for so many rows."""
        if len(self._memory) < count:
            self._memory = np.empty((count, self.tokens.shape[1]), self.tokens.dtype)
        self.tokens = self._memory[:count]
        if self.masks is not None:
            self.masks = np.empty(self.tokens.shape, np.uint8)
        if self.ends is not None:
            self.ends = [_NONE] * count

    def rows(self, existing: NDArray[np.int64] | None = None) -> Rows:
        """Return the rows once all are filled; ``existing`` are the tokens of each before the end of a bounded stream."""
        return Rows(len(self.tokens), self.tokens, self.ends, valid=existing, masks=self.masks)


_NONE = np.zeros(0, np.int64)
