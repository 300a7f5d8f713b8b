"""The rows of one rank and worker in each step of a sequential stream."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...weak_methods import weakly
from ..batch.rows import DocumentRows, Rows
from ..lanes import Cursor, Lanes, WindowStart, part_of_source
from ..layout import Layout
from ..order import RankStep
from ..order.mixture import Mixture
from ..windows.row_buffer import RowBuffer
from .lane import REJECTED_BY, Lane, SequentialWindow, WindowReader

_PATIENCE = 8  # epochs without a row for a process before this is an error, if the next epoch may have one

Cut = Callable[[int, int, SequentialWindow], SequentialWindow]

log = logging.getLogger("pipeline")


class LaneReader:
    """Reads the rows of a rank (a `Reader`): row ``j`` of step ``k`` comes from lane ``(k * lanes.rows + j) % lanes.count``.

    The lanes of this process begin at ``cursors`` and read windows of ``sources``; ``cut(source, lane, window)`` cuts each window
    into sequences. ``mixture`` says which source serves a lane's row; None for one source. ``buffer`` takes packed rows; None
    for whole documents. In a ``bounded`` stream, which is never a mix, the row of a lane that has ended comes from the next local
    lane that has not ended.
    """

    def __init__(
        self,
        sources: Sequence[WindowReader],
        cut: Cut,
        cursors: Mapping[int, Cursor],
        *,
        lanes: Lanes,
        layout: Layout,
        buffer: RowBuffer | None,
        bounded: bool,
        mixture: Mixture | None,
    ) -> None:
        self.tokens_read = [0] * len(sources)  # of each source
        self._sources = sources
        self._lanes = lanes
        self._buffer = buffer
        self._bounded = bounded
        self._mixture = mixture
        self._longest = layout.longest  # tokens of a row
        # Another epoch may give a row to a process that reads only a part of each epoch, and to best fit, which joins documents.
        self._patience = 1 if len(cursors) == lanes.count and not layout.best_fit else _PATIENCE
        self._search = LongSearch()
        on_empty = weakly(self._on_empty)
        self._lag, stride = layout.tokens_before_labels, layout.sequence_stride if layout.runs_on else None

        def begin(lane: int, number: int) -> Lane:
            make = partial(_make, sources[number], cut, self._search, number, lane)
            return Lane(make, part_of_source(cursors[lane], number), stride, self._lag, partial(on_empty, number))

        shared = {n: begin(next(iter(cursors)), n) for n, source in enumerate(sources) if source.shared}
        self._shares = bool(shared)
        self._local = {
            lane: [shared[number] if number in shared else begin(lane, number) for number in range(len(sources))]
            for lane in cursors
        }
        self._cursors: dict[str, Cursor] = {}
        self._moved = {*cursors}  # lanes whose cursors in `_cursors` are outdated

    @property
    def cursors(self) -> dict[str, Cursor]:
        """The cursors of the local lanes after the rows read so far, by lane number."""
        moved = self._local if self._shares else self._moved
        self._cursors = self._cursors | {str(lane): self._cursor(lane) for lane in moved}
        self._moved = set()
        return self._cursors

    def _cursor(self, lane: int) -> Cursor:
        """Return a lane's cursor. Only the cursor of the first local lane holds the state of a live source, which is text."""
        cursor = [number for source in self._local[lane] for number in source.cursor]
        if self._shares and lane != next(iter(self._local)):
            return [0 if isinstance(number, str) else number for number in cursor]
        return cursor

    def stats(self) -> dict[str, Any]:
        counts = sum((source.counts for source in self._sources), Counter[str]())
        return lane_stats(counts, sum(source.bytes_read for source in self._sources))

    def read(self, step: RankStep) -> Rows | DocumentRows:
        """Return the rank's rows of a step; fewer only at the end of a bounded stream."""
        self._search.restart()
        size = self._lanes.rows // step.ranks
        first = step.begin + step.rank * size
        numbers = range(first, first + min(size, max(0, step.begin + step.size - first)))[step.first : step.last]
        return self._documents(numbers) if self._buffer is None else self._packed(numbers, self._buffer)

    def tokens_left(self) -> int:
        """Return how many tokens are in memory. The stream drops at least these if it ends here."""
        # By id, since all rows share one lane of a live source.
        lanes = {id(lane): lane for lanes in self._local.values() for lane in lanes}
        return sum(lane.tokens_left for lane in lanes.values())

    def _packed(self, numbers: range, buffer: RowBuffer) -> Rows:
        buffer.begin(len(numbers))
        sizes, sources = list[int](), list[int]()
        for row, (source, lane) in enumerate(self._ready_lanes(numbers)):
            sizes.append(lane.fill(buffer, row))
            sources.append(source)
            self.tokens_read[source] += min(sizes[-1], self._longest or 0)
        is_cut = bool(sizes) and min(sizes) < buffer.tokens.shape[1]
        return buffer.rows(np.array(sizes, np.int64) if is_cut else None, sources, len(sizes))

    def _documents(self, numbers: range) -> DocumentRows:
        documents, sources = [], list[int]()
        for source, lane in self._ready_lanes(numbers):
            documents.append(lane.document())
            sources.append(source)
            self.tokens_read[source] += len(documents[-1][0][: self._longest])
        return DocumentRows.of(documents, len(numbers) - len(documents), sources)

    def _ready_lanes(self, numbers: range) -> Iterator[tuple[int, Lane]]:
        """Yield the source and the lane of the row of each number, until all local lanes have ended."""
        count, mixture = self._lanes.count, self._mixture
        for number in numbers:
            for candidate in range(number, number + (count if self._bounded else 1)):
                if (sources := self._local.get(candidate % count)) is None:
                    continue  # another process reads the lane
                source = 0 if mixture is None else mixture.source(candidate // count, candidate % count)[0]
                self._moved.add(candidate % count)
                if sources[source].ready():
                    yield source, sources[source]
                    break
            else:
                return

    def _on_empty(self, source: int) -> None:
        """Raise ``ConfigError`` if no local lane has a row in the same epoch of an endless stream."""
        if self._bounded:
            return
        local = [lanes[source] for lanes in self._local.values()]
        end = max(lane.searched_from for lane in local) + self._patience
        if all(lane.gives_nothing_before(end) for lane in local):
            of = "of a whole epoch" if self._patience == 1 else f"of {self._patience} epochs"
            raise self._error_of_nothing(source, of)

    def refuse_nothing(self) -> None:
        """Raise ``ConfigError`` for a bounded stream that ended without a row, with the counts of its documents."""
        raise self._error_of_nothing(0, "of the whole stream")

    def _error_of_nothing(self, source: int, of: str) -> ConfigError:
        """Return the error for a part of a source that gave no row; ``of`` names the part, as in "of 8 epochs"."""
        if self._mixture is not None:
            of += f" of source {self._mixture.names[source]!r}"
        counts = self._sources[source].counts
        read, rejected, bad = _read(self._sources[source])
        reasons = ", ".join(f"{count} by {reason}" for reason, count in lane_stats(counts, 0)["rejected_by"].items())
        what, cure = f"no document was kept {of}", "loosen the filter or the condition, or give more input"
        found = [f"{read} read so far", f"{rejected} rejected by filters{reasons and f' ({reasons})'}"]
        found += [f"{bad} bad" + (": on_error='stop' says why" if bad else "")]
        if read > rejected and not self.tokens_read[source]:
            what, cure = f"no sequence {of} has a label", "give longer documents"
            cure += "" if self._mixture is None else ", or remove the source from the mix"
            found += [f"the other {read - rejected} too short: a label needs {self._lag + 1} tokens of one sequence"]
        return ConfigError(
            f"{what}, in any of the {len(self._local)} lanes of this process ({', '.join(found)}); {cure}"
        )

    def close(self) -> None:
        """Close the files."""
        for source in self._sources:
            source.close()


def _make(
    windows: WindowReader, cut: Cut, search: LongSearch, source: int, lane: int, start: WindowStart
) -> Iterator[SequentialWindow] | None:
    """Return the pieces of the window of a lane, cut into sequences. Warn if no row has been found for long."""

    def cut_next(made: SequentialWindow) -> SequentialWindow:
        if (seconds := search.overdue()) is not None:
            read, rejected, bad = _read(windows)
            log.warning(
                "no row for %d seconds: %d documents were read so far, filters kept %d of them (and %d bad records). Loosen "
                "the filter, or leave out files that it rejects whole: a lane that reads only such files never has a row",
                seconds, read, read - rejected, bad,
            )  # fmt: skip
        return cut(source, lane, made)

    pieces = windows.make(lane, start)
    return None if pieces is None else map(cut_next, pieces)


def _read(windows: WindowReader) -> tuple[int, int, int]:
    """Return the numbers of documents read, of documents rejected, and of bad records."""
    counts = windows.counts
    return counts["documents"], counts["rejected"], counts["bad_records"]


def lane_stats(counts: Counter[str], bytes_read: int) -> dict[str, Any]:
    """Return the counts of lanes under the names of `Stream.stats`."""
    reasons = {
        name.removeprefix(REJECTED_BY): number for name, number in counts.items() if name.startswith(REJECTED_BY)
    }
    stats: dict[str, Any] = {name: counts[name] for name in ("documents", "rejected", "bad_records", "damaged_files")}
    return stats | {"bytes_read": bytes_read, "rejected_by": dict(sorted(reasons.items()))}


_SECONDS = 5.0  # before the first warning; the time doubles from one warning to the next


class LongSearch:
    """Says when to warn that a filter or a stage of the user has found nothing for long."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin to wait again, since something was found."""
        self._since = time.monotonic()
        self._due = _SECONDS

    def overdue(self) -> int | None:
        """Return the seconds waited if it is time to warn, else None."""
        waited = time.monotonic() - self._since
        if waited < self._due:
            return None
        self._due = 2 * waited
        return int(waited)
