"""What indexed readers share: the lanes of their sources, and what they count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..order import Sequences
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

    def stats(self, sequence_index: int) -> dict[str, Any]:
        """Return the bytes read, and what `indexed_stats` counts."""
        orders = [lanes.sequences for lanes in self._sources]
        stats = indexed_stats(orders, self.mixture, sequence_index)
        return {"bytes_read": sum(lanes.windows.bytes_read for lanes in self._sources), **stats}

    def close(self) -> None:
        """Stop threads."""
        for lanes in self._sources:
            lanes.windows.close()


def indexed_stats(orders: Sequence[Sequences], mixture: Mixture | None, sequence_index: int) -> dict[str, Any]:
    """Return the epoch in which a sequence begins; of a mix, that of the source that is least far, and what each served."""
    if mixture is None:
        return {"epoch": orders[0].epoch(sequence_index)}
    sources = {
        name: {**share, "epoch": order.epoch(share["sequences"])}
        for (name, share), order in zip(mixture.shares(sequence_index).items(), orders, strict=True)
    }
    return {"epoch": min(source["epoch"] for source in sources.values()), "sources": sources}
