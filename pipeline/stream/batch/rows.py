"""The rows of a step, which a reader returns and a collator makes a batch of, and the protocols of readers and collators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..order import RankStep
from .batch_keys import Batch


class Rows(NamedTuple):
    """The packed rows of a batch, without rows that are missing; valid until the next read.

    - ``tokens``: ``[rows, width]`` in the stored dtype, labels included.
    - ``document_ends``: where documents end in each row, ascending, from 1 to its width; None without boundaries.
    - ``valid``: int64 ``[rows]``, the tokens of each row before the end of a bounded stream; None if no row is cut.
    - ``missing``: the number of rows of the step after the end of the stream, if the end was unknown in advance.
    - ``masks``: uint8 ``[rows, width]``, 0 for tokens that no label counts; None if all count.
    - ``sources``: the number of each row's source.
    - ``source_ids``: int64 ``[rows, width]``, the number of each token's source; None if a row has one source.
    """

    tokens: NDArray[Any]
    document_ends: list[NDArray[np.int64]] | None
    valid: NDArray[np.int64] | None = None
    missing: int = 0
    masks: NDArray[np.uint8] | None = None
    sources: Sequence[int] = ()
    source_ids: NDArray[np.int64] | None = None

    @property
    def filled(self) -> int:
        """The number of rows."""
        return len(self.tokens)

    @property
    def existing(self) -> list[NDArray[Any]]:
        """The existing tokens of each row, labels included."""
        return (
            [*self.tokens] if self.valid is None else [row[:n] for row, n in zip(self.tokens, self.valid, strict=True)]
        )

    def cut(self, begins: list[int], width: int) -> Rows:
        """Return rows of ``width`` tokens: of each row, one from each of ``begins`` on."""

        def parts(values: NDArray[Any]) -> NDArray[Any]:
            return np.stack([values[:, at : at + width] for at in begins], axis=1).reshape(-1, width)

        ends, valid = self.document_ends, self.valid
        if ends is not None:
            spans = ((row, at, row.searchsorted([at, at + width], side="right")) for row in ends for at in begins)
            ends = [row[first:last] - at for row, at, (first, last) in spans]
        return Rows(
            parts(self.tokens),
            ends,
            None if valid is None else (valid[:, None] - begins).clip(0, width).reshape(-1),
            self.missing * len(begins),
            None if self.masks is None else parts(self.masks),
            np.repeat(self.sources, len(begins)).tolist(),
            None if self.source_ids is None else parts(self.source_ids),
        )


class DocumentRows(NamedTuple):
    """The whole documents of a batch, as 1-D token ids; valid until the next read.

    ``missing``, ``masks`` and ``sources`` are as in `Rows`, with one mask for each document.
    """

    documents: list[NDArray[Any]]
    missing: int = 0
    masks: list[NDArray[np.uint8]] | None = None
    sources: Sequence[int] = ()

    @property
    def filled(self) -> int:
        """The number of rows."""
        return len(self.documents)

    @property
    def existing(self) -> list[NDArray[Any]]:
        """The tokens of each document."""
        return self.documents

    @classmethod
    def of(
        cls,
        documents: list[tuple[NDArray[Any], NDArray[np.uint8] | None]],
        missing: int = 0,
        sources: Sequence[int] = (),
    ) -> DocumentRows:
        """Return the rows of documents, each with its loss mask (None: all tokens count)."""
        masks = None
        if any(mask is not None for _, mask in documents):
            masks = [np.ones(len(ids), np.uint8) if mask is None else mask for ids, mask in documents]
        return cls([ids for ids, _ in documents], missing, masks, sources)


R_out = TypeVar("R_out", covariant=True)
R_in = TypeVar("R_in", contravariant=True)


class Reader(Protocol[R_out]):
    """Reads a rank's rows, step by step: packed (`Rows`) or whole documents (`DocumentRows`).

    An indexed reader computes the rows of any step. A sequential reader continues from cursors, so it reads each step once, in
    order. Callers need not know which kind it is.

    ``cursors`` are those of the lanes of a sequential reader after the last rows read, by lane number; None for an indexed
    reader, whose position is the sequence index alone. ``tokens_read`` counts the tokens of the rows of each source.
    """

    tokens_read: list[int]

    @property
    def cursors(self) -> dict[str, list[int]] | None: ...

    def read(self, step: RankStep) -> R_out:
        """Return the rows of a step, which are valid until the next call."""

    def stats(self) -> dict[str, Any]:
        """Return ``bytes_read``, and for a sequential reader the counts of documents."""

    def tokens_left(self) -> int:
        """Return how many tokens in memory were in no row yet; 0 for an indexed reader, whose end is known."""

    def refuse_nothing(self) -> None:
        """Raise ``ConfigError`` for a stream that ended without a row, with the counts of its documents."""

    def close(self) -> None:
        """Stop threads and close files."""


class Collator(Protocol[R_in]):
    """Makes a batch from the rows of a step: a pure function of the rows and of ``begin``, the step's first sequence index."""

    def __call__(self, rows: R_in, begin: int) -> Batch:
        """Return the batch, in arrays of its own."""
