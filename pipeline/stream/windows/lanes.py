"""The windows that the lanes of a stream need: where rows begin now, and soon enough where they go on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..order import Sequences, Shuffle
from .loaded import Key, LoadedWindows
from .window import Window

_AHEAD = 8  # a lane's next window is asked for when this part of its window is left: enough to load it in time

Int = NDArray[np.int64]
Place = tuple[Window, int]  # a window, and the unit in it at which a row begins


class LaneWindows:
    """Finds rows in windows. Positions count units of the endless stream: tokens, or whole ``documents``.

    ``sequences`` say where rows begin, each of which needs ``width`` units from there; no window is loaded from epoch ``end``
    on (None: there is no end). A lane's next window is loaded before the lane comes to it, but at the border of an epoch
    all lanes wait once: to hold the windows of two epochs would double the memory.
    """

    def __init__(
        self,
        windows: LoadedWindows,
        order: Shuffle,
        sequences: Sequences,
        *,
        width: int = 1,
        documents: bool = False,
        end: int | None = None,
    ) -> None:
        self.windows = windows
        self.sequences = sequences
        self.units = order.documents if documents else order.tokens
        self._order = order
        self.width = width
        self._documents = documents
        self._end = end
        self._ahead = max(width, self.units // order.windows // _AHEAD)
        lanes = sequences.lanes
        self._current: list[Window] = [
            Window(np.zeros(0), np.zeros(1, np.int64))
        ] * lanes  # by lane, as all that follow
        self._begins = np.zeros(lanes, np.int64)  # the first position of the window
        self._asks = np.zeros(lanes, np.int64)  # from which position on other windows are needed
        self._stops = np.zeros(lanes, np.int64)  # the first position behind the window
        self._keys: list[list[Key]] = [[]] * lanes

    def positions(self, indices: Int) -> Int:
        """Return the positions at which sequence indices begin."""
        order, found = self.sequences, np.empty(len(indices), np.int64)
        if not len(indices):
            return found
        for epoch in range(order.epoch(int(indices.min())), order.epoch(int(indices.max())) + 1):
            first = order.first(epoch)
            mine = (indices >= first) & (indices < order.first(epoch + 1))
            found[mine] = order.places(epoch, indices[mine] - first)[0] + epoch * self.units
        return found

    def places(self, indices: Int, positions: Int) -> list[Place]:
        """Return where the rows of sequence indices begin, at these positions."""
        lanes = indices % self.sequences.lanes
        moved = (positions < self._begins[lanes]) | (positions >= self._asks[lanes])
        if moved.any():
            moved = np.isin(lanes, lanes[moved])  # all rows of these lanes
            self.prepare(indices[moved], positions[moved])
        found: list[Place] = []
        inside = (positions - self._begins[lanes]).tolist()
        here = ((positions >= self._begins[lanes]) & (positions < self._stops[lanes])).tolist()
        for lane, at, is_here, position in zip(lanes.tolist(), inside, here, positions.tolist(), strict=True):
            found.append((self._current[lane], at) if is_here else self.place(position))
        return found

    def prepare(self, indices: Int, positions: Int) -> None:
        """Ask for the windows that lanes need from these rows on, and forget those that no lane needs any more."""
        lanes = indices % self.sequences.lanes
        later: list[Key] = []
        moved = np.unique(lanes).tolist()
        for lane in moved:
            mine = positions[lanes == lane]
            low, high = int(mine.min()), int(mine.max())
            last = high + self.width - 1
            ahead = max(last, min(high + self._ahead, self._last_of_lane(lane, high)))
            needed = self.keys(low, last)
            self._keys[lane] = keys = needed + [key for key in self.keys(last + 1, ahead) if key not in needed]
            self.windows.ask(needed)
            later += keys[len(needed) :]
            _, _, begin, stop = self._window_of(high)
            self._begins[lane], self._stops[lane] = begin, stop
            self._asks[lane] = stop if ahead >= stop or ahead < high + self._ahead else stop - self._ahead
        self.windows.ask(later)
        self.windows.keep({key for keys in self._keys for key in keys})
        for lane in moved:
            self._current[lane] = self.place(int(self._begins[lane]))[0]

    def place(self, position: int) -> Place:
        """Return where a position lies."""
        epoch, number, begin, _ = self._window_of(position)
        return self.windows.get((epoch, number)), position - begin

    def _last_of_lane(self, lane: int, position: int) -> int:
        """Return the last position that a lane, of sequence indices modulo lanes, needs in the epoch of a position."""
        order, epoch = self.sequences, position // self.units
        own = (lane - order.first(epoch)) % order.lanes
        return (order.lane_start(epoch, own + 1) - 1) * order.stride + self.width - 1

    def keys(self, first: int, last: int) -> list[Key]:
        """Return the windows that hold the positions ``first`` to ``last``."""
        found = []
        while first <= last and (self._end is None or first < self._end * self.units):
            epoch, number, _, first = self._window_of(first)
            found.append((epoch, number))
        return found

    def _window_of(self, position: int) -> tuple[int, int, int, int]:
        """Return epoch and number of the window that holds a position, its first position and the one behind it."""
        epoch, place = divmod(position, self.units)
        order = self._order.epoch(epoch)
        starts = order.document_starts if self._documents else order.starts
        number = int(starts.searchsorted(place, side="right")) - 1
        begin = epoch * self.units
        return epoch, number, begin + int(starts[number]), begin + int(starts[number + 1])
