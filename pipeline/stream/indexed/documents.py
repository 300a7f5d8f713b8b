"""Whole documents, by their sequence indices, side by side with others of similar length if asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...weak_methods import weak_lru_cache
from ..batch.rows import DocumentRows
from ..order import RankStep, derive_key
from ..order.buckets import GROUP, arrange
from ..order.mixture import Mixture
from ..windows.indexed_lanes import IndexedLanes, WindowOffset
from ..windows.mapped import DocumentMaps
from .core import IndexedReader, Location

Int = NDArray[np.int64]


class DocumentSequences(IndexedReader):
    """Whole documents, one a sequence, as ``maps`` change them."""

    def __init__(
        self, lanes: Sequence[IndexedLanes], *, maps: DocumentMaps | None = None, mixture: Mixture | None = None
    ) -> None:
        super().__init__(lanes, mixture)
        self._maps = maps

    def read(self, step: RankStep) -> DocumentRows:
        """Return the token ids of a rank's documents of a step."""
        indices = step.indices()
        locations: dict[int, WindowOffset] = {}
        for source, rows, in_source, positions in self._served(indices):
            locations.update(zip(rows, self._sources[source].locations(in_source, positions), strict=True))
        return self._documents([locations[row] for row in range(len(indices))])

    def _documents(self, locations: list[WindowOffset]) -> DocumentRows:
        documents = [window.document(number) for window, number in locations]
        self._sources[0].windows.bytes_read += sum([document.nbytes for document in documents])
        if self._maps is None:
            return DocumentRows(documents)
        return DocumentRows.of([self._maps.document(document) for document in documents])


class BucketedDocuments(DocumentSequences):
    """Whole documents, of which ``bucket`` neighbours are of similar length."""

    def __init__(self, lanes: IndexedLanes, *, maps: DocumentMaps | None, bucket: int, seed: int | None) -> None:
        super().__init__([lanes], maps=maps)
        self.lanes = lanes
        self._bucket = bucket
        self._seed = seed
        self._group = weak_lru_cache(self._arrange, 2)

    def read(self, step: RankStep) -> DocumentRows:
        """Return the token ids of a rank's documents of a step."""
        return self._documents([self.lanes.location(position) for position in self._positions(step.indices())])

    def locate(self, indices: Int) -> list[Location]:
        """Return which documents sequences are."""
        return [Location(self.lanes, position, 1) for position in self._positions(indices)]

    def _positions(self, indices: Int) -> list[int]:
        positions = []
        for index in indices.tolist():
            first, arranged = self._group(self.lanes.sequences.epoch(index), index // (GROUP * self._bucket))
            positions.append(int(arranged[index - first]))
        return positions

    def _arrange(self, epoch: int, group: int) -> tuple[int, Int]:
        """Return the first sequence index of a group, as much of it as lies in the epoch, and the position of each."""
        order, size = self.lanes.sequences, GROUP * self._bucket
        first, stop = max(order.first(epoch), group * size), min(order.first(epoch + 1), (group + 1) * size)
        indices = np.arange(first, stop)
        positions = self.lanes.positions(indices)
        # All windows of the group are needed until it has been read.
        self.lanes.prepare(zip((indices % order.lanes).tolist(), positions.tolist(), strict=True))
        locations = [self.lanes.location(position) for position in positions.tolist()]
        lengths = np.array([window.ends[number + 1] - window.ends[number] for window, number in locations])
        key = None if self._seed is None else derive_key("buckets", self._seed, epoch, group)
        return first, positions[arrange(lengths, first, self._bucket, key)]
