"""The bookmark of a stream in memory that the worker processes of a loader see, and what they note there about passes."""

from __future__ import annotations

import ctypes
import json
import logging
import os
from dataclasses import asdict, replace
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawValue
from typing import Any

from torch.utils.data import get_worker_info

from ...errors import ConfigError, StateError
from ..position import Position, WorkerContext
from .bookmark import Bookmark
from .worker_counts import MAX_WORKERS, WorkerCounts

CAPACITY = 64 << 10  # bytes of a bookmark as JSON that reach workers which run already: some 1,400 lanes
_BEGUN_OFTEN = 3

log = logging.getLogger("pipeline")


class _Worker(ctypes.Structure):
    """What one worker notes.

    ``read``: the pass that it read to its end, by a number that all workers of a pass share. ``begin``: where the rest that it
    loaded begins in the order; ``is_empty``: whether it found nothing there.
    """

    _fields_ = (("read", ctypes.c_int64), ("begin", ctypes.c_int64), ("is_empty", ctypes.c_bool))


class _Memory(ctypes.Structure):
    """What processes share. All of it is cleared for each stage of a chain, so it stays small.

    ``generation``: how often the bookmark was set. ``texts``: the bookmark as JSON, in two that take turns, so that a worker
    never reads one that is being written; empty if it is longer than `CAPACITY`. ``loaded``: the bookmark that a loader loaded in
    its workers since, empty if it did not.

    The rest is what readers did since: ``begun``, how often one began; ``by_worker``, whether the latest is a worker; ``whole``,
    whether the latest began a pass of which others had read a rest; ``at_end``, whether nothing was left of a rest; ``ended``,
    whether a pass was read to its end; ``count``, how many workers loaded rests.
    """

    _fields_ = (
        ("generation", ctypes.c_int64),
        ("texts", (ctypes.c_char * (CAPACITY + 1)) * 2),
        ("loaded", ctypes.c_char * (CAPACITY + 1)),
        ("begun", ctypes.c_int64),
        ("by_worker", ctypes.c_bool),
        ("whole", ctypes.c_bool),
        ("at_end", ctypes.c_bool),
        ("ended", ctypes.c_bool),
        ("count", ctypes.c_int64),
        ("workers", _Worker * MAX_WORKERS),
    )


