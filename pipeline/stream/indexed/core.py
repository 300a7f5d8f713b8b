"""What the readers of one indexed source share: its token stream, the order of its sequences, its counts."""

from __future__ import annotations

from typing import Any

from ..order import Sequences
from .token_stream import TokenStream


class IndexedReader:
    """A reader of one source: its tokens, the order of its sequences."""

    alignment = 1
    cursors: None = None

    def __init__(self, stream: TokenStream, order: Sequences) -> None:
        self.stream = stream
        self.order = order
        self.rank_period = order.lanes

    def stats(self, sequence_index: int) -> dict[str, Any]:
        """Return the bytes read, and the epoch in which a sequence begins."""
        return {"bytes_read": self.stream.bytes_read, "epoch": self.order.epoch(sequence_index)}

    def close(self) -> None:
        """Stop threads and give back files."""
        self.stream.close()
