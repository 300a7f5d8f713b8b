"""Whole documents of one source, by their sequence indices, side by side with others of similar length if asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...weak_methods import weak_lru_cache
from ..batch.rows import DocumentRows, Out
from ..order import Sequences, Step, derive_key
from ..order.buckets import GROUP, arrange
from .core import IndexedReader
from .lookahead import Lookahead
from .token_stream import Piece, TokenStream


class DocumentSequences(IndexedReader):
    """Whole documents, one a sequence, of at most ``max_length`` tokens each."""

    def __init__(self, stream: TokenStream, order: Sequences, *, max_length: int | None = None) -> None:
        super().__init__(stream, order)
        self._max_length = max_length
        self._ahead = Lookahead(order, stream.prepare, stream.window)

    def read(self, step: Step, out: Out | None = None) -> DocumentRows:
        """Return the token ids of a rank's documents of a step."""
        return self._read(self._ahead.pieces(step))

    def _read(self, pieces: list[Piece]) -> DocumentRows:
        count = sum([len(piece.rows) for piece in pieces])
        found: list[NDArray[Any]] = [np.zeros(0, self.stream.dtype)] * count
        masks = [np.zeros(0, np.uint8)] * count if self.stream.masks else None
        for epoch, rows, documents, _ in pieces:
            each, their_masks = self.stream.documents(epoch, documents, self._max_length)
            for number, row in enumerate(rows.tolist()):
                found[row] = each[number]
                if masks is not None and their_masks is not None:
                    masks[row] = their_masks[number]
        return DocumentRows(count, found, masks=masks)


class BucketedDocuments(DocumentSequences):
    """Whole documents, of which ``bucket`` neighbours are of similar length."""

    def __init__(
        self,
        stream: TokenStream,
        order: Sequences,
        *,
        bucket: int,
        seed: int | None,
        max_length: int | None = None,
    ) -> None:
        super().__init__(stream, order, max_length=max_length)
        self._bucket = bucket
        self._seed = seed
        self._group = weak_lru_cache(self._arrange, 2)

    def read(self, step: Step, out: Out | None = None) -> DocumentRows:
        """Return the token ids of a rank's documents of a step."""
        pieces: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for row, i in enumerate(step):
            pieces.setdefault((self.order.epoch(i), i // (GROUP * self._bucket)), []).append((row, i))
        found = []
        for (epoch, group), those in pieces.items():
            first, documents = self._group(epoch, group)
            rows, indices = np.array(those, dtype=object).T
            places = documents[(indices - first).astype(np.int64)]
            found.append(Piece(epoch, rows.astype(np.int64), places, rows.astype(np.int64)))
        return self._read(found)

    def _arrange(self, epoch: int, group: int) -> tuple[int, NDArray[np.int64]]:
        """Return the first sequence index of a group, as much of it as lies in the epoch, and the document of each."""
        begin, size = self.order.first(epoch), GROUP * self._bucket
        first, stop = max(begin, group * size), min(self.order.first(epoch + 1), (group + 1) * size)
        documents, lanes = self.order.places(epoch, np.arange(first - begin, stop - begin))
        # All of the group's windows are needed until it has been read.
        self.stream.prepare([Piece(epoch, lanes, documents, (lanes + begin) % self.order.lanes)])
        lengths = self.stream.lengths(epoch, documents)
        key = None if self._seed is None else derive_key("buckets", self._seed, epoch, group)
        return first, documents[arrange(lengths, first, self._bucket, key)]
