"""A lane's documents as sequences, made some at a time: joined and cut here, or one each; `best_fit` packs whole ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .cursor import Cursor, Reader

FIRST_TOKENS, MOST_TOKENS = 1 << 12, 1 << 15  # that a lane asks for at once, at first and later


@dataclass(slots=True)
class ReadySequences:
    """Some neighbouring sequences of a lane.

    ``rows``: the tokens of each. ``cursors``: one more, where each begins and where the next after them does.
    ``available``: tokens of each before the end of a bounded stream, None where none is short. ``ends``: where documents
    end in each, None unless asked for. ``masks``: as ``Chunk.mask``, for each.
    """

    rows: list[NDArray[Any]]
    cursors: list[Cursor]
    available: list[int] | None = None
    ends: list[NDArray[np.int64]] | None = None
    masks: list[NDArray[np.uint8]] | None = None


class Packing(Protocol):
    """How a lane's documents become sequences."""

    def more(self) -> ReadySequences | None:
        """Return the next ones, at least one; None at the end of a bounded stream."""


@dataclass(slots=True)
class Lane:
    """The sequences of one lane, one at a time: ``ready.rows[next]`` is the next one where `advance` says so."""

    reader: Reader
    packing: Packing
    ready: ReadySequences = field(default_factory=lambda: ReadySequences([], []))
    next: int = 0

    def advance(self) -> bool:
        """Make a sequence ready; return False at the end of a bounded stream."""
        if self.next < len(self.ready.rows):
            return True
        found = self.packing.more()
        if found is None:
            return False
        self.ready, self.next = found, 0
        return True


class JoinedDocuments:
    """A lane's kept documents as one token stream: sequences of ``width`` tokens, ``stride`` apart."""

    def __init__(
        self, reader: Reader, cursor: Cursor, dtype: np.dtype[Any], *, stride: int, width: int, with_ends: bool
    ) -> None:
        self._reader = reader
        self._stride = stride
        self._width = width
        self._with_ends = with_ends
        self._skip = cursor[4]  # tokens of the first document that were handed out before
        self._least = FIRST_TOKENS
        self._tokens = np.empty(0, dtype)
        self._mask: NDArray[np.uint8] | None = None
        self._ended = False
        # Where each document of `tokens` begins, and its place.
        self._begins = np.empty(0, np.int64)
        self._places: list[tuple[int, ...]] = []

    def more(self) -> ReadySequences | None:
        self._fill()
        have, width, stride = len(self._tokens), self._width, self._stride
        count = (have - width) // stride + 1 if have >= width else 0
        available = None
        tokens, mask = self._tokens, self._mask
        if not count:  # the stream ends here
            count = -(-have // stride)
            if not count:
                return None
            available = np.minimum(have - np.arange(count) * stride, width).tolist()
            missing = (count - 1) * stride + width - have
            tokens = np.concatenate([tokens, np.zeros(missing, tokens.dtype)])
            mask = None if mask is None else np.concatenate([mask, np.zeros(missing, np.uint8)])
        begins = np.arange(count + 1) * stride
        found = ReadySequences(
            [tokens[begin : begin + width] for begin in begins[:-1].tolist()],
            self._cursors(begins),
            available,
            self._ends(begins[:-1]) if self._with_ends else None,
            None if mask is None else [mask[begin : begin + width] for begin in begins[:-1].tolist()],
        )
        self._drop(min(count * stride, have))
        return found

    def _cursors(self, begins: NDArray[np.int64]) -> list[Cursor]:
        """Return the cursors of these tokens; past the last of them the cursor is the reader's."""
        # Of documents that begin at one token, all but the last hold none.
        documents = self._begins.searchsorted(begins, side="right") - 1
        offsets = (begins - self._begins[documents]).tolist()
        places, have = self._places, len(self._tokens)
        found = [
            [*places[document], offset]
            for document, offset, begin in zip(documents.tolist(), offsets, begins.tolist(), strict=True)
            if begin < have
        ]
        return found + [self._reader.cursor] * (len(begins) - len(found))

    def _ends(self, begins: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        stops = np.unique(np.append(self._begins, len(self._tokens))[1:])
        cuts = stops.searchsorted(np.stack([begins, begins + self._width]), side="right").tolist()
        return [stops[first:last] - begin for begin, first, last in zip(begins.tolist(), *cuts, strict=True)]

    def _drop(self, count: int) -> None:
        """Forget the first tokens, and documents that end among them."""
        going = np.append(self._begins, len(self._tokens))[1:] > count
        self._places = [place for place, still in zip(self._places, going.tolist(), strict=True) if still]
        self._begins = self._begins[going] - count
        self._tokens = self._tokens[count:]
        self._mask = None if self._mask is None else self._mask[count:]

    def _fill(self) -> None:
        """Have the tokens of a sequence and some more, where the stream has them."""
        have = len(self._tokens)
        if have >= self._width or self._ended:
            return
        size = max(self._width, self._least)
        self._least = min(2 * self._least, MOST_TOKENS)
        begins, parts, masks = [self._begins], [self._tokens], [self._mask]
        while have < size:
            found = self._reader.take(max(size - have, FIRST_TOKENS))
            if found is None:
                self._ended = True
                break
            place, chunk = found
            begins.append(np.cumsum(chunk.lengths) - chunk.lengths + (have - self._skip))
            parts.append(chunk.ids[self._skip :])
            masks.append(None if chunk.mask is None else chunk.mask[self._skip :])
            self._skip = 0
            have += len(parts[-1])
            self._places += [(*place, number) for number in chunk.numbers]
        self._tokens, self._begins = np.concatenate(parts), np.concatenate(begins)
        if any(mask is not None for mask in masks):
            whole = [np.ones(len(p), np.uint8) if m is None else m for p, m in zip(parts, masks, strict=True)]
            self._mask = np.concatenate(whole)


class SingleDocuments:
    """A lane's kept documents, one a sequence."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._least = FIRST_TOKENS

    def more(self) -> ReadySequences | None:
        found = self._reader.take(self._least)
        if found is None:
            return None
        self._least = min(2 * self._least, MOST_TOKENS)
        place, chunk = found
        cuts = np.cumsum(chunk.lengths)[:-1]
        cursors = [[*place, number, 0] for number in chunk.numbers]
        masks = None if chunk.mask is None else np.split(chunk.mask, cuts)
        return ReadySequences(np.split(chunk.ids, cuts), [*cursors, self._reader.cursor], masks=masks)
