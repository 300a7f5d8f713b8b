"""What the readers of one indexed source share: its windows, the order of its sequences, its counts."""

from __future__ import annotations

from typing import Any

from ..windows.lanes import LaneWindows


class IndexedReader:
    """A reader of one source: where its lanes find their sequences."""

    alignment = 1
    cursors: None = None

    def __init__(self, lanes: LaneWindows) -> None:
        self.lanes = lanes
        self.order = lanes.sequences
        self.rank_period = self.order.lanes

    def stats(self, sequence_index: int) -> dict[str, Any]:
        """Return the bytes read, and the epoch in which a sequence begins."""
        return {"bytes_read": self.lanes.windows.bytes_read, "epoch": self.order.epoch(sequence_index)}

    def close(self) -> None:
        """Stop threads and close files."""
        self.lanes.windows.close()
