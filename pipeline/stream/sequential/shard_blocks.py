"""Documents of shards for lanes with a cursor: each lane reads a part of its own of every epoch's shuffled documents.

The documents of an epoch in their order (that of the indexed readers, with the lanes in force) are cut into equal parts, one
for each lane. A lane takes its part in chunks of about equal size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ..windows.epoch import EpochDocuments
from .cursor import Chunk, Place

Predicate = Callable[[Any], Any]


class ShardWindows:
    """Chunks of about ``documents`` documents: lane ``l`` of ``lanes`` has the documents from ``l * D // lanes`` on, of ``D``."""

    def __init__(
        self, stream: EpochDocuments, *, lanes: int, documents: int, filters: tuple[Predicate, ...], epochs: int | None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._stream = stream
        self._lanes = lanes
        self._documents = documents
        self._filters = filters
        self._epochs = epochs

    @property
    def bytes_read(self) -> int:
        """Bytes of documents read so far."""
        return self._stream.windows.bytes_read

    def window(self, lane: int, place: Place) -> ShardWindow | None:
        """Return the chunk of ``lane`` at ``place``, or None behind the last epoch."""
        epoch, _, number = place
        if self._epochs is not None and epoch >= self._epochs:
            return None
        total = self._stream.documents
        begin, end = (total * n // self._lanes for n in (lane, lane + 1))
        chunks = max(1, (2 * (end - begin) + self._documents) // (2 * self._documents))
        first, stop = (begin + (end - begin) * min(n, chunks) // chunks for n in (number, number + 1))
        following = (epoch + 1, 0, 0) if number + 1 >= chunks else (epoch, 0, number + 1)
        return ShardWindow(self._stream, place, following, first, stop - first, self._filters, self.counts)

    def close(self) -> None:
        """Stop threads and give back files."""
        self._stream.windows.close()


class ShardWindow:
    """A chunk of documents, read whole when it is taken from."""

    def __init__(
        self,
        stream: EpochDocuments,
        place: Place,
        following: Place,
        first: int,
        count: int,
        filters: tuple[Predicate, ...],
        counts: Counter[str],
    ) -> None:
        self.place = place
        self.following = following
        self._stream = stream
        self._first = first
        self._count = count
        self._filters = filters
        self._counts = counts

    def __len__(self) -> int:
        return self._count

    def take(self, index: int, tokens: int | None) -> Chunk:
        """Return all documents from ``index`` on that pass the filters."""
        ids, lengths = self._stream.joined(self.place[0], self._first + index, self._first + self._count)
        numbers, self._counts["documents"] = np.arange(index, self._count), self._counts["documents"] + len(lengths)
        if self._filters:
            stops = np.cumsum(lengths).tolist()
            documents = (ids[begin:stop] for begin, stop in zip([0, *stops], stops, strict=False))
            kept = np.array([all(predicate(each) for predicate in self._filters) for each in documents], bool)
            self._counts["rejected"] += int(np.count_nonzero(~kept))
            ids, lengths, numbers = ids[np.repeat(kept, lengths)], lengths[kept], numbers[kept]
        return Chunk(ids, lengths, numbers.tolist(), self._count)
