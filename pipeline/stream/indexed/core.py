"""What indexed readers share: the lanes of their sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..windows.indexed_lanes import IndexedLanes


class Location(NamedTuple):
    """Where a sequence begins: a ``position`` of the ``lanes`` of a source, and how many units from there on exist."""

    lanes: IndexedLanes
    position: int
    units: int


class IndexedReader:
    """A reader of one source or of several: ``lanes`` of each."""

    cursors: None = None

    def __init__(self, lanes: Sequence[IndexedLanes]) -> None:
        self._sources = lanes

    def locate(self, indices: NDArray[np.int64]) -> list[Location]:
        """Return where sequences begin."""
        raise NotImplementedError

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
