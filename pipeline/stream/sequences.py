"""What global sequence ``i`` holds: the random-access core that every stage draws from.

A core offers ``first(epoch)`` and ``epoch(i)``, and the contents of any arithmetic progression of global sequences, for
the collator of its kind. It remembers nothing that matters: what it caches can be made again from the number alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .order import Sequences
from .rows import RowBuffer, Rows
from .windows import TokenStream

PLACES_AHEAD = 2048  # sequences whose places are found in one array operation


@dataclass(frozen=True, slots=True)
class _Places:
    """Where global sequences ``numbers`` begin: ``tokens`` of their ``epoch``, and the lanes that read them (int64)."""

    epoch: int
    numbers: range
    tokens: NDArray[np.int64]
    lanes: NDArray[np.int64]


class Core(Protocol):
    """Random access to global sequences, endlessly."""

    def first(self, epoch: int) -> int:
        """Return the global sequence that begins ``epoch``."""

    def epoch(self, i: int) -> int:
        """Return the epoch in which global sequence ``i`` begins."""

    @property
    def bytes_read(self) -> int:
        """Bytes copied out of shards so far."""

    def close(self) -> None:
        """Let go of threads."""


class Ordered:
    """The core of one source: its tokens, and the order of its sequences."""

    def __init__(self, stream: TokenStream, order: Sequences) -> None:
        self.stream = stream
        self.order = order

    def first(self, epoch: int) -> int:
        return self.order.first(epoch)

    def epoch(self, i: int) -> int:
        return self.order.epoch(i)

    @property
    def bytes_read(self) -> int:
        return self.stream.bytes_read

    def close(self) -> None:
        self.stream.close()


class PackedSequences(Ordered):
    """Sequences of ``seq_len`` tokens, ``stride`` apart, with ``extra`` more tokens for the labels.

    ``epochs`` says after how many the last sequences are cut (None: nowhere), ``boundaries`` that rows say where
    documents end.
    """

    def __init__(
        self,
        stream: TokenStream,
        *,
        seq_len: int,
        stride: int,
        extra: int,
        lanes: int,
        epochs: int | None,
        boundaries: bool,
    ) -> None:
        super().__init__(stream, Sequences(stream.tokens_per_epoch, stride, lanes))
        self.width = seq_len + extra
        self.total = None if epochs is None else epochs * stream.tokens_per_epoch
        self.buffer = RowBuffer(self.width, stream.dtype, boundaries)
        self._hints = np.zeros(lanes, np.int64)  # the document where each lane was last
        self._places = _Places(0, range(0), np.zeros(0, np.int64), np.zeros(0, np.int64))

    def rows(self, numbers: range) -> Iterator[Rows]:
        """Yield the tokens of global sequences ``numbers``, a range with a positive step."""
        done, buffer = 0, self.buffer
        buffer.clear(len(numbers))
        while done < len(numbers):
            places, i = self._places, numbers[done]
            if i not in places.numbers or places.numbers.step != numbers.step:
                places = self._locate(numbers[done:])
            at = places.numbers.index(i)
            count = min(len(numbers) - done, len(places.numbers) - at)
            tokens, lanes = places.tokens[at : at + count], places.lanes[at : at + count]
            rows = slice(done, done + count)
            self.stream.fill(buffer, buffer.all_rows[rows], places.epoch, tokens, lanes, self._hints)
            yield buffer.rows(rows, self._available(places.epoch, tokens))
            done += count

    def _locate(self, numbers: range) -> _Places:
        """Find the places of global sequences ``numbers`` and of more behind them, as far as their epoch goes."""
        epoch = self.order.epoch(numbers.start)
        first, after = self.order.first(epoch), self.order.first(epoch + 1)
        count = max(len(numbers), PLACES_AHEAD)
        ahead = range(numbers.start, min(numbers.start + count * numbers.step, after), numbers.step)
        inside = np.arange(ahead.start - first, ahead.stop - first, ahead.step)
        self._places = _Places(epoch, ahead, *self.order.places(epoch, inside))
        return self._places

    def _available(self, epoch: int, tokens: NDArray[np.int64]) -> list[int] | None:
        if self.total is None:
            return None
        left = np.minimum(self.total - epoch * self.stream.tokens_per_epoch - tokens, self.width)
        return left.clip(0).tolist() if int(left.min()) < self.width else None


class DocumentSequences(Ordered):
    """Whole documents, one a sequence, in the same order with documents for tokens and a stride of 1."""

    def __init__(self, stream: TokenStream, *, lanes: int) -> None:
        super().__init__(stream, Sequences(stream.documents_per_epoch, 1, lanes))

    def documents(self, numbers: range) -> list[NDArray[Any]]:
        """Return the token ids of documents ``numbers`` of the global order, as read-only views."""
        found: list[NDArray[Any]] = []
        while len(found) < len(numbers):
            epoch = self.order.epoch(numbers[len(found)])
            first, after = self.order.first(epoch), self.order.first(epoch + 1)
            left = range(numbers[len(found)] - first, min(numbers.stop, after) - first, numbers.step)
            found += self._inside(epoch, np.arange(left.start, left.stop, left.step))
        return found

    def _inside(self, epoch: int, inside: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Return the documents ``inside`` places behind the first of an epoch, in global order."""
        return self.stream.documents_at(epoch, self.order.places(epoch, inside)[0])
