"""The bookmark of a stream in memory that it shares with the worker processes of a loader, and their notes about passes."""

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
from ..position import Position, Topology
from .bookmark import Bookmark
from .worker_counts import MAX_WORKERS, WorkerCounts

CAPACITY = 64 << 10  # bytes of a bookmark as JSON that running workers can read: some 1,400 lanes
_OFTEN = 3  # passes that begin alike
_LOOKED_OFTEN = 10  # such passes of a single item: trainers look at what a dataset holds

log = logging.getLogger("pipeline")


class _Worker(ctypes.Structure):
    """The notes of one worker.

    ``read`` is a number, which all workers of a pass share, of the pass that it read to the end. ``number`` is the pass whose
    rest it loaded, ``begin`` the position in the order at which this rest begins; ``is_empty`` says whether it has no item.
    """

    _fields_ = (
        ("read", ctypes.c_int64),
        ("number", ctypes.c_int64),
        ("begin", ctypes.c_int64),
        ("is_empty", ctypes.c_bool),
    )


class _Memory(ctypes.Structure):
    """The memory that processes share. Every stage of a chain makes and clears one, so it stays small.

    - ``generation``: how often the bookmark was set.
    - ``texts``: the bookmark as JSON, empty if longer than `CAPACITY`. The two texts take turns, so that a worker never reads
      the one that is being written.

    The other fields say what happened since the bookmark was set:

    - ``loaded_bookmark``: the bookmark that a loader loaded in its workers, else empty; ``count``: how many workers loaded rests.
    - ``begun``: how often a reader began, and ``read_on`` how often one asked for a second item; ``by_worker``: whether the
      latest reader is a worker.
    - ``whole``: whether the latest reader started at the pass's beginning after others had read the rest of the pass.
    - ``at_end``: whether a rest had no item; ``ended``: whether a pass was read to its end.
    """

    _fields_ = (
        ("generation", ctypes.c_int64),
        ("texts", (ctypes.c_char * (CAPACITY + 1)) * 2),
        ("loaded_bookmark", ctypes.c_char * (CAPACITY + 1)),
        ("begun", ctypes.c_int64),
        ("read_on", ctypes.c_int64),
        ("by_worker", ctypes.c_bool),
        ("whole", ctypes.c_bool),
        ("at_end", ctypes.c_bool),
        ("ended", ctypes.c_bool),
        ("count", ctypes.c_int64),
        ("workers", _Worker * MAX_WORKERS),
    )


