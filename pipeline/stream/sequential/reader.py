"""The rows that one rank and worker takes of each step of a sequential stream."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...weak_methods import weakly
from ..batch.rows import DocumentRows, Ends, Rows
from ..long_search import LongSearch
from ..order import Step
from .cursor import Cursor, Windows, missing_lanes
from .lane_sequences import Lane
from .layout import LaneLayout

_PATIENCE = 8  # epochs of which a process keeps nothing of its part

log = logging.getLogger("pipeline")


class SequentialReader:
    """Reads the rows of a rank (a `Reader`): row ``j`` of step ``k`` comes from lane ``(k * layout.rows + j) % layout.lanes``.

    ``own`` lanes are made by ``make_lane`` from their number and cursor when they are first read. ``width``: tokens of a
    packed row, None for whole documents; ``with_ends``: also where documents end in it. In a ``bounded`` stream, a row of
    a lane that ended comes from the next lane that has not.
    """

    def __init__(
        self,
        windows: Windows,
        make_lane: Callable[[int, Cursor, Callable[[int], object], Callable[[], object]], Lane],
        *,
        layout: LaneLayout,
        own: list[int],
        batch_size: int,
        ranks: int,
        cursors: Mapping[str, Cursor],
        bounded: bool,
        width: int | None,
        with_ends: bool,
    ) -> None:
        if missing := [lane for lane in own if str(lane) not in cursors]:
            raise missing_lanes(missing, layout.lanes)
        self.rank_period = ranks
        self.alignment = layout.rows
        self._windows = windows
        self._make_lane = make_lane
        self._layout = layout
        self._own = own
        self._batch_size = batch_size
        self._bounded = bounded
        self._width = width
        self._with_ends = with_ends
        self._cursors = {str(lane): cursors[str(lane)] for lane in own}
        self._lanes: dict[int, Lane] = {}
        self._buffer: NDArray[Any] | None = None
        self._search = LongSearch()

    @property
    def cursors(self) -> dict[str, Cursor]:
        """The cursors of the own lanes after what was read, by their number."""
        return dict(self._cursors)

    def stats(self, sequence_index: int) -> dict[str, Any]:
        """Return what was read, and the epoch of the lane that is furthest behind."""
        return lane_stats(self._windows.counts, self._windows.bytes_read, self._cursors)

    def read(self, step: Step) -> Rows | DocumentRows:
        """Return the rank's rows of a step; fewer only at the end of a bounded stream."""
        self._search.found()
        size, first = self._batch_size, step.begin + step.rank * self._batch_size
        numbers = range(first, first + min(size, max(0, step.begin + step.size - first)))[step.first : step.last]
        found = _Found()
        for number in numbers:
            lane_number = number % self._layout.lanes
            lane = self._lanes.get(lane_number) or self._lane(lane_number)
            if lane.next >= len(lane.ready.rows) and not lane.advance():
                later = self._later(lane_number)
                if later is None:
                    break
                lane_number, lane = later
            self._cursors[str(lane_number)] = found.add(lane)
        filled, missing = len(found.rows), len(numbers) - len(found.rows)
        if self._width is None:
            return DocumentRows(filled, found.rows, missing, found.masks if found.masked else None)
        ends = Ends.of(found.ends) if self._with_ends else None
        valid = np.array(found.valid, np.int64) if found.cut else None
        masks = np.stack(found.masks) if found.masked else None
        return Rows(filled, self._stacked(found.rows), ends, valid, missing, masks)

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
        lane = self._lanes[number] = self._make_lane(
            number, self._cursors[str(number)], weakly(self._on_empty), weakly(self._on_chunk)
        )
        return lane

    def _later(self, ended: int) -> tuple[int, Lane] | None:
        """Return the first lane after one that ended which has not, with a sequence ready."""
        if self._bounded:
            for number in range(ended + 1, ended + self._layout.lanes):
                lane = self._lanes.get(number % self._layout.lanes) or self._lane(number % self._layout.lanes)
                if lane.advance():
                    return number % self._layout.lanes, lane
        return None

    def _on_chunk(self) -> None:
        if (seconds := self._search.overdue()) is not None:
            counts = self._windows.counts
            read, rejected = counts["documents"], counts["rejected"]
            log.warning(
                "no row for %d seconds: %d documents were read so far, filters kept %d of them (%d bad records beside them)",
                seconds, read, read - rejected, counts["bad_records"],
            )  # fmt: skip

    def _on_empty(self, lane: int) -> None:
        """Raise ``ConfigError`` where no own lane kept a token of an epoch; ``lane`` was found to keep none of its last one.

        Lanes that share the epoch with other processes read other parts of it in the next: they go on for some epochs.
        """
        epochs = 1 if len(self._own) == self._layout.lanes else _PATIENCE
        reader = self._lanes[lane].reader
        if self._bounded or reader.empty < epochs:
            return
        last = reader.epoch - 1  # the same for all lanes: some may be epochs ahead, where they read other documents
        for number in self._own:
            other = self._lanes.get(number) or self._lane(number)
            if number != lane and not other.reader.keeps_none(last, epochs):
                return
        counts = self._windows.counts
        raise ConfigError(
            f"no document was kept of {'a whole epoch' if epochs == 1 else f'{epochs} epochs'}, in any of the "
            f"{len(self._own)} lanes of this process "
            f"({counts['documents']} read so far, {counts['rejected']} rejected by filters, {counts['bad_records']} bad); "
            "loosen the filter or the condition, or give more input"
        )

    def close(self) -> None:
        """Close the files."""
        self._windows.close()


class _Found:
    """Rows that lanes gave."""

    def __init__(self) -> None:
        self.rows: list[NDArray[Any]] = []
        self.ends: list[NDArray[np.int64]] = []
        self.valid: list[int] = []
        self.masks: list[NDArray[np.uint8]] = []
        self.cut = False  # whether one has fewer valid tokens than its width
        self.masked = False  # whether one has a mask

    def add(self, lane: Lane) -> Cursor:
        """Take the next sequence of a lane; return the cursor behind it."""
        at, ready = lane.next, lane.ready
        lane.next = at + 1
        tokens = ready.rows[at]
        self.rows.append(tokens)
        if ready.available is None:
            self.valid.append(len(tokens))
        else:
            self.valid.append(ready.available[at])
            self.cut = True
        if ready.ends is not None:
            self.ends.append(ready.ends[at])
        if ready.masks is not None or self.masked:
            self._mask(np.ones(len(tokens), np.uint8) if ready.masks is None else ready.masks[at])
        return ready.cursors[at + 1]

    def _mask(self, mask: NDArray[np.uint8]) -> None:
        """Add a mask to those of the rows before, all of whose tokens count where they had none."""
        self.masks += [np.ones(len(row), np.uint8) for row in self.rows[len(self.masks) : -1]]
        self.masks.append(mask)
        self.masked = True


def lane_stats(counts: Counter[str], bytes_read: int, cursors: Mapping[str, Cursor]) -> dict[str, Any]:
    """Return what lanes count, and the epoch of the one that is furthest behind."""
    told: dict[str, Any] = {name: counts[name] for name in ("documents", "rejected", "bad_records", "damaged_files")}
    epoch = min((cursor[0] for cursor in cursors.values()), default=0)
    return {**told, "bytes_read": bytes_read, "epoch": epoch}
