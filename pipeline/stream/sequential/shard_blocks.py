"""Documents of shards for lanes with a cursor: blocks of each epoch's shuffled documents, dealt to lanes in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ..indexed.token_stream import TokenStream
from .cursor import Chunk, Place

Predicate = Callable[[Any], Any]


class ShardWindows:
    """Blocks of ``documents`` documents of an endless stream: block ``n * lanes + lane`` of an epoch is a lane's n-th."""

    def __init__(
        self, stream: TokenStream, *, lanes: int, documents: int, filters: tuple[Predicate, ...], epochs: int | None
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
        return self._stream.bytes_read

    def window(self, lane: int, place: Place) -> ShardWindow | None:
        """Return the block of ``lane`` at ``place``, or None behind the last epoch; behind an epoch's last, none of it."""
        epoch, _, number = place
        if self._epochs is not None and epoch >= self._epochs:
            return None
        total = self._stream.documents_per_epoch
        first = (number * self._lanes + lane) * self._documents
        count = max(0, min(self._documents, total - first))
        last = first + self._lanes * self._documents >= total
        following = (epoch + 1, 0, 0) if last else (epoch, 0, number + 1)
        return ShardWindow(self._stream, place, following, first, count, self._filters, self.counts)

    def close(self) -> None:
        """Let go of threads."""
        self._stream.close()


class ShardWindow:
    """A block of documents, read whole when it is taken from."""

    def __init__(
        self,
        stream: TokenStream,
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
        ids, lengths = self._stream.joined(self.place[0], np.arange(self._first + index, self._first + self._count))
        numbers, self._counts["documents"] = np.arange(index, self._count), self._counts["documents"] + len(lengths)
        if self._filters:
            stops = np.cumsum(lengths).tolist()
            documents = (ids[begin:stop] for begin, stop in zip([0, *stops], stops, strict=False))
            kept = np.array([all(predicate(each) for predicate in self._filters) for each in documents], bool)
            self._counts["rejected"] += int(np.count_nonzero(~kept))
            ids, lengths, numbers = ids[np.repeat(kept, lengths)], lengths[kept], numbers[kept]
        return Chunk(ids, lengths, numbers.tolist(), self._count)
