"""Which windows the lanes of a stream come to next."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..order import Sequences, Shuffle
from .windows.loaded_windows import Key

_START_AHEAD = 8  # a stream begins to ask for blocks this part of a window ahead of its lanes
_COPIES_AHEAD, _REMOTE_AHEAD = 8, 4  # windows are loaded this part of a window ahead where bytes take memory; from afar


class LaneRuns(NamedTuple):
    """What lanes read of an epoch: the first and the last place of each (int64), in the order in which they begin."""

    lanes: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    @classmethod
    def of(cls, places: NDArray[np.int64], lanes: NDArray[np.int64]) -> LaneRuns:
        """Return the runs of places, which ascend in each lane.

        >>> LaneRuns.of(np.array([7, 20, 9]), np.array([3, 0, 3]))
        LaneRuns(lanes=array([3, 0]), first=array([ 7, 20]), last=array([ 9, 20]))
        """
        rows, count = np.arange(len(places)), int(lanes.max()) + 1
        begins, ends = np.full(count, len(places)), np.empty(count, np.int64)
        # Of what is written to one place, the last stays.
        begins[lanes[::-1]], ends[lanes] = rows[::-1], rows
        begins.sort()
        begins = begins[: np.searchsorted(begins, len(places))]
        found = lanes[begins]
        return cls(found, places[begins], places[ends[found]])

    def windows(self, starts: NDArray[np.int64], width: int) -> list[int]:
        """Return the windows, which begin at ``starts``, that hold ``width`` units from each place on, in reading order."""
        return _all_between(
            np.searchsorted(starts, self.first, side="right") - 1,
            np.searchsorted(starts, np.minimum(self.last + width, starts[-1]) - 1, side="right") - 1,
        )


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

    def behind(self, epoch: int, runs: LaneRuns, count: int) -> dict[Key, bool]:
        """Return the windows that lanes come to behind runs of ``count`` rows, and whether they are only to be asked for yet.

        A lane is named by its sequence indices modulo the number of lanes.
        """
        sequences = self._sequences
        starts, bounds = self._starts(epoch), sequences.lane_bounds(epoch)
        # The lane of the epoch that these sequence indices are of.
        own = (runs.lanes - sequences.first(epoch)) % sequences.lanes
        at, end = runs.last, np.minimum(bounds[own + 1], starts[-1])
        window = int(starts[-1]) // max(1, len(starts) - 1 if len(starts) > 2 else 8 * sequences.lanes)
        loaded = max(1, window // self._part)
        # At the start of a stream all lanes need blocks at once, so windows behind the first are asked for as lanes come on.
        self._read += count
        come = self._read // len(runs.lanes) * sequences.stride
        asked = min(window, window // _START_AHEAD + 2 * come)
        here = np.searchsorted(starts, at, side="right")  # the windows behind those of the last places
        found: dict[Key, bool] = {}
        for distance, far in ((max(loaded, asked), True), (loaded, False)):
            last = np.searchsorted(starts, np.minimum(at + distance, end - 1), side="right") - 1
            found |= dict.fromkeys(((epoch, number) for number in _all_between(here, last)), far)
        over = at + window >= end
        if over.any() and epoch + 1 != self._end:
            beyond = np.minimum((at + window - end)[over], loaded if self._copies else window)
            found |= self._after_border(epoch + 1, runs.lanes[over], beyond, window) | found
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


def _all_between(first: NDArray[np.int64], last: NDArray[np.int64]) -> list[int]:
    """Return the numbers in ranges, ends included, without repetition: first of each range, then second of each.

    >>> _all_between(np.array([4, 7, 9]), np.array([5, 6, 9]))
    [4, 9, 5]
    """
    found: dict[int, None] = {}
    while (left := first <= last).any():
        found |= dict.fromkeys(first[left].tolist())
        first = first + 1
    return list(found)
