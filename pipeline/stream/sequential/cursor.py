"""A lane's cursor, and the documents that a lane keeps from there on.

A lane reads windows of documents that can be made again from their place alone. Its cursor is five integers:

    epoch, bundle, round    where its window begins; of shards, bundle is 0 and round counts the lane's windows
    document, offset        the document in the window's order, and the token in it, that its next sequence begins at
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import StateError

Place = tuple[int, int, int]  # epoch, bundle, round
Cursor = list[int]  # epoch, bundle, round, document, offset


class Chunk(NamedTuple):
    """Documents that were kept: their ids joined, the length of each, its number in the window; and the number after them.

    ``mask`` (uint8, as long as ``ids``) is 0 for tokens that no loss counts, None where all count.
    """

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    numbers: list[int]
    next: int
    mask: NDArray[np.uint8] | None = None


class Window(Protocol):
    """Some documents of one lane, in their order, from ``place`` to before ``following``."""

    place: Place
    following: Place

    def __len__(self) -> int: ...

    def take(self, index: int, tokens: int | None) -> Chunk:
        """Return those to keep from ``index`` on: about as many as make ``tokens`` tokens, or all that are left."""


class Windows(Protocol):
    """What a source offers to lanes; ``counts`` says how many documents were read, rejected and bad."""

    counts: Counter[str]

    def window(self, lane: int, place: Place) -> Window | None:
        """Return the window of ``lane`` that begins at ``place``, or None behind the last epoch."""

    @property
    def bytes_read(self) -> int: ...

    def close(self) -> None: ...


class Reader:
    """The kept documents of one lane, from a cursor on.

    ``change`` is applied to each chunk. ``on_empty(lane)`` is called after each whole epoch of which the lane keeps no
    token; it raises where the stream cannot go on. ``on_chunk`` is called after each chunk.
    """

    def __init__(
        self,
        windows: Windows,
        lane: int,
        cursor: Cursor,
        *,
        change: Callable[[Chunk], Chunk] | None = None,
        on_empty: Callable[[int], object] = lambda lane: None,
        on_chunk: Callable[[], object] = lambda: None,
    ) -> None:
        epoch, bundle, round, self._index, _ = cursor
        self._windows = windows
        self._lane = lane
        self._change = change
        self._on_empty = on_empty
        self._on_chunk = on_chunk
        self._place: Place = (epoch, bundle, round)
        self._window: Window | None = None
        self._ahead: deque[tuple[Place, int, Chunk]] = deque()  # found by `keeps_none`, with the index it began at
        self._whole = not any(cursor[1:])  # whether this epoch was read from its beginning
        self._kept = False  # whether it kept a token
        self.empty = 0  # whole epochs in a row of which no token was kept

    @property
    def cursor(self) -> Cursor:
        """Where ``take`` goes on."""
        if self._ahead:
            place, index, _ = self._ahead[0]
            return [*place, index, 0]
        if self._window is not None and self._index >= len(self._window):
            return [*self._window.following, 0, 0]
        return [*self._place, self._index, 0]

    def take(self, tokens: int | None) -> tuple[Place, Chunk] | None:
        """Return a chunk that holds at least one document and the place of its window, or None at the end.

        With ``tokens`` None it is all that is left of the window.
        """
        if self._ahead:
            place, _, chunk = self._ahead.popleft()
            return place, chunk
        while True:
            found = self._next(tokens)
            if found is None:
                return None
            place, _, chunk = found
            if len(chunk.lengths):
                return place, chunk
            if self.empty and place[0] < self._place[0]:
                self._on_empty(self._lane)

    @property
    def epoch(self) -> int:
        """The epoch that it is in; those before it, as many as ``empty`` says, were read whole and nothing was kept."""
        return self._place[0]

    def keeps_none(self, epoch: int, epochs: int) -> bool:
        """Say whether the lane keeps no token in so many epochs up to ``epoch``; what is read for that waits for ``take``."""
        while not self._kept and self._place[0] <= epoch:
            found = self._next(None)
            if found is None:
                return False
            if len(found[2].lengths):
                self._ahead.append(found)
        return not self._kept and self._place[0] - self.empty <= epoch - epochs + 1

    def _next(self, tokens: int | None) -> tuple[Place, int, Chunk] | None:
        """Read on once; the chunk is empty where nothing is kept, and at the end of a window."""
        if self._window is None:
            self._window = self._windows.window(self._lane, self._place)
            if self._window is None:
                return None
        window, index = self._window, self._index
        if index >= len(window):
            if window.following[0] > window.place[0]:
                self.empty = self.empty + 1 if self._whole and not self._kept else 0
                self._whole, self._kept = True, False
            self._place, self._index, self._window = window.following, 0, None
            return window.place, index, _NOTHING
        chunk = window.take(index, tokens)
        self._index = chunk.next
        self._on_chunk()
        if self._change is not None and len(chunk.lengths):
            chunk = self._change(chunk)
        if len(chunk.ids):
            self._kept, self.empty = True, 0
        return window.place, index, chunk


_NOTHING = Chunk(np.empty(0, np.int64), np.empty(0, np.int64), [], 0)


def beginning(epoch: int, lanes: int) -> dict[str, Cursor]:
    """Return the cursors of all lanes at the start of ``epoch``."""
    return {str(lane): [epoch, 0, 0, 0, 0] for lane in range(lanes)}


def missing_lanes(missing: list[int], count: int) -> StateError:
    """Return the error for a state that lacks lanes."""
    named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    return StateError(
        f"the state lacks lanes {named} ({len(missing)} of {count}): each rank saves its own; join the states of all "
        "ranks with pipeline.merge_states([...]) to go on with other ranks"
    )
