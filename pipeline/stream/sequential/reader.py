"""The rows that one rank and worker takes of each step of a sequential stream."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...weak_methods import weakly
from ..batch.rows import DocumentRows, RowBuffer, Rows
from ..lanes import LaneLayout
from ..long_search import LongSearch
from ..order import Step
from .cursor import Cursor, Place, missing_lanes
from .lane import Lane, LaneWindow, Windows

_PATIENCE = 8  # epochs of which a process keeps nothing of its part

Cut = Callable[[int, LaneWindow], LaneWindow]

log = logging.getLogger("pipeline")


class SequentialReader:
    """Reads the rows of a rank (a `Reader`): row ``j`` of step ``k`` comes from lane ``(k * layout.rows + j) % layout.lanes``.

    ``own`` lanes read ``windows``, each changed by ``cut(lane, window)``; ``buffer`` takes packed rows, None where rows are
    whole documents; ``stride`` is that of `Lane`. In a ``bounded`` stream, a row of a lane that ended comes from the next
    lane that has not.
    """

    def __init__(
        self,
        windows: Windows,
        cut: Cut,
        *,
        layout: LaneLayout,
        own: list[int],
        batch_size: int,
        ranks: int,
        cursors: Mapping[str, Cursor],
        bounded: bool,
        buffer: RowBuffer | None,
        stride: int | None,
    ) -> None:
        if missing := [lane for lane in own if str(lane) not in cursors]:
            raise missing_lanes(missing, layout.lanes)
        self.rank_period = ranks
        self.alignment = layout.rows
        self._windows = windows
        self._layout = layout
        self._batch_size = batch_size
        self._bounded = bounded
        self._buffer = buffer
        self._cursors = {str(lane): cursors[str(lane)] for lane in own}
        self._search = LongSearch()
        on_empty, on_window = weakly(self._on_empty), weakly(self._on_window)
        self._lanes = {
            lane: Lane(partial(_make, windows, cut, on_window, lane), cursors[str(lane)], stride, on_empty)
            for lane in own
        }

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
        return self._documents(numbers) if self._buffer is None else self._packed(numbers, self._buffer)

    def _packed(self, numbers: range, buffer: RowBuffer) -> Rows:
        buffer.begin(len(numbers))
        sizes: list[int] = []
        for number in numbers:
            if (found := self._lane(number)) is None:
                break
            name, lane = found
            sizes.append(lane.fill(buffer, len(sizes)))
            self._cursors[name] = lane.cursor
        filled, width = len(sizes), buffer.tokens.shape[1]
        ends = None if buffer.ends is None else buffer.ends[:filled]
        valid = np.array(sizes, np.int64) if any(each < width for each in sizes) else None
        masks = None if buffer.masks is None else buffer.masks[:filled]
        return Rows(filled, buffer.tokens[:filled], ends, valid, len(numbers) - filled, masks)

    def _documents(self, numbers: range) -> DocumentRows:
        documents: list[NDArray[Any]] = []
        masks: list[NDArray[np.uint8] | None] = []
        for number in numbers:
            if (found := self._lane(number)) is None:
                break
            name, lane = found
            tokens, mask = lane.document()
            documents.append(tokens)
            masks.append(mask)
            self._cursors[name] = lane.cursor
        filled, whole = len(documents), None
        if any(mask is not None for mask in masks):
            whole = [
                np.ones(len(tokens), np.uint8) if mask is None else mask
                for tokens, mask in zip(documents, masks, strict=True)
            ]
        return DocumentRows(filled, documents, len(numbers) - filled, whole)

    def _lane(self, number: int) -> tuple[str, Lane] | None:
        """Return the name and the lane that gives the next row, or None where all have ended."""
        for lane in range(number, number + (self._layout.lanes if self._bounded else 1)):
            found = self._lanes[lane % self._layout.lanes]
            if found.ready():
                return str(lane % self._layout.lanes), found
        return None

    def _on_window(self) -> None:
        if (seconds := self._search.overdue()) is not None:
            counts = self._windows.counts
            read, rejected = counts["documents"], counts["rejected"]
            log.warning(
                "no row for %d seconds: %d documents were read so far, filters kept %d of them (%d bad records beside them)",
                seconds, read, read - rejected, counts["bad_records"],
            )  # fmt: skip

    def _on_empty(self, lane: Lane) -> None:
        """Raise ``ConfigError`` where no own lane kept anything of the epoch that ``lane`` has just read.

        Lanes that share the epoch with other processes read other parts of it in the next: they go on for some epochs.
        """
        epochs = 1 if len(self._lanes) == self._layout.lanes else _PATIENCE
        if self._bounded or lane.empty_epochs < epochs:
            return
        if not all(other.keeps_nothing(lane.epoch - 1, epochs) for other in self._lanes.values()):
            return
        counts = self._windows.counts
        raise ConfigError(
            f"no document was kept of {'a whole epoch' if epochs == 1 else f'{epochs} epochs'}, in any of the "
            f"{len(self._lanes)} lanes of this process "
            f"({counts['documents']} read so far, {counts['rejected']} rejected by filters, {counts['bad_records']} bad); "
            "loosen the filter or the condition, or give more input"
        )

    def close(self) -> None:
        """Close the files."""
        self._windows.close()


def _make(windows: Windows, cut: Cut, on_window: Callable[[], object], lane: int, place: Place) -> LaneWindow | None:
    made = windows.make(lane, place)
    on_window()
    return None if made is None else cut(lane, made)


def lane_stats(counts: Counter[str], bytes_read: int, cursors: Mapping[str, Cursor]) -> dict[str, Any]:
    """Return what lanes count, and the epoch of the one that is furthest behind."""
    names = ("documents", "rejected", "bad_records", "damaged_files")
    epoch = min((cursor[0] for cursor in cursors.values()), default=0)
    return {**{name: counts[name] for name in names}, "bytes_read": bytes_read, "epoch": epoch}
