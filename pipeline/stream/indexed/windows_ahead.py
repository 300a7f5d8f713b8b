"""Which windows the lanes of a stream come to next."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..order import Sequences, Shuffle
from .windows.loaded_windows import Key

_START_AHEAD = 8  # a stream begins to ask for blocks this part of a window ahead of its lanes
_COPIES_AHEAD, _REMOTE_AHEAD = 8, 4  # windows are loaded this part of a window ahead where bytes take memory; from afar


class WindowsAhead:
    """The windows of ``order`` that lie ahead of lanes which read ``sequences`` of it: whole ``documents``, or tokens.

    Windows are loaded early where they come from ``far`` away, late where their bytes take memory (``copies``). No stream
    goes on behind epoch ``end`` (None: it is endless).
    """

    def __init__(
        self,
        order: Shuffle,
        sequences: Sequences,
        *,
        documents: bool,
        far: bool,
        copies: bool,
        end: int | None,
    ) -> None:
        self._order = order
        self._sequences = sequences
        self._documents = documents
        self._part = _REMOTE_AHEAD if far else _COPIES_AHEAD
        self._copies = copies
        self._end = end
        self._read = 0  # rows that were looked at so far

    def behind(self, epoch: int, places: NDArray[np.int64], lanes: NDArray[np.int64]) -> dict[Key, bool]:
        """Return the windows that lanes come to behind these places, and whether they are only to be asked for yet.

        Places are of one epoch and ascend in each lane, which is named by its sequence indices modulo the lanes.
        """
        sequences, lane_count = self._sequences, self._sequences.lanes
        starts, bounds = self._starts(epoch), sequences.lane_bounds(epoch)
        at = np.full(lane_count, -1)
        at[lanes] = places  # the last one stays
        lanes = np.flatnonzero(at >= 0)
        own = (lanes - sequences.first(epoch)) % lane_count  # the lane of the epoch that these sequence indices are of
        at, end = at[lanes], np.minimum(bounds[own + 1], starts[-1])
        window = int(starts[-1]) // max(1, len(starts) - 1 if len(starts) > 2 else 8 * lane_count)
        loaded = max(1, window // self._part)
        # At the start of a stream all lanes need blocks at once, so windows behind the first are asked for as lanes come on.
        self._read += len(places)
        come = self._read // len(lanes) * sequences.stride
        asked = min(window, window // _START_AHEAD + 2 * come)
        found: dict[Key, bool] = {}
        for distance, far in ((loaded, False), (max(loaded, asked), True)):
            first, last = (
                np.searchsorted(starts, x, side="right") - 1 for x in (at, np.minimum(at + distance, end - 1))
            )
            going = np.flatnonzero(last > first)
            for low, high in {*zip(first[going].tolist(), last[going].tolist(), strict=True)}:
                for number in range(low + 1, high + 1):
                    found.setdefault((epoch, number), far)
        over = at + window >= end
        if over.any() and epoch + 1 != self._end:
            beyond = np.minimum((at + window - end)[over], loaded if self._copies else window)
            found |= self._after_border(epoch + 1, lanes[over], beyond, window) | found
        return found

    def _after_border(
        self, epoch: int, lanes: NDArray[np.int64], beyond: NDArray[np.int64], window: int
    ) -> dict[Key, bool]:
        """Return the windows up to ``beyond`` in the next epoch: all lanes change windows there, so they load early."""
        starts, bounds = self._starts(epoch), self._sequences.lane_bounds(epoch)
        own = (lanes - self._sequences.first(epoch)) % self._sequences.lanes
        at = np.minimum(bounds[own], starts[-1] - 1)
        last = np.minimum(at + beyond, starts[-1] - 1)
        first, last = (np.searchsorted(starts, x, side="right") - 1 for x in (at, last))
        far = (beyond * 2 < window) & (not self._copies)
        found: dict[Key, bool] = {}
        for low, high, only_asked in np.unique(np.stack([first, last, far], axis=1), axis=0).tolist():
            for number in range(low, high + 1):
                found[epoch, number] = found.get((epoch, number), True) and bool(only_asked)
        return found

    def _starts(self, epoch: int) -> NDArray[np.int64]:
        order = self._order.epoch(epoch)
        return order.document_starts if self._documents else order.starts
