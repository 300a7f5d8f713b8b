"""What a reader of an indexed stream offers to the loop: random access to sequence indices."""

from __future__ import annotations

from typing import Protocol

from ..order import Sequences
from .token_stream import TokenStream


class Core(Protocol):
    """Random access to sequences, endlessly, read by ``lanes``."""

    lanes: int

    def first(self, epoch: int) -> int:
        """Return the sequence index that begins ``epoch``."""

    def epoch(self, i: int) -> int:
        """Return the epoch in which sequence index ``i`` begins."""

    @property
    def bytes_read(self) -> int:
        """Bytes copied out of shards so far."""

    def close(self) -> None:
        """Stop threads."""


class Ordered:
    """The core of one source: its tokens, the order of its sequences."""

    def __init__(self, stream: TokenStream, order: Sequences) -> None:
        self.stream = stream
        self.order = order
        self.lanes = order.lanes

    def first(self, epoch: int) -> int:
        return self.order.first(epoch)

    def epoch(self, i: int) -> int:
        return self.order.epoch(i)

    @property
    def bytes_read(self) -> int:
        return self.stream.bytes_read

    def close(self) -> None:
        self.stream.close()
