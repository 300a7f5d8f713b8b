"""What indexed readers share: the lanes of their sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..order.mixture import Mixture
from ..windows.lanes import LaneWindows


class IndexedReader:
    """A reader of one source, or of several, of which ``mixture`` says which serves a sequence: ``lanes`` of each."""

    alignment = 1
    cursors: None = None

    def __init__(self, lanes: Sequence[LaneWindows], mixture: Mixture | None = None) -> None:
        self.lanes = lanes[0]
        self.mixture = mixture
        self.rank_period = lanes[0].sequences.lanes
        self._sources = lanes

    def stats(self) -> dict[str, Any]:
        """Return the bytes read."""
        return {"bytes_read": sum(lanes.windows.bytes_read for lanes in self._sources)}

    def close(self) -> None:
        """Stop threads."""
        for lanes in self._sources:
            lanes.windows.close()
