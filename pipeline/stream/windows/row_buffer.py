"""The memory of packed rows, into which readers copy tokens from windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..batch.rows import Rows
from .window import Window

WindowOffset = tuple[Window, int]  # a window, and the unit in it at which a row begins
_NONE = np.zeros(0, np.int64)


class RowBuffer:
    """Memory for rows of ``width`` tokens, filled in any order, and reused at each call of `begin`.

    ``tokens``, ``masks`` and ``source_ids`` are as in `Rows`, and ``ends`` is its ``document_ends``. `put` is the only way in
    and `rows` the only way out. So if a `Window` says more of its tokens, `put` copies that too, and what replaces tokens or
    masks of whole rows is written in `rows`. `TokenRows` copies tokens itself if their window says nothing else of them.
    """

    masks: NDArray[np.uint8] | None = None
    source_ids: NDArray[np.int64] | None = None

    def __init__(self, width: int, dtype: np.dtype[Any], *, with_ends: bool) -> None:
        self.tokens: NDArray[Any] = np.empty((0, width), dtype)
        self.ends: list[NDArray[np.int64]] | None = [] if with_ends else None
        self._memory = self.tokens

    def begin(self, count: int) -> None:
        """Make room for ``count`` rows."""
        if len(self._memory) < count:
            self._memory = np.empty((count, self.tokens.shape[1]), self.tokens.dtype)
        self.tokens = self._memory[:count]
        self.masks = self.source_ids = None
        if self.ends is not None:
            self.ends = [_NONE] * count

    def put(self, row: int, begin: int, window: Window, at: int, most: int) -> int:
        """Copy up to ``most`` tokens of a window from token ``at`` on, with all that the window says of them.

        They become the tokens of ``row`` from token ``begin`` on. Returns how many there are before the window ends.
        """
        part = window.tokens[at : at + most]
        end, stop = at + len(part), begin + len(part)
        self.tokens[row, begin:stop] = part
        if window.mask is not None:
            if self.masks is None:
                self.masks = np.ones(self.tokens.shape, np.uint8)
            self.masks[row, begin:stop] = window.mask[at:end]
        if window.sources is not None:
            if self.source_ids is None:
                self.source_ids = np.zeros(self.tokens.shape, np.int64)
            self.source_ids[row, begin:stop] = window.sources_inside(at, end)
        if self.ends is not None:
            ends = window.ends_inside(at, end)
            self.ends[row] = np.concatenate([self.ends[row], ends + begin]) if begin else ends
        return len(part)

    def fill(self, row: int, places: Iterable[WindowOffset], size: int) -> int:
        """Fill a row with up to ``size`` tokens, from the first place to the end of its window, then from the next places.

        The rest of the row is zeros. Returns the number of tokens.
        """
        done = 0
        for window, at in places if size else ():
            done += self.put(row, done, window, at, size - done)
            if done == size:
                break
        self.tokens[row, done:] = 0
        return done

    def rows(self, existing: NDArray[np.int64] | None, sources: Sequence[int], filled: int | None = None) -> Rows:
        """Return the first ``filled`` rows (None: all), with ``existing`` as `Rows.valid`. The others count as missing."""
        tokens = self.tokens[:filled]
        ends = None if self.ends is None else self.ends[:filled]
        masks = None if self.masks is None else self.masks[:filled]
        return Rows(tokens, ends, existing, len(self.tokens) - len(tokens), masks, sources, self.source_ids)