class SharedBookmark:
    """A bookmark that the worker processes of a loader, persistent ones too, see when it is set later on.

    It lies in shared memory, which ends with its processes. Worker processes get the memory however they are started; plain
    pickles and ``deepcopy`` start at the same bookmark and move on their own. A process that is no worker of a loader but
    inherited the memory, as a rank started by fork, shares nothing from when it first reads or moves the stream.
    """

    memory: Any  # a `_Memory`
    counts: WorkerCounts
    _generation: int  # of `_bookmark`
    _missed: bool  # whether a bookmark was set that is too large for this process

    def __init__(self) -> None:
        self._bookmark = Bookmark()
        self._share_nothing()

    def get(self) -> Bookmark:
        """Return the bookmark that was set last, or that workers loaded since, and what was read since."""
        memory = self.memory
        while (generation := memory.generation) != self._generation:
            text = memory.texts[generation % 2].value
            if memory.generation != generation:
                continue  # it was set again, and may have been written over
            self._missed = not text
            if text:
                self._bookmark = _parsed(text)
            self._generation = generation
        bookmark = _parsed(memory.loaded) if memory.loaded else self._bookmark
        at_end = bookmark.at_end or memory.at_end or (memory.loaded and self.nothing_left())
        return replace(bookmark, at_end=bool(at_end), begun=memory.begun > 0, ended=memory.ended)

    def set(self, bookmark: Bookmark) -> None:
        """Set the bookmark from which every following ``iter()`` starts."""
        self.leave_parent()
        text = _text(bookmark)
        self._bookmark, self._missed = _parsed(text), False  # shares nothing with what the caller has
        self._generation += 1
        memory = self.memory
        memory.texts[self._generation % 2].value = text if len(text) <= CAPACITY else b""
        memory.loaded = b""
        memory.by_worker = memory.whole = memory.at_end = memory.ended = False
        memory.begun = 0
        memory.generation = self._generation  # last, so that who sees it finds the text

    def set_by_worker(self, bookmark: Bookmark) -> None:
        """Set what a loader loads into its workers before one of them reads; one of them sets it for all."""
        self.memory.loaded = _text(bookmark)[:CAPACITY]
        self.memory.whole = self.memory.at_end = self.memory.ended = False

    def refuse_missed(self) -> None:
        """Raise ``StateError`` in a worker which the bookmark that was set last is too large to reach."""
        if self._missed:
            raise StateError(
                f"the position takes more than the {CAPACITY} bytes that reach the workers of a DataLoader which run already; "
                "give the DataLoader persistent_workers=False"
            )

    def note_begin(self) -> None:
        """Note that this process begins to read; warn if the same items begin for the third time and were never read to the end.

        A loop that leaves each pass in its middle would train on its first batches for ever. Two beginnings are a look at a
        batch, and then the run.
        """
        info, memory = get_worker_info(), self.memory
        memory.by_worker = info is not None
        if info is None or info.id == 0:
            memory.begun += 1
            if memory.begun == _BEGUN_OFTEN and not memory.ended:
                log.warning(
                    "the stream begins with the same items for the third time, and was never read to its end: each iter() begins "
                    "where the stream stands; use stream.loader(), whose passes follow one another, or set_epoch(n) before each "
                    "pass, or go on with one iterator; for evaluation, bound the stream by .take(n)"
                )

    def note_end(self) -> None:
        """Note that this process read its part of a pass to the end; with the last of a loader's workers, the pass is read."""
        memory = self.memory
        if (info := get_worker_info()) is None:
            memory.ended = True
            return
        memory.workers[info.id].read = info.seed - info.id  # the loader's, another one for each of its passes
        memory.ended |= len({memory.workers[worker].read for worker in range(info.num_workers)}) == 1

    def forget_end(self) -> None:
        """Forget that this worker ended a pass, where it begins one: workers that persist have the same number for all."""
        if (info := get_worker_info()) is not None:
            if info.num_workers > MAX_WORKERS:
                raise ConfigError(f"num_workers must be at most {MAX_WORKERS}, got {info.num_workers}")
            self.memory.workers[info.id].read = -1
            self.counts.begin()

    def note_rest(self, context: WorkerContext, begin: int, is_empty: bool) -> None:
        """Note where this worker begins a rest that it loaded, and whether it found nothing there."""
        worker = self.memory.workers[context.worker]
        self.memory.count, worker.begin, worker.is_empty = context.workers, begin, is_empty

    def nothing_left(self) -> bool:
        """Say whether none of the workers found anything in the rests that they loaded."""
        return all(worker.is_empty for worker in self._loaded_workers())

    def workers_before(self, number: int) -> int:
        """Return how many workers a loader asks before this one, after rests that it loaded: it goes on after the last."""
        begin = self.memory.workers[number].begin
        return sum(worker.begin < begin for worker in self._loaded_workers())

    def _loaded_workers(self) -> list[_Worker]:
        return [self.memory.workers[number] for number in range(self.memory.count)]

    def leave_parent(self) -> None:
        """Share nothing with the process that this one was forked from, unless it is a worker of a loader there."""
        if os.getpid() != self._owner and get_worker_info() is None:
            self._bookmark = self.get()
            self._share_nothing()

    def _share_nothing(self) -> None:
        """Share with no other process what is set from now on."""
        self._owner = os.getpid()
        self._generation = 0
        self._missed = False
        self.memory = RawValue(_Memory)
        self.counts = WorkerCounts()

    def __getstate__(self) -> dict[str, Any]:
        return {"_bookmark": self.get()} if get_spawning_popen() is None else self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if len(state) == 1:
            self._share_nothing()


def _text(bookmark: Bookmark) -> bytes:
    return json.dumps(asdict(bookmark), separators=(",", ":")).encode()


def _parsed(text: bytes) -> Bookmark:
    bookmark = Bookmark(**json.loads(text))
    rest: Any = bookmark.rest
    return bookmark if rest is None else replace(bookmark, rest=Position(**rest))
