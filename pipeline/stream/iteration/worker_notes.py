"""What the processes that read a stream tell its owner, in memory that the workers of a loader share with their parent.

Nothing here moves a worker: a worker keeps the position that it had when it was started.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
from contextlib import suppress
from multiprocessing import active_children
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawValue
from types import FrameType
from typing import Any

from torch.utils.data import get_worker_info

from ...errors import ConfigError

MAX_WORKERS = 1 << 10
_TEXT_BYTES = 64 << 10  # of the counts of all workers as JSON
_LONG = ("sources", "rejected_by")  # left out if there is no room for all counts
_OFTEN = 3  # passes that begin alike
_LOOKED_OFTEN = 10  # such passes of a single item: trainers look at what a dataset holds

log = logging.getLogger("pipeline")


class _Worker(ctypes.Structure):
    """The notes of one worker.

    - ``finished``: the seed of the loader whose pass it has finished; -1 inside a pass.
    - ``next``: the pass of its next item, if it loaded a state of its own; ``inside``: whether it loaded a place in this pass.
    - ``totals``: the items, tokens and seconds of its pass, noted at every item.
    """

    _fields_ = (
        ("finished", ctypes.c_int64),
        ("next", ctypes.c_int64),
        ("inside", ctypes.c_bool),
        ("totals", ctypes.c_double * 3),
    )


class _Memory(ctypes.Structure):
    """The memory that processes share. Every stage of a chain makes and clears one, so it stays small.

    - ``moves``: how often the owner moved the stream. The next fields say what happened since the last move:
    - ``first``, ``latest``: the passes of the first and of the latest iteration, each plus 1; 0 without one. If ``latest`` is
      set, ``first`` is, too, after every single write: a worker that starts reads both while another one notes its pass.
    - ``whole``: whether the latest iteration started at its pass's beginning; ``by_worker``: whether a worker began last.
    - ``begun``: how often a reader began; ``read_on``: how often one asked for a second item.
    - ``ended``: whether a pass was read to its end.
    - ``loaded``: whether workers loaded states of their own; ``read_before``: whether the stream had been read then;
      ``reads_next``: whether they read the next pass if nothing is left of theirs; ``with_weights``: whether these states have
      weights that the owner does not know.

    ``following`` is the pass that living workers begin next, and ``living`` holds the processes of workers that live on after a
    pass, whatever their loader. ``workers`` is the number of workers of the latest pass, and ``texts`` holds their counts as
    JSON, in ``workers`` equal parts.
    """

    _fields_ = (
        ("moves", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("latest", ctypes.c_int64),
        ("begun", ctypes.c_int64),
        ("read_on", ctypes.c_int64),
        ("whole", ctypes.c_bool),
        ("by_worker", ctypes.c_bool),
        ("ended", ctypes.c_bool),
        ("loaded", ctypes.c_bool),
        ("read_before", ctypes.c_bool),
        ("reads_next", ctypes.c_bool),
        ("with_weights", ctypes.c_bool),
        ("following", ctypes.c_int64),
        ("living", ctypes.c_int64 * MAX_WORKERS),
        ("workers", ctypes.c_int64),
        ("texts", ctypes.c_uint8 * _TEXT_BYTES),
        ("by_number", _Worker * MAX_WORKERS),
    )


class WorkerNotes:
    """Notes about the passes of a stream, of its owner's process and of the workers of loaders that were started from there.

    Worker processes get the memory by any start method. A plain pickle or a ``deepcopy`` has new memory.
    """

    def __init__(self) -> None:
        self.memory: Any = RawValue(_Memory)
        self.lives_on: bool | None = None  # whether this worker's process lives on after a pass; None: no worker
        self._moves = 0  # as this process knows them

    # The owner

    def forget(self) -> None:
        """Forget what happened before a move."""
        memory = self.memory
        self._moves = memory.moves = memory.moves + 1
        memory.latest = memory.first = memory.begun = memory.read_on = 0
        memory.whole = memory.by_worker = memory.ended = memory.loaded = memory.with_weights = False
        for worker in memory.by_number[: memory.workers]:
            worker.finished = -1  # a loader whose seed was set again has that of an earlier pass

    def workers_live(self) -> bool:
        """Say whether workers that live on after a pass are still there."""
        return not {child.pid for child in active_children()}.isdisjoint(self.memory.living)

    def note_pass(self, number: int, whole: bool) -> None:
        """Note that an iteration of a pass was made in this process."""
        memory = self.memory
        memory.first, memory.latest, memory.whole = memory.first or number + 1, number + 1, whole
        if self.lives_on:
            memory.following = number + 1

    def note_later_pass(self, number: int) -> None:
        """Note that nothing was left of the pass of an iteration, which therefore reads a later one."""
        self.memory.first = number + 1
        self.note_pass(number, whole=True)

    # The workers

    def enter(self) -> None:
        """Note that this process makes an iteration: a worker is inside a pass."""
        if (info := get_worker_info()) is None:
            return
        if info.num_workers > MAX_WORKERS:
            raise ConfigError(f"num_workers must be at most {MAX_WORKERS}, got {info.num_workers}")
        if self.lives_on is None:
            self.lives_on = _is_persistent()
        if self.lives_on:
            self.memory.living[os.getpid() % MAX_WORKERS] = os.getpid()
        self.memory.by_number[info.id].finished = -1
        self.memory.workers = info.num_workers
        self._write(info.id, b"")

    def note_load(self, *, read_before: bool, named: bool, with_weights: bool) -> None:
        """Note that this worker loads a state of its own, as all workers of its loader do before any of them reads."""
        memory, self.lives_on = self.memory, _is_persistent()
        memory.loaded, memory.read_before, memory.with_weights = True, read_before, with_weights
        # A loader that was saved after a pass begins another at once, and workers that live on would lose the first.
        memory.reads_next = named and not self.lives_on
        memory.latest = memory.first = 0
        memory.ended = False

    def note_next(self, number: int, inside: bool) -> None:
        """Note the pass of this worker's next item, and whether the worker loaded a place in it."""
        info = get_worker_info()
        assert info is not None
        worker = self.memory.by_number[info.id]
        worker.next, worker.inside = number, inside

    def loaded_pass(self, reads_next: bool) -> int:
        """Return the pass that the workers' own states are in.

        If nothing of this pass is left, and workers do not go on to the next pass, no worker has its next item there.
        """
        workers = self.memory.by_number[: self.memory.workers]
        least: int = min(worker.next for worker in workers)
        return least - (not reads_next and not any(worker.inside for worker in workers if worker.next == least))

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
        if not self.memory.ended and self.memory.first == self.memory.latest:
            log.warning(
                "%d passes of the stream began with the same items, and none was read to its end: each iter() begins at the "
                "stream's position; use stream.loader(), whose passes follow one another, or set_epoch(n) before each pass, or "
                "go on with one iterator; for evaluation, bound the stream by .take(n)",
                count,
            )

    def note_end(self) -> None:
        """Note that this process has read its part of a pass. After a loader's last worker, the whole pass is read."""
        memory = self.memory
        if memory.moves != self._moves:
            return
        if (info := get_worker_info()) is None:
            memory.ended = True
            return
        # Each pass of a loader has a seed of its own, unless its workers live on.
        memory.by_number[info.id].finished = info.seed - info.id
        memory.ended |= len({worker.finished for worker in memory.by_number[: info.num_workers]}) == 1

    # Counts

    def note_totals(self, items: int, tokens: int, seconds: float) -> None:
        """Note the totals of this worker's pass. This is cheap enough for every item, so the sums are always exact."""
        if (info := get_worker_info()) is not None:
            self.memory.by_number[info.id].totals[:] = items, tokens, seconds

    def note_counts(self, stats: dict[str, Any]) -> None:
        """Note the counts of this worker's pass. If there is no room for all, long ones are left out."""
        if (info := get_worker_info()) is None:
            return
        for left_out in ((), _LONG):
            counted = {name: value for name, value in stats.items() if name not in left_out}
            text = json.dumps(counted, separators=(",", ":")).encode()
            if len(text) < _TEXT_BYTES // info.num_workers:
                self._write(info.id, text)
                return

    def counts(self) -> list[dict[str, Any]]:
        """Return the counts of each worker in the latest pass."""
        stats, size = [], _TEXT_BYTES // max(1, self.memory.workers)
        for worker in range(self.memory.workers):
            part = bytes(self.memory.texts[worker * size : (worker + 1) * size])
            with suppress(ValueError):  # the worker has noted nothing yet, or is writing
                items, tokens, seconds = self.memory.by_number[worker].totals
                totals = {"items": int(items), "tokens": int(tokens), "seconds": seconds}
                stats.append(json.loads(part.partition(b"\0")[0]) | totals)
        return stats

    def _write(self, worker: int, text: bytes) -> None:
        begin = worker * (_TEXT_BYTES // self.memory.workers)
        memoryview(self.memory.texts).cast("B")[begin : begin + len(text) + 1] = text + b"\0"

    def __getstate__(self) -> dict[str, Any]:
        return {"lives_on": None} if get_spawning_popen() is None else self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.__dict__.update(state)


def _is_persistent() -> bool:
    """Say whether the loader of this worker has ``persistent_workers``: only the running call of its loop knows."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_worker_loop":
        frame = frame.f_back
    return frame is not None and bool(frame.f_locals.get("persistent_workers"))
