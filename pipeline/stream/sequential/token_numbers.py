"""The documents of tokens in a sequential stream. A trace reads the stream with a number in place of each token.

Lanes, best fit, strides and mixes move numbers as they move ids, so they need no code for traces. The user's functions need ids,
so tokens are numbered after them::

    documents of a window    | to be | or not |        if 40 tokens were numbered before,
    numbers in their place   | 40 41 | 42 43  |        41, 42 in a row are "be" of the first and "or" of the second document
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from ..windows.window import Window


class TokenSpan(NamedTuple):
    """Tokens ``first`` to ``last`` (exclusive) of a document of ``source`` with ``length`` tokens; ``ids`` are these tokens."""

    source: str
    origin: Any
    first: int
    last: int
    length: int
    ids: NDArray[Any]


class TokenNumbers:
    """The windows whose tokens were numbered: those in the memory of lanes, and those that lanes dropped in the last step."""

    def __init__(self) -> None:
        self._windows: dict[int, tuple[str, Window]] = {}  # by their first numbers, ascending
        self._next = 0
        self._dropped: list[int] = []

    def begin_step(self) -> None:
        """Forget the windows that lanes dropped before this step."""
        while self._dropped:
            del self._windows[self._dropped.pop()]

    def numbered(self, source: str, window: Window) -> Window:
        """Return a window with a number in place of each token."""
        first = self._next
        self._next += len(window.tokens)
        if self._next > first:
            self._windows[first] = source, window
        return window._replace(tokens=np.arange(first, self._next))

    def watch(self, numbered: Window, cut: Window) -> None:
        """Keep a numbered window as long as ``cut`` exists, the window that was made from it."""
        if len(numbered.tokens):
            finalize(cut.tokens, self._dropped.append, int(numbered.tokens[0]))

    def spans(self, numbers: NDArray[np.int64]) -> Iterator[TokenSpan]:
        """Yield the documents of the numbers in a row, in their order."""
        firsts, at = list(self._windows), 0
        breaks = [*(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
        for stop in breaks:
            while at < stop:
                base = firsts[bisect_right(firsts, int(numbers[at])) - 1]
                source, window = self._windows[base]
                begin = int(numbers[at]) - base
                document = int(window.ends.searchsorted(begin, side="right")) - 1
                start, end = window.ends[document : document + 2].tolist()
                count = min(end - begin, stop - at)
                assert window.origins is not None
                ids = window.tokens[begin : begin + count]
                first = begin - start
                yield TokenSpan(source, window.origins[document], first, first + count, end - start, ids)
                at += count