class SharedBookmark:
    """A bookmark in shared memory. Worker processes of a loader, even persistent ones, see each later change.

    Worker processes get the memory by any start method. A plain pickle or a ``deepcopy`` starts at the same bookmark and then
    moves alone. Another process that inherited the memory, such as a rank started by fork, stops sharing when it first reads or
    moves the stream.
    """

    memory: Any  # a `_Memory`
    counts: WorkerCounts
    _generation: int  # of `_bookmark`
    _missed: bool  # whether a bookmark was set that is too large for this process

    def __init__(self) -> None:
        self._bookmark = Bookmark()
        self._share_nothing()

    def get(self) -> Bookmark:
        """Return the bookmark that was set last, or loaded by workers since, and whether it was read since."""
        memory = self.memory
        while (generation := memory.generation) != self._generation:
            text = memory.texts[generation % 2].value
            if memory.generation != generation:
                continue  # it was set again, and the text may have been overwritten
            self._missed = not text
            if text:
                self._bookmark = _parsed(text)
            self._generation = generation
        bookmark = self._bookmark
        if memory.loaded_bookmark:
            bookmark = _parsed(memory.loaded_bookmark)
            bookmark = replace(bookmark, number=max(bookmark.number, self._latest_pass()))
        at_end = bookmark.at_end or memory.at_end or (memory.loaded_bookmark and self.nothing_left())
        return replace(bookmark, at_end=bool(at_end), begun=memory.begun > 0, ended=memory.ended)

    def set(self, bookmark: Bookmark) -> None:
        """Set the bookmark from which every following ``iter()`` starts."""
        self.leave_parent()
        text = _text(bookmark)
        self._bookmark, self._missed = _parsed(text), False  # a copy, which the caller cannot change
        self._generation += 1
        memory = self.memory
        memory.texts[self._generation % 2].value = text if len(text) <= CAPACITY else b""
        memory.loaded_bookmark = b""
        memory.by_worker = memory.whole = memory.at_end = memory.ended = False
        memory.begun = memory.read_on = 0
        memory.generation = self._generation  # last, so that a process that sees it finds the text

    def set_by_worker(self, bookmark: Bookmark) -> None:
        """Set the bookmark that a loader loads into its workers, before any of them reads. One worker sets it for all."""
        self.memory.loaded_bookmark = _text(bookmark)[:CAPACITY]
        self.memory.whole = self.memory.at_end = self.memory.ended = False

    def refuse_missed(self) -> None:
        """Raise ``StateError`` in a worker if the bookmark that was set last is too large to reach it."""
        if self._missed:
            raise StateError(
                f"the position takes more than the {CAPACITY} bytes that reach running workers of a DataLoader; "
                "give the DataLoader persistent_workers=False"
            )

    def note_begin(self) -> None:
        """Note that this process begins to read.

        A loop that breaks off each pass would train on its first batches forever. So a warning says if many passes begin with
        the same items. A few looks at a single item are normal.
        """
        info, memory = get_worker_info(), self.memory
        memory.by_worker = info is not None
        if info is None or info.id == 0:
            memory.begun += 1
            if memory.begun == _LOOKED_OFTEN and memory.read_on < _OFTEN:
                self._warn_of_passes(memory.begun)

    def note_second(self) -> None:
        """Note that this process reads on after its first item."""
        info, memory = get_worker_info(), self.memory
        if info is None or info.id == 0:
            memory.read_on += 1
            if memory.read_on == _OFTEN:
                self._warn_of_passes(memory.read_on)

    def _warn_of_passes(self, count: int) -> None:
        if not self.memory.ended:
            log.warning(
                "%d passes of the stream began with the same items, and none was read to its end: each iter() begins at the "
                "stream's position; use stream.loader(), whose passes follow one another, or set_epoch(n) before each pass, or "
                "go on with one iterator; for evaluation, bound the stream by .take(n)",
                count,
            )

    def note_end(self) -> None:
        """Note that this process read its part of a pass to the end. After a loader's last worker, the whole pass is read."""
        memory = self.memory
        if (info := get_worker_info()) is None:
            memory.ended = True
            return
        memory.workers[info.id].read = info.seed - info.id  # the loader's seed, which differs for each of its passes
        memory.ended |= len({memory.workers[worker].read for worker in range(info.num_workers)}) == 1

    def forget_end(self) -> None:
        """Forget that this worker ended a pass when it begins another. Persistent workers keep one seed for all passes."""
        if (info := get_worker_info()) is not None:
            if info.num_workers > MAX_WORKERS:
                raise ConfigError(f"num_workers must be at most {MAX_WORKERS}, got {info.num_workers}")
            self.memory.workers[info.id].read = -1
            self.counts.begin()

    def note_rest(self, topology: Topology, number: int, begin: int, is_empty: bool) -> None:
        """Note the pass that this worker loaded, where its rest of it begins, and whether the rest has no item."""
        worker = self.memory.workers[topology.worker]
        self.memory.count, worker.number, worker.begin, worker.is_empty = topology.workers, number, begin, is_empty

    def nothing_left(self) -> bool:
        """Say whether the loaded rests of all workers are empty, and of one pass."""
        return all(worker.is_empty for worker in self._loaded_workers()) and not self.items_of_later_pass()

    def is_in_earlier_pass(self, number: int) -> bool:
        """Say whether another worker loaded a position in a later pass than this one."""
        return bool(self.memory.workers[number].number < self._latest_pass())

    def items_of_later_pass(self) -> int:
        """Return how many items were given of the latest loaded pass if some workers loaded the end of an earlier one, else 0.

        A state that is saved soon after the end of a pass was loaded is like this: only the workers that gave an item, one each,
        are in the next pass.
        """
        workers, latest = self._loaded_workers(), self._latest_pass()
        given = sum(worker.number == latest for worker in workers)
        return given if given < len(workers) else 0

    def workers_before(self, number: int) -> int:
        """Return how many workers a loader asks before this one after a load. It continues after the last item."""
        workers = self._loaded_workers()
        own = workers[number]
        return sum((worker.number, worker.begin) < (own.number, own.begin) for worker in workers)

    def _latest_pass(self) -> int:
        return max((worker.number for worker in self._loaded_workers()), default=0)

    def _loaded_workers(self) -> list[_Worker]:
        return [self.memory.workers[number] for number in range(self.memory.count)]

    def leave_parent(self) -> None:
        """Stop sharing with the process that this one was forked from, unless this is a worker of a loader."""
        if os.getpid() != self._owner and get_worker_info() is None:
            self._bookmark = self.get()
            self._share_nothing()

    def _share_nothing(self) -> None:
        """Make memory that no other process shares."""
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
