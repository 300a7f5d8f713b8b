"""How full best fit packs its sequences, as measured; where that is below 95%, a warning with the setting that fills more."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from .best_fit import best_fit_decreasing
from .layout import LaneLayout

_LEAST_FULL = 0.95
_AMPLE = 0.96  # of what is measured together, for a setting that leads to 95%
_MOST_WINDOWS = 16  # that are measured
_FEWER_LANES = (2, 4, 8, 16)  # how many times fewer are tried

log = logging.getLogger("pipeline")


class PaddingWatch:
    """Measures the first windows that some lanes of a ``layout`` pack, one each, and warns once of all that they pad.

    ``own`` is how many of the lanes this process reads.
    """

    def __init__(self, seq_len: int, layout: LaneLayout, own: int) -> None:
        self._seq_len = seq_len
        self._layout = layout
        self._missing = min(own, _MOST_WINDOWS)
        self._windows: dict[int, NDArray[np.int64]] = {}
        self._sequences = 0

    def note(self, lane: int, sizes: NDArray[np.int64], sequences: int) -> None:
        """Measure a window of a lane, whose documents and pieces of ``sizes`` tokens fill so many sequences."""
        if not self._missing:
            return
        if lane not in self._windows:
            self._windows[lane] = sizes
            self._sequences += sequences
            self._missing -= 1
        else:  # others have nothing to pack, or come much later
            self._missing = 0
        if not self._missing:
            full = sum(int(each.sum()) for each in self._windows.values()) / (self._sequences * self._seq_len)
            if full < _LEAST_FULL:
                self._warn(full)
            self._windows.clear()

    def _warn(self, full: float) -> None:
        windows = list(self._windows.values())
        log.warning(
            "best fit fills %.1f%% of the positions with tokens, in sequences of %d tokens of which a lane packs about %d "
            "at a time; %s",
            100 * full,
            self._seq_len,
            self._sequences / len(windows),
            self._cure(windows),
        )

    def _cure(self, windows: list[NDArray[np.int64]]) -> str:
        """Return the setting that fills 95%: fewer lanes, which pack more at a time, where that is enough."""
        rows = self._layout.rows
        for fewer in _FEWER_LANES:
            lanes = self._layout.lanes // fewer
            if lanes and self._full_together(windows, fewer) >= _AMPLE:
                if lanes >= rows:
                    return f"use .shuffle(lanes={lanes // rows * rows})"
                return (
                    f"use .shuffle(lanes={lanes}) and a global batch (ranks x batch size) of {lanes} rows, or more data"
                )
        return f"use .pack({self._seq_len}) without best_fit, which cuts documents and pads none, or another seq_len"

    def _full_together(self, windows: list[NDArray[np.int64]], count: int) -> float:
        """Return how full sequences are where a lane packs so many windows at a time; some come twice where they are few."""
        tokens = sequences = 0
        for first in range(0, len(windows), count):
            sizes = np.concatenate([windows[number % len(windows)] for number in range(first, first + count)])
            tokens += int(sizes.sum())
            sequences += len(best_fit_decreasing(sizes, self._seq_len)[1]) - 1
        return tokens / (sequences * self._seq_len)
