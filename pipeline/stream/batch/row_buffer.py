"""Rows of a step, between the reader that reads them and the collator that makes a batch of them; and what both are."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..order import RankStep
from .batch_keys import Batch


class Rows(NamedTuple):
    """Packed rows, valid until the next read: the first of a batch.

    ``tokens``: ``[rows, width]``, labels included, as they are stored. ``document_ends``: where documents end in each row,
    ascending, from 1 to its width; None unless boundaries were asked for. ``valid``: int64 ``[rows]``, the tokens of each
    row before the end of a bounded stream, or None where none is cut. ``missing``: rows that were asked for but lie behind
    the end of a stream whose end was unknown in advance. ``masks``: uint8 ``[rows, width]``, 0 for tokens that no label
    counts, or None where all count.
    """

    tokens: NDArray[Any]
    document_ends: list[NDArray[np.int64]] | None
    valid: NDArray[np.int64] | None = None
    missing: int = 0
    masks: NDArray[np.uint8] | None = None

    @property
    def filled(self) -> int:
        """How many rows there are."""
        return len(self.tokens)

    @property
    def existing(self) -> list[NDArray[Any]]:
        """The tokens of each row that exist, those of labels included."""
        return (
            [*self.tokens] if self.valid is None else [row[:n] for row, n in zip(self.tokens, self.valid, strict=True)]
        )


class DocumentRows(NamedTuple):
    """Whole documents, valid until the next read: 1-D token ids for each of the first rows of a batch.

    ``missing`` is as in `Rows`, and so are ``masks``, one for each document.
    """

    documents: list[NDArray[Any]]
    missing: int = 0
    masks: list[NDArray[np.uint8]] | None = None

    @property
    def filled(self) -> int:
        """How many rows there are."""
        return len(self.documents)

    @property
    def existing(self) -> list[NDArray[Any]]:
        """The tokens of each document."""
        return self.documents

    @classmethod
    def of(cls, documents: list[tuple[NDArray[Any], NDArray[np.uint8] | None]], missing: int = 0) -> DocumentRows:
        """Return the rows of documents, each with its loss mask, None where all of its tokens count."""
        masks = None
        if any(mask is not None for _, mask in documents):
            masks = [np.ones(len(ids), np.uint8) if mask is None else mask for ids, mask in documents]
        return cls([ids for ids, _ in documents], missing, masks)


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

    def rows(self, existing: NDArray[np.int64] | None = None, filled: int | None = None) -> Rows:
        """Return the first ``filled`` rows (None: all), the others are missing; ``existing`` are the `Rows.valid` of these."""
        tokens = self.tokens[:filled]
        ends = None if self.ends is None else self.ends[:filled]
        masks = None if self.masks is None else self.masks[:filled]
        return Rows(tokens, ends, existing, len(self.tokens) - len(tokens), masks)


_NONE = np.zeros(0, np.int64)


R_out = TypeVar("R_out", covariant=True)
R_in = TypeVar("R_in", contravariant=True)


class Reader(Protocol[R_out]):
    """Gives a rank's rows of one step after another, packed (`Rows`) or whole documents (`DocumentRows`).

    An indexed reader finds the rows of any step by arithmetic. A sequential reader goes on from cursors, so it gives the
    rows of a step once, in their order. What drives a reader does not ask which it is.

    ``cursors``: where each lane of a sequential reader stands after the rows that were read last, by the lane's number;
    None of an indexed reader, whose position is the sequence index alone. ``tokens_read``: those of the rows that each source
    gave.
    """

    tokens_read: list[int]

    @property
    def cursors(self) -> dict[str, list[int]] | None: ...

    def read(self, step: RankStep) -> R_out:
        """Return the rows of a step, which are valid until the next call."""

    def stats(self) -> dict[str, Any]:
        """Return ``bytes_read``, and what else this kind of reader counts."""

    def tokens_left(self) -> int:
        """Return how many tokens are known that no row holds yet; 0 of an indexed reader, whose end is known."""

    def refuse_nothing(self) -> None:
        """Raise ``ConfigError`` because the stream ended without a row, and say what became of its documents."""

    def close(self) -> None:
        """Stop threads and give back files."""


class Collator(Protocol[R_in]):
    """Makes a batch of the rows of a step, a pure function of them and of the step's first sequence index ``begin``."""

    def __call__(self, rows: R_in, begin: int) -> Batch:
        """Return the batch, in arrays of its own."""
