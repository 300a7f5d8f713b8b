"""What global sequence ``i`` holds: the random-access core that every stage draws from.

A core offers ``length`` (how many sequences there are, None for endless), ``shape()`` (what its order depends on, for
the state) and ``rows(numbers)`` (the contents of an arithmetic progression of global sequences). It remembers nothing
that matters: what it caches can be made again from the number alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .order import Sequences
from .windows import TokenStream

READ_AHEAD = 16  # rows a lane reads at once: enough to amortise the Python cost, small enough for the cache


@dataclass(frozen=True, slots=True)
class Rows:
    """Neighbouring rows of a batch, as a view of the stored tokens.

    ``at``: their place in the batch; ``tokens``: ``[rows, width]``, valid until the next call; ``numbers``: the stream
    sequences (packs) or documents they are; ``available``: tokens before the end of a bounded stream, or None where
    none is short.
    """

    at: slice
    tokens: NDArray[Any]
    numbers: list[int]
    available: list[int] | None


class Core(Protocol):
    """Random access to global sequences."""

    length: int | None
    dtype: np.dtype[Any]

    def first(self, epoch: int) -> int: ...

    def epoch(self, i: int) -> int: ...

    def shape(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class PackedSequences:
    """Sequences of ``seq_len`` tokens, ``stride`` apart, with ``extra`` more tokens for the labels.

    ``dense`` says that the caller will draw all sequences of its lanes in order, so that reading ahead pays.
    """

    def __init__(
        self, stream: TokenStream, *, seq_len: int, stride: int, extra: int, lanes: int, epochs: int | None, dense: bool
    ) -> None:
        self.stream = stream
        self.dtype = stream.dtype
        self.seq_len = seq_len
        self.stride = stride
        self.width = seq_len + extra
        self.order = Sequences(stream.tokens_per_epoch, stride, lanes)
        self.total = None if epochs is None else epochs * stream.tokens_per_epoch
        self.length = None if epochs is None else self.order.first(epochs)
        self._rows_ahead = 1 if dense else 0
        self._block = _Block(np.empty((0, 0), self.dtype), [], -1, 0, 0, 1, 0)

    def first(self, epoch: int) -> int:
        return self.order.first(epoch)

    def epoch(self, i: int) -> int:
        return self.order.epoch(i)

    def shape(self) -> dict[str, Any]:
        return {"kind": "pack", "seq_len": self.seq_len, "stride": self.stride, "lanes": self.order.lanes}

    def rows(self, numbers: range) -> Iterator[Rows]:
        """Yield the tokens of global sequences ``numbers``, a range with a positive step."""
        if numbers:
            yield from self._ahead_rows(numbers) if self._rows_ahead else self._single_rows(numbers)

    def _single_rows(self, numbers: range) -> Iterator[Rows]:
        tokens = np.empty((len(numbers), self.width), self.dtype)
        places = [self.order.locate(i)[1] for i in numbers]
        for row, n in zip(tokens, places, strict=True):
            self.stream.read(n * self.stride, row)
        yield Rows(slice(0, len(numbers)), tokens, places, self._available(places))

    def _ahead_rows(self, numbers: range) -> Iterator[Rows]:
        done, lanes, step = 0, self.order.lanes, numbers.step
        while done < len(numbers):
            epoch = self.order.epoch(numbers[done])
            first = self.order.first(epoch)
            row, lane = divmod(numbers[done] - first, lanes)
            block = self._block
            if not (block.row <= row < block.row + block.rows and block.serves(epoch, lane % step, step)):
                block = self._fill(epoch, row, lane % step, step)
            index = lane // step
            ends = min(self.order.first(epoch + 1) - first - row * lanes, lanes)  # lanes that have this row
            count = min(len(numbers) - done, len(range(lane, ends, step)))
            offset = (row - block.row) * self.stride
            view = block.tokens[index : index + count, offset : offset + self.width]
            places = [block.starts[j] + row for j in range(index, index + count)]
            yield Rows(slice(done, done + count), view, places, self._available(places))
            done += count

    def _fill(self, epoch: int, row: int, lane: int, step: int) -> _Block:
        """Read the next rows of every lane of this progression, twice as many as last time up to 16."""
        share = -(-(self.order.first(epoch + 1) - self.order.first(epoch)) // self.order.lanes)
        count = max(1, min(self._rows_ahead, share - row))
        self._rows_ahead = min(READ_AHEAD, 2 * self._rows_ahead)
        lanes = list(range(lane, self.order.lanes, step))
        starts = [self.order.lane_start(epoch, each) for each in lanes]
        width = (count - 1) * self.stride + self.width
        tokens = self._block.tokens
        if tokens.shape != (len(lanes), width):
            tokens = np.empty((len(lanes), width), self.dtype)
        for out, start in zip(tokens, starts, strict=True):
            self.stream.read((start + row) * self.stride, out)
        self._block = _Block(tokens, starts, epoch, row, count, lane, step)
        return self._block

    def _available(self, places: list[int]) -> list[int] | None:
        if self.total is None or max(places) * self.stride + self.width <= self.total:
            return None
        return [max(0, min(self.width, self.total - n * self.stride)) for n in places]

    def document_ends(self, number: int) -> NDArray[np.int64]:
        """Return where documents end among the tokens and labels of stream sequence ``number``, from its first."""
        return self.stream.document_ends(number * self.stride, self.width)

    def close(self) -> None:
        self.stream.close()


@dataclass(slots=True)
class _Block:
    """Rows ``row`` to ``row + rows`` of every ``step``-th lane from ``lane``; ``starts``: each lane's row 0."""

    tokens: NDArray[Any]
    starts: list[int]
    epoch: int
    row: int
    rows: int
    lane: int
    step: int

    def serves(self, epoch: int, lane: int, step: int) -> bool:
        return (self.epoch, self.lane, self.step) == (epoch, lane, step)


class DocumentSequences:
    """Whole documents, one a sequence, in the same order with documents for tokens and a stride of 1."""

    def __init__(self, stream: TokenStream, *, lanes: int, epochs: int | None) -> None:
        self.stream = stream
        self.dtype = stream.dtype
        self.order = Sequences(stream.documents_per_epoch, 1, lanes)
        self.length = None if epochs is None else self.order.first(epochs)

    def first(self, epoch: int) -> int:
        return self.order.first(epoch)

    def epoch(self, i: int) -> int:
        return self.order.epoch(i)

    def shape(self) -> dict[str, Any]:
        return {"kind": "documents", "lanes": self.order.lanes}

    def documents(self, numbers: range) -> list[NDArray[Any]]:
        """Return the token ids of documents ``numbers`` of the global order, as read-only views."""
        return [self.stream.documents(self.order.locate(i)[1], 1)[0] for i in numbers]

    def close(self) -> None:
        self.stream.close()
