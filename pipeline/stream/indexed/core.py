"""What indexed readers share: the lanes of their sources, and which source serves which row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..order.mixture import Mixture
from ..windows.indexed_lanes import IndexedLanes

Int = NDArray[np.int64]


class Location(NamedTuple):
    """Where a sequence begins: a ``position`` of the ``lanes`` of a source, and how many units from there on exist."""

    lanes: IndexedLanes
    position: int
    units: int


class ServedRows(NamedTuple):
    """The rows of a batch that one ``source`` serves: their indices in its own stream, and the positions of these."""

    source: int
    rows: list[int]
    indices: Int
    positions: Int


class IndexedReader:
    """A reader of one source, or of several of which ``mixture`` says which serves a sequence: ``lanes`` of each."""

    cursors: None = None

    def __init__(self, lanes: Sequence[IndexedLanes], mixture: Mixture | None = None) -> None:
        self._sources = lanes
        self._mixture = mixture

    def locate(self, indices: Int) -> list[Location]:
        """Return where sequences begin: of each the lanes of its source, and the position there."""
        located: dict[int, Location] = {}
        for source, rows, _, positions in self._served(indices):
            for row, position in zip(rows, positions.tolist(), strict=True):
                located[row] = Location(self._sources[source], position, self._existing(source, position))
        return [located[row] for row in range(len(indices))]

    def _existing(self, source: int, position: int) -> int:
        """Return how many units of a row exist from a position on."""
        return 1

    def _served(self, indices: Int) -> list[ServedRows]:
        """Return which rows each source serves."""
        if self._mixture is None:
            return [ServedRows(0, list(range(len(indices))), indices, self._sources[0].positions(indices))]
        served: dict[int, tuple[list[int], list[int]]] = {}
        for row, index in enumerate(indices.tolist()):
            lane_row, lane = divmod(index, self._mixture.lanes)
            source, draw = self._mixture.source(lane_row, lane)
            rows, in_source = served.setdefault(source, ([], []))
            rows.append(row)
            in_source.append(draw * self._mixture.lanes + lane)
        found = []
        for source, (rows, in_source) in served.items():
            of_source = np.array(in_source, np.int64)
            found.append(ServedRows(source, rows, of_source, self._sources[source].positions(of_source)))
        for source, _, *where in found:  # windows of all sources are read side by side
            self._sources[source].request(*where)
        return found

    def source_of(self, lanes: IndexedLanes) -> int:
        """Return the number of the source that lanes belong to."""
        return [item is lanes for item in self._sources].index(True)

    def stats(self) -> dict[str, Any]:
        """Return the bytes read."""
        return {"bytes_read": sum(lanes.windows.bytes_read for lanes in self._sources)}

    def tokens_left(self) -> int:
        return 0

    def close(self) -> None:
        """Stop threads."""
        for lanes in self._sources:
            lanes.windows.close()
