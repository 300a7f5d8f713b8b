"""What indexed readers share: the lanes of their sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..windows.lanes import LaneWindows


class IndexedReader:
    """A reader of one source or of several: ``lanes`` of each."""

    cursors: None = None

    def __init__(self, lanes: Sequence[LaneWindows]) -> None:
        self._sources = lanes

    def stats(self) -> dict[str, Any]:
        """Return the bytes read."""
        return {"bytes_read": sum(lanes.windows.bytes_read for lanes in self._sources)}

    def close(self) -> None:
        """Stop threads."""
        for lanes in self._sources:
            lanes.windows.close()
