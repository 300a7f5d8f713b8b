"""The rows that one rank and worker takes of each step of a sequential stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ..batch.rows import Ends, Rows
from .cursor import Cursor, Windows, missing_lanes
from .layout import LaneLayout
from .packing import Lane

_PATIENCE = 8  # epochs of which a process keeps nothing of its part


class Drawn:
    """Rows that were read, for a collator to ask for: packed, or whole documents."""

    buffer: ClassVar[None] = None

    def __init__(
        self, count: int, packed: Rows | None, whole: list[NDArray[Any]], masks: list[NDArray[np.uint8]] | None
    ):
        self.count = count
        self.masks = masks
        self._packed = packed
        self._whole = whole

    def rows(self, numbers: range) -> Iterator[Rows]:
        """Yield the packed rows."""
        return iter([] if self._packed is None else [self._packed])

    def documents(self, numbers: range) -> list[NDArray[Any]]:
        """Return the documents."""
        return self._whole


class SequentialReader:
    """Reads the rows of a rank: row ``j`` of step ``k`` comes from lane ``(k * layout.rows + j) % layout.lanes``.

    ``own`` lanes are made by ``make_lane`` from their number and cursor when they are first read. ``width``: tokens of a
    packed row, None for whole documents. In a ``bounded`` stream, a row of a lane that ended comes from the next lane that
    has not.
    """

    def __init__(
        self,
        windows: Windows,
        make_lane: Callable[[int, Cursor, Callable[[int], object]], Lane],
        *,
        layout: LaneLayout,
        own: list[int],
        first_row: int,
        cursors: Mapping[str, Cursor],
        bounded: bool,
        width: int | None,
    ) -> None:
        if missing := [lane for lane in own if str(lane) not in cursors]:
            raise missing_lanes(missing, layout.lanes)
        self.counts = windows.counts
        self._windows = windows
        self._make_lane = make_lane
        self._layout = layout
        self._own = own
        self._first_row = first_row
        self._bounded = bounded
        self._width = width
        self._cursors = {str(lane): cursors[str(lane)] for lane in own}
        self._lanes: dict[int, Lane] = {}
        self._buffer: NDArray[Any] | None = None

    @property
    def bytes_read(self) -> int:
        return self._windows.bytes_read

    @property
    def cursors(self) -> dict[str, Cursor]:
        """The cursors of the own lanes after what was read, by their number, for the state."""
        return dict(self._cursors)

    def read(self, step: int, row: int, count: int) -> Drawn:
        """Return ``count`` rows of a step, from the rank's ``row`` on; fewer only at the end of a bounded stream."""
        first = step * self._layout.rows + self._first_row + row
        found: list[NDArray[Any]] = []
        available: list[int] = []
        ends: list[NDArray[np.int64]] | None = None
        masks: list[NDArray[np.uint8]] | None = None
        cursors, short = self._cursors, False
        for number in range(first, first + count):
            lane_number = number % self._layout.lanes
            lane = self._lanes.get(lane_number) or self._lane(lane_number)
            if lane.next >= len(lane.ready.rows) and not lane.advance():
                later = self._later(lane_number)
                if later is None:
                    break
                lane_number, lane = later
            at, ready = lane.next, lane.ready
            lane.next = at + 1
            tokens = ready.rows[at]
            found.append(tokens)
            cursors[str(lane_number)] = ready.cursors[at + 1]
            if ready.available is None:
                available.append(len(tokens))
            else:
                available.append(ready.available[at])
                short = True
            if ready.ends is not None:
                ends = [] if ends is None else ends
                ends.append(ready.ends[at])
            if ready.masks is not None:
                masks = [] if masks is None else masks
                masks.append(ready.masks[at])
        if self._width is None:
            return Drawn(len(found), None, found, masks)
        rows = Rows(
            slice(0, len(found)),
            self._stacked(found),
            None if ends is None else Ends.of(ends),
            available if short else None,
        )
        return Drawn(len(found), rows if found else None, [], masks)

    def _stacked(self, found: list[NDArray[Any]]) -> NDArray[Any]:
        """Return rows as one array, valid until the next call."""
        if not found:
            return np.empty((0, self._width or 0), np.int64)
        if self._buffer is None or len(self._buffer) < len(found):
            self._buffer = np.empty((len(found), len(found[0])), found[0].dtype)
        for number, tokens in enumerate(found):
            self._buffer[number] = tokens
        return self._buffer[: len(found)]

    def _lane(self, number: int) -> Lane:
        lane = self._lanes[number] = self._make_lane(number, self._cursors[str(number)], self._on_empty)
        return lane

    def _later(self, ended: int) -> tuple[int, Lane] | None:
        """Return the first lane after one that ended which has not, with a sequence ready."""
        if self._bounded:
            for number in range(ended + 1, ended + self._layout.lanes):
                lane = self._lanes.get(number % self._layout.lanes) or self._lane(number % self._layout.lanes)
                if lane.advance():
                    return number % self._layout.lanes, lane
        return None

    def _on_empty(self, lane: int) -> None:
        """Raise ``ConfigError`` where no own lane kept a token of its last whole epoch; ``lane`` was found to keep none.

        Lanes that share the epoch with other processes read other parts of it in the next: they go on for some epochs.
        """
        epochs = 1 if len(self._own) == self._layout.lanes else _PATIENCE
        if self._bounded or self._lanes[lane].reader.empty < epochs:
            return
        for number in self._own:
            other = self._lanes.get(number) or self._lane(number)
            if number != lane and other.reader.keeps_some(epochs):
                return
        counts = self._windows.counts
        raise ConfigError(
            f"no document was kept of {'a whole epoch' if epochs == 1 else f'{epochs} epochs'}, in any of the "
            f"{len(self._own)} lanes of this process "
            f"({counts['documents']} read so far, {counts['rejected']} rejected by filters, {counts['bad_records']} bad); "
            "loosen the filter, or give more input"
        )

    def close(self) -> None:
        """Close the files."""
        self._windows.close()
