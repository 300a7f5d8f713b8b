"""What global sequence ``i`` holds: the random-access core that every stage draws from.

A core offers ``length`` (how many sequences there are, None for endless), ``first(epoch)`` and ``epoch(i)``, and the
contents of any arithmetic progression of global sequences, for the collator of its kind. It remembers nothing that
matters: what it caches can be made again from the number alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .order import Sequences
from .windows import TokenStream

# Rows that a lane reads at once: enough to amortise the cost of a read, few enough for all lanes to fit the cache.
READ_AHEAD = 32
READ_AHEAD_TOKENS = 1 << 17


@dataclass(frozen=True, slots=True)
class Rows:
    """Neighbouring rows of a batch, as a view of the stored tokens.

    ``at``: their place in the batch; ``tokens``: ``[rows, width]``, valid until the next call; ``ends``: for each row
    where documents end in it, ascending, ``offset`` more than their place from 1 to ``width`` (an empty list unless
    boundaries were asked for); ``available``: tokens before the end of a bounded stream, or None where none is short.
    """

    at: slice
    tokens: NDArray[Any]
    ends: list[NDArray[np.int64]]
    offset: int
    available: list[int] | None


class Core(Protocol):
    """Random access to global sequences, of which a bounded stream has ``length``."""

    length: int | None

    def first(self, epoch: int) -> int:
        """Return the global sequence that begins ``epoch``."""

    def epoch(self, i: int) -> int:
        """Return the epoch in which global sequence ``i`` begins."""

    @property
    def bytes_read(self) -> int:
        """Bytes copied out of shards so far."""

    def close(self) -> None:
        """Let go of threads."""


class PackedSequences:
    """Sequences of ``seq_len`` tokens, ``stride`` apart, with ``extra`` more tokens for the labels.

    ``dense`` says that the caller will draw all sequences of its lanes in order, so that reading ahead pays;
    ``boundaries`` that rows are to say where documents end.
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
        dense: bool,
        boundaries: bool,
    ) -> None:
        self.stream = stream
        self.stride = stride
        self.width = seq_len + extra
        self.order = Sequences(stream.tokens_per_epoch, stride, lanes)
        self.total = None if epochs is None else epochs * stream.tokens_per_epoch
        self.length = None if epochs is None else self.order.first(epochs)
        self._boundaries = boundaries
        self._rows_ahead = 1 if dense else 0
        self._block = _Block(np.empty((0, 0), stream.dtype), -1, 0, 0, 0, 1, np.empty((2, 0)))

    def first(self, epoch: int) -> int:
        return self.order.first(epoch)

    def epoch(self, i: int) -> int:
        return self.order.epoch(i)

    @property
    def bytes_read(self) -> int:
        return self.stream.bytes_read

    def rows(self, numbers: range) -> Iterator[Rows]:
        """Yield the tokens of global sequences ``numbers``, a range with a positive step."""
        if numbers:
            yield from self._ahead_rows(numbers) if self._rows_ahead else self._single_rows(numbers)

    def _single_rows(self, numbers: range) -> Iterator[Rows]:
        tokens = np.empty((len(numbers), self.width), self.stream.dtype)
        places = [self.order.locate(i)[1] for i in numbers]
        ends = []
        for row, n in zip(tokens, places, strict=True):
            found: list[NDArray[np.int64]] | None = [] if self._boundaries else None
            self.stream.read(n * self.stride, row, found)
            ends += _joined(found)
        yield Rows(slice(0, len(numbers)), tokens, ends, 0, self._available(places))

    def _ahead_rows(self, numbers: range) -> Iterator[Rows]:
        done, lanes, step = 0, self.order.lanes, numbers.step
        while done < len(numbers):
            epoch = self.order.epoch(numbers[done])
            first = self.order.first(epoch)
            row, lane = divmod(numbers[done] - first, lanes)
            block = self._block
            if not block.serves(epoch, row, lane % step, step):
                block = self._next_block(epoch, row, lane % step, step)
            index = lane // step
            with_row = min(self.order.first(epoch + 1) - first - row * lanes, lanes)
            count = min(len(numbers) - done, len(range(lane, with_row, step)))
            for j in range(index, index + count):
                if block.starts[j] is None:
                    self._fill(block, j, row)
            offset = (row - block.row) * self.stride
            view = block.tokens[index : index + count, offset : offset + self.width]
            ends = [block.ends[j][row - block.row] for j in range(index, index + count)] if self._boundaries else []
            available = None
            if self.total is not None:
                available = self._available([block.starts[j] + row for j in range(index, index + count)])
            yield Rows(slice(done, done + count), view, ends, offset, available)
            done += count

    def _next_block(self, epoch: int, row: int, lane: int, step: int) -> _Block:
        """Begin a block of rows, twice as many as the last one had, up to a bound; lanes fill when they are asked for."""
        share = -(-(self.order.first(epoch + 1) - self.order.first(epoch)) // self.order.lanes)
        rows = max(1, min(self._rows_ahead, share - row))
        self._rows_ahead = min(READ_AHEAD, max(1, READ_AHEAD_TOKENS // self.stride), 2 * self._rows_ahead)
        shape = (len(range(lane, self.order.lanes, step)), (rows - 1) * self.stride + self.width)
        old = self._block.tokens
        tokens = old if old.shape == shape else np.empty(shape, old.dtype)
        offsets = np.arange(rows) * self.stride
        # Among integers, what is above x is what is not below x + 1.
        self._block = _Block(tokens, epoch, row, rows, lane, step, np.stack([offsets, offsets + self.width]) + 1)
        return self._block

    def _fill(self, block: _Block, j: int, row: int) -> None:
        """Read the block's rows from ``row`` on of its lane ``j``."""
        start = self.order.lane_start(block.epoch, block.lane + j * block.step)
        skipped = (row - block.row) * self.stride
        out = block.tokens[j, skipped:]
        found: list[NDArray[np.int64]] | None = [] if self._boundaries else None
        self.stream.read((start + row) * self.stride, out, found)
        block.starts[j] = start
        for ends in _joined(found):
            ends = ends + skipped if skipped else ends
            begins, stops = ends.searchsorted(block.cuts).tolist()
            block.ends[j] = [ends[begin:stop] for begin, stop in zip(begins, stops, strict=True)]

    def _available(self, places: list[int]) -> list[int] | None:
        if self.total is None or max(places) * self.stride + self.width <= self.total:
            return None
        return [max(0, min(self.width, self.total - n * self.stride)) for n in places]

    def close(self) -> None:
        self.stream.close()


def _joined(found: list[NDArray[np.int64]] | None) -> list[NDArray[np.int64]]:
    """Return the one list of document ends of a read, or none where nobody asked."""
    if found is None:
        return []
    return found if len(found) == 1 else [np.concatenate(found)]


@dataclass(slots=True)
class _Block:
    """Rows ``row`` to ``row + rows`` of every ``step``-th lane from ``lane``, cut at ``cuts`` (``[2, rows]``).

    ``starts`` holds each lane's row 0 once it is filled, ``ends`` where documents end in each of its rows, counted from
    the block's first token.
    """

    tokens: NDArray[Any]
    epoch: int
    row: int
    rows: int
    lane: int
    step: int
    cuts: NDArray[Any]
    starts: list[Any] = field(init=False)
    ends: list[list[NDArray[np.int64]]] = field(init=False)

    def __post_init__(self) -> None:
        self.starts = [None] * len(self.tokens)
        self.ends = [[]] * len(self.tokens)

    def serves(self, epoch: int, row: int, lane: int, step: int) -> bool:
        same = (self.epoch, self.lane, self.step) == (epoch, lane, step)
        return same and self.row <= row < self.row + self.rows


class DocumentSequences:
    """Whole documents, one a sequence, in the same order with documents for tokens and a stride of 1."""

    def __init__(self, stream: TokenStream, *, lanes: int, epochs: int | None) -> None:
        self.stream = stream
        self.order = Sequences(stream.documents_per_epoch, 1, lanes)
        self.length = None if epochs is None else self.order.first(epochs)

    def first(self, epoch: int) -> int:
        return self.order.first(epoch)

    def epoch(self, i: int) -> int:
        return self.order.epoch(i)

    @property
    def bytes_read(self) -> int:
        return self.stream.bytes_read

    def documents(self, numbers: range) -> list[NDArray[Any]]:
        """Return the token ids of documents ``numbers`` of the global order, as read-only views."""
        return [self.stream.documents(self.order.locate(i)[1], 1)[0] for i in numbers]

    def close(self) -> None:
        self.stream.close()
