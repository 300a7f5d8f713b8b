"""The iterator of a stream: it hands out items, and notes the position and the counts after each item."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

from torch.utils.data import get_worker_info

from ...errors import StateError
from ..batch.transport import WorkerBatch
from ..position import Position, Topology
from ..ranks import Ranks
from .progress import IterationProgress
from .user_stages import Positioned
from .worker_notes import WorkerNotes

_NOTE_SECONDS = 0.05
_NOTE = "(the iterator ended with this error and raises it again; iter() starts again at the stream's position)"


class StreamIterator:
    """Hands out items, and notes the position of each."""

    def __init__(
        self,
        items: Iterator[Positioned],
        progress: IterationProgress,
        topology: Topology,
        ranks: Ranks,
        notes: WorkerNotes,
    ) -> None:
        self.progress = progress
        self.moved_by: str | None = None  # the call that moved the stream before this iterator began
        self._items = items
        self._error: Exception | None = None  # that ended the iterator
        self._topology, self._ranks, self._notes = topology, ranks, notes
        self._process = os.getpid()  # that begins the iterator
        self._in_worker = get_worker_info() is not None
        self._noted = 0.0  # the time of the last `_note_stats`

    def __iter__(self) -> StreamIterator:
        return self

    def __next__(self) -> Any:
        if self._error is not None:  # StopIteration would look like the end of the data to a loop that skips errors
            raise self._error.with_traceback(None)
        self._ranks.refuse_later_group(self._topology)
        progress = self.progress
        if os.getpid() != self._process and progress.began is not None:
            raise StateError(
                f"process {self._process} began this iterator, and process {os.getpid()}, forked since, lacks its threads and "
                "files: call iter() there, which begins at the stream's position"
            )
        begin = time.perf_counter()
        if progress.began is None:
            if self.moved_by is not None:
                raise StateError(f"this iterator was made before {self.moved_by}; call iter() again")
            progress.began, self._process = begin, os.getpid()
            self._notes.note_begin()
        elif progress.items == 1:
            self._notes.note_second()
        try:
            position, item = next(self._items)
        except BaseException as error:
            progress.finished |= isinstance(error, StopIteration) and progress.ended is None
            progress.ended = time.perf_counter()
            self._keep_error(error)
            self._note_stats()
            if progress.finished:
                self._notes.note_end()
            raise
        others = self._topology.workers - 1
        progress.position = replace(position, skip=others) if others else position
        progress.items += 1
        if progress.has_ended:
            self._notes.note_end()
        if isinstance(item, dict):
            progress.tokens += item.get("valid_tokens", 0)
            item = WorkerBatch(item) if self._in_worker else item
        progress.waited += time.perf_counter() - begin
        if self._in_worker:
            self._notes.note_totals(progress.items, progress.tokens, time.perf_counter() - progress.began)
            if begin - self._noted > _NOTE_SECONDS:
                self._noted = begin
                self._note_stats()
        return item

    def _keep_error(self, error: BaseException) -> None:
        """Keep the error that ends the iterator, to raise it again."""
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            error.add_note(_NOTE)
            self._error = error
        elif not isinstance(error, StopIteration):
            self._error = StateError(
                "this iterator was interrupted; call iter(), which starts again at the stream's position"
            )

    def _note_stats(self) -> None:
        """Note the counts of a loader's worker for its parent."""
        if self._in_worker:
            self._notes.note_counts(self.progress.stats())

    def __reduce__(self) -> NoReturn:
        raise StateError(
            "an iterator of a stream cannot be copied or pickled: save stream.state_dict(), and load it into another stream"
        )

    @property
    def live(self) -> bool:
        """Whether the iterator has begun and not ended."""
        return self.progress.began is not None and self.progress.ended is None

    def keeps(self, start: Position | None) -> bool:
        """Say whether the iterator is still valid after the stream moved to ``start``: it is unread and begins there."""
        progress = self.progress
        return (self.moved_by, progress.began, progress.ended) == (None,) * 3 and progress.position == start

    def close(self) -> None:
        """End the iteration, and stop its threads."""
        if os.getpid() == self._process and (close := getattr(self._items, "close", None)) is not None:
            close()  # a generator
        if self.progress.ended is None:
            self.progress.ended = time.perf_counter()
