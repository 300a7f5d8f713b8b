"""Rows of a step, between the reader that reads them and the collator that makes a batch of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WIDENED = (np.dtype("<u2"), np.dtype("<u4"))  # what compiled loops make int64 of


class Ends(NamedTuple):
    """Where documents end in rows: those of row ``r``, ascending, from 1 to its width, are ``places[slice(*spans[r])]``.

    ``places`` and ``spans`` (``[rows, 2]``) are int64.

    >>> Ends.of([np.array([2, 5]), np.array([4])]).spans.tolist()
    [[0, 2], [2, 3]]
    """

    places: NDArray[np.int64]
    spans: NDArray[np.int64]

    @classmethod
    def of(cls, rows: list[NDArray[np.int64]]) -> Ends:
        """Join the places of each row."""
        stops = np.cumsum([0, *map(len, rows)])
        return cls(np.concatenate([np.zeros(0, np.int64), *rows]), np.stack([stops[:-1], stops[1:]], axis=1))


class Out(NamedTuple):
    """The arrays of a batch that rows may be written to directly, which saves copying them there.

    ``ids`` and ``labels`` are ``[rows, seq_len]``, in the dtype of the stored tokens or int64; labels lie ``lag`` tokens
    ahead.
    """

    ids: NDArray[Any]
    labels: NDArray[Any]
    lag: int


class Rows(NamedTuple):
    """Packed rows, valid until the next read: the first ``filled`` rows of a batch.

    ``tokens``: ``[filled, width]``, labels included, as they are stored, or None where they were written to the batch
    directly. ``document_ends``: None unless boundaries were asked for. ``valid``: int64 ``[filled]``, the tokens of each
    row before the end of a bounded stream, or None where none is cut. ``missing``: rows that were asked for but lie behind
    the end of a stream whose end was unknown in advance. ``masks``: uint8 ``[filled, width]``, 0 for tokens that no label
    counts, or None where all count.
    """

    filled: int
    tokens: NDArray[Any] | None
    document_ends: Ends | None
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
    """Rows of ``width`` tokens to be filled, in any order, again and again.

    ``with_ends`` also where documents end, ``with_masks`` also loss masks, which `put` gives.

    ``bytes`` and ``late_bytes`` are what is written, ``wide`` bytes a token: rows of tokens, or the ids and labels of an
    `Out`.
    """

    def __init__(self, width: int, dtype: np.dtype[Any], with_ends: bool, with_masks: bool = False) -> None:
        self.width = width
        self.lag, self.wide = 0, dtype.itemsize
        self._tokens: NDArray[Any] = np.empty((0, width), dtype)
        self._out: Out | None = None
        self.bytes = self.late_bytes = self._tokens.view(np.uint8)
        self.places = np.empty(0, np.int64)
        self.spans = np.empty((0, 2), np.int64)
        # How many places are taken.
        self.notes = np.zeros(1, np.int64)
        self._widens = dtype in WIDENED
        self._with_ends = with_ends
        self._masks = np.empty((0, width), np.uint8) if with_masks else None

    def rows(self, count: int, out: Out | None = None) -> Rows:
        """Return ``count`` rows that are still to be filled, in ``out`` if that is given and takes tokens of this dtype."""
        tokens = None
        if out is not None and (self._widens or out.ids.itemsize == self._tokens.itemsize):
            self._out, self.lag = out, out.lag
            self.bytes, self.late_bytes = out.ids.view(np.uint8), out.labels.view(np.uint8)
            self.width, self.wide = out.ids.shape[1] + out.lag, out.ids.itemsize
        else:
            if len(self._tokens) < count:
                self._tokens = np.empty((count, self.width), self._tokens.dtype)
                self.bytes = self._tokens.view(np.uint8)
            tokens = self._tokens[:count]
        if len(self.spans) < count:
            self.spans = np.empty((count, 2), np.int64)
        if self._with_ends and len(self.places) < count * self.width:
            self.places = np.empty(count * self.width, np.int64)
        self.notes[0] = 0
        if self._masks is not None:
            self._masks = np.empty((count, self.width), np.uint8)
        ends = Ends(self.places, self.spans[:count]) if self._with_ends else None
        return Rows(count, tokens, ends, masks=self._masks)

    def put(
        self, row: int, tokens: NDArray[Any], ends: NDArray[np.int64], mask: NDArray[np.uint8] | None = None
    ) -> None:
        """Fill a row with tokens that were read otherwise, and say where documents end in it."""
        if self._masks is not None and mask is not None:
            self._masks[row] = mask
        if self._out is None:
            self._tokens[row] = tokens
        else:
            self._out.ids[row] = tokens[: self._out.ids.shape[1]]
            self._out.labels[row] = tokens[self.lag :]
        begin = int(self.notes[0])
        stop = begin + len(ends)
        self.places[begin:stop] = ends
        self.spans[row] = begin, stop
        self.notes[0] = stop
