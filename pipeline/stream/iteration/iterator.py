"""An iterator over items with positions: it hands out items, and notes position, counts and times."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn, TypeVar

from torch.utils.data import get_worker_info

from ...errors import StateError
from ..assemble import make_mixture
from ..config import StreamConfig
from ..order.mixture import Mixture
from ..position import Position, WorkerContext
from ..protocols import Reader
from .shared_position import SharedPosition
from .stages import Positioned
from .stream_stats import Stats, stats_at, stats_of
from .topology import Topology
from .worker_batch import WorkerBatch

T = TypeVar("T")

_NOTE_SECONDS = 0.05
_NOTE = "(the iterator ended with this error and raises it again; iter() starts anew where the stream stands)"


class Progress:
    """The position of an iterator, its counts and its times, which are known after the iterator is gone."""

    def __init__(self, config: StreamConfig, world_size: int, position: Position, reader: Reader[Any] | None) -> None:
        self.position = position
        self.items = 0
        self.tokens = 0
        self.waited = 0.0
        self.began: float | None = None
        self.ended: float | None = None
        self.finished = False  # all items were handed out, and no error ended it
        self.reader = reader
        self._config, self._world_size = config, world_size

    @cached_property
    def _mixture(self) -> Mixture | None:
        return make_mixture(self._config, self._world_size)

    def stats(self) -> Stats:
        """Return counts, times and rates, and what the reader counts."""
        seconds = ((self.ended or time.perf_counter()) - self.began) if self.began is not None else 0.0
        tokens_read = None if self.reader is None else self.reader.tokens_read
        return Stats(
            items=self.items,
            tokens=self.tokens,
            seconds=seconds,
            tokens_per_second=self.tokens / seconds if seconds else 0.0,
            waited_seconds=self.waited,
            waited_share=self.waited / seconds if seconds else 0.0,
            sequence_index=self.position.sequence_index,
            **stats_of(self.reader, self._config),
            **stats_at(self.position, self._config, self._world_size, self._mixture, tokens_read),
        )


class RaisesAgain(Iterator[T]):
    """An iterator that raises its error again where a generator, which ends with its first one, would end quietly.

    So a loop that skips what fails does not take the error for the end of the data.
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._error: BaseException | None = None

    def __next__(self) -> T:
        if self._error is not None:
            if not isinstance(self._error, Exception):
                raise StateError(
                    "this iterator was interrupted; call iter(), which starts anew where the stream stands"
                )
            raise self._error.with_traceback(None)
        try:
            return next(self._items)
        except StopIteration:
            raise
        except BaseException as error:
            self._error = error
            if _NOTE not in getattr(error, "__notes__", ()):
                error.add_note(_NOTE)
            raise

    def close(self) -> None:
        """Close a generator."""
        if (close := getattr(self._items, "close", None)) is not None:
            close()


class StreamIterator:
    """Hands out items, and notes the position that comes with each."""

    def __init__(
        self,
        items: Iterator[Positioned],
        progress: Progress,
        context: WorkerContext,
        topology: Topology,
        shared: SharedPosition,
    ) -> None:
        self.progress = progress
        self.moved_by: str | None = None  # the call that moved the stream before this iterator began
        self._items = RaisesAgain(items)
        self._context, self._topology, self._shared = context, topology, shared
        self._generation = shared.memory.generation
        self._process = os.getpid()  # that begins it
        self._in_worker = get_worker_info() is not None
        self._noted = 0.0  # when the parent of a worker was last told its counts

    def __iter__(self) -> StreamIterator:
        return self

    def __next__(self) -> Any:
        self._topology.refuse_later_group(self._context)
        progress = self.progress
        if os.getpid() != self._process and progress.began is not None:
            raise StateError(
                f"this iterator was begun by process {self._process}, and its threads and files are not in process "
                f"{os.getpid()}, which was forked since: call iter() there, which begins where the stream stands"
            )
        begin = time.perf_counter()
        if progress.began is None:
            if self.moved_by is not None:
                raise StateError(f"this iterator was made before {self.moved_by}; call iter() again")
            self._shared.refuse_missed()  # not in iter(), where the error of a persistent worker would get lost
            progress.began, self._process = begin, os.getpid()
            self._shared.note_begin()
        try:
            position, item = next(self._items)
        except BaseException as error:
            progress.finished |= isinstance(error, StopIteration) and progress.ended is None
            progress.ended = time.perf_counter()
            self._note_stats()
            if progress.finished and self._shared.memory.generation == self._generation:
                self._shared.note_end()
            raise
        others = self._context.workers - 1
        progress.position = replace(position, skip=others) if others else position
        progress.items += 1
        if isinstance(item, dict):
            progress.tokens += item.get("valid_tokens", 0)
            item = WorkerBatch(item) if self._in_worker else item
        progress.waited += time.perf_counter() - begin
        if self._in_worker and begin - self._noted > _NOTE_SECONDS:
            self._noted = begin
            self._note_stats()
        return item

    def _note_stats(self) -> None:
        """Let the parent of a loader's worker know what it counted."""
        if self._in_worker:
            self._shared.note_stats(self.progress.stats())

    def __reduce__(self) -> NoReturn:
        raise StateError(
            "an iterator of a stream cannot be copied or pickled: save stream.state_dict(), and load it into another stream"
        )

    @property
    def live(self) -> bool:
        """Whether it has begun and not ended."""
        return self.progress.began is not None and self.progress.ended is None

    def close(self) -> None:
        """End the iteration where it is, and stop its threads."""
        if os.getpid() == self._process:
            self._items.close()
        if self.progress.ended is None:
            self.progress.ended = time.perf_counter()
