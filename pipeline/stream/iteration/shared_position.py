"""The position of a stream in memory that the worker processes of a loader see, too."""

from __future__ import annotations

import ctypes
import json
import os
from contextlib import suppress
from dataclasses import asdict, replace
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawValue
from typing import Any

from torch.utils.data import get_worker_info

from ...errors import ConfigError, StateError
from ..position import Position, WorkerContext
from .passes import Standing

CAPACITY = 64 << 10  # bytes of a position as JSON that reach workers which run already: some 1,400 lanes
MAX_WORKERS = 1 << 10
_STATS_BYTES = 64 << 10  # of the counts of all workers as JSON
_LONG_STATS = ("sources", "rejected_by")  # left out where the others would not fit beside them

Stand = tuple[Position, Standing]


class Memory(ctypes.Structure):
    """What processes share.

    ``generation``: how often the position was set. ``texts``: it and its `Standing` as JSON, in two that take turns, so that a
    worker never reads one that is being written; empty where it is longer than `CAPACITY`. ``loaded``: those that a loader
    loaded in its workers since, empty if it did not. The rest is what was done since: whether somebody began to read, a worker
    was the latest who did, the latest began at the begin of the pass where others had read its rest, nothing was left of a rest,
    and a pass was read to its end; and for each worker the pass that it ended, by a number that all workers of that pass have
    in common; how many workers loaded rests, where each begins in the order, and whether it found nothing there; how many workers
    read the latest pass, and in as many equal parts what each counted in it, as JSON; and the items, tokens and seconds of
    each, which are noted at every item. All of it is cleared for each stage of a chain, so that it stays small.
    """

    _fields_ = (
        ("generation", ctypes.c_int64),
        ("texts", (ctypes.c_char * (CAPACITY + 1)) * 2),
        ("loaded", ctypes.c_char * (CAPACITY + 1)),
        ("began", ctypes.c_bool),
        ("by_worker", ctypes.c_bool),
        ("again", ctypes.c_bool),
        ("at_end", ctypes.c_bool),
        ("ended", ctypes.c_bool),
        ("ends", ctypes.c_int64 * MAX_WORKERS),
        ("workers", ctypes.c_int64),
        ("begins", ctypes.c_int64 * MAX_WORKERS),
        ("is_empty", ctypes.c_bool * MAX_WORKERS),
        ("readers", ctypes.c_int64),
        ("stats", ctypes.c_uint8 * _STATS_BYTES),
        ("totals", (ctypes.c_double * 3) * MAX_WORKERS),
    )


class SharedPosition:
    """A position that the worker processes of a loader, persistent ones too, see when it is set later on.

    It lies in shared memory, which ends with its processes. Worker processes get the memory however they are started; plain
    pickles and ``deepcopy`` start at the same position and move on their own. A process that is no worker of a loader but
    inherited the memory, as a rank started by fork, shares nothing from when it first reads or moves the stream.
    """

    memory: Any  # a `Memory`
    _generation: int  # of `_stand`
    _missed: bool  # whether a position was set that is too large for this process

    def __init__(self, position: Position) -> None:
        self._stand: Stand = position, Standing()
        self._share_nothing()

    def get(self) -> Stand:
        """Return the position that was set last, or that workers loaded since, and how the stream stands there."""
        memory = self.memory
        while (generation := memory.generation) != self._generation:
            text = memory.texts[generation % 2].value
            if memory.generation != generation:
                continue  # it was set again, and may have been written over
            self._missed = not text
            if text:
                self._stand = _parsed(text)
            self._generation = generation
        position, standing = _parsed(memory.loaded) if memory.loaded else self._stand
        at_end = standing.at_end or memory.at_end or (memory.loaded and self.nothing_left())
        return position, replace(standing, at_end=bool(at_end), began=memory.began, ended=memory.ended)

    def set(self, position: Position, standing: Standing) -> None:
        """Set the position from which every following ``iter()`` starts."""
        self.leave_parent()
        text = _text(position, standing)
        self._stand, self._missed = _parsed(text), False  # shares nothing with what the caller has
        self._generation += 1
        memory = self.memory
        memory.texts[self._generation % 2].value = text if len(text) <= CAPACITY else b""
        memory.loaded = b""
        memory.began = memory.by_worker = memory.again = memory.at_end = memory.ended = False
        memory.generation = self._generation  # last, so that who sees it finds the text

    def set_by_worker(self, position: Position, standing: Standing) -> None:
        """Set what a loader loads into its workers before one of them reads; one of them sets it for all."""
        self.memory.loaded = _text(position, standing)[:CAPACITY]
        self.memory.again = self.memory.at_end = self.memory.ended = False

    def refuse_missed(self) -> None:
        """Raise ``StateError`` in a worker where the position that was set last is too large to reach it."""
        if self._missed:
            raise StateError(
                f"the position takes more than the {CAPACITY} bytes that reach the workers of a DataLoader which run already; "
                "give the DataLoader persistent_workers=False"
            )

    def note_begin(self) -> None:
        """Note that this process begins to read."""
        self.memory.began, self.memory.by_worker = True, get_worker_info() is not None

    def note_end(self) -> None:
        """Note that this process read its part of a pass to the end; with the last of a loader's workers, the pass is read."""
        if (info := get_worker_info()) is None:
            self.memory.ended = True
            return
        self.memory.ends[info.id] = info.seed - info.id  # the loader's, another one for each of its passes
        self.memory.ended |= len(set(self.memory.ends[: info.num_workers])) == 1

    def forget_end(self) -> None:
        """Forget that this worker ended a pass, where it begins one: workers that persist have the same number for all."""
        if (info := get_worker_info()) is not None:
            if info.num_workers > MAX_WORKERS:
                raise ConfigError(f"num_workers must be at most {MAX_WORKERS}, got {info.num_workers}")
            self.memory.ends[info.id] = -1
            self.memory.readers = info.num_workers
            self._write_stats(info.id, b"")

    def note_totals(self, items: int, tokens: int, seconds: float) -> None:
        """Note what this worker made in its pass. It costs little, so that a pause after any item finds all of it."""
        if (info := get_worker_info()) is not None:
            self.memory.totals[info.id][:] = items, tokens, seconds

    def note_stats(self, stats: dict[str, Any]) -> None:
        """Note what this worker counted in its pass; what would not fit is left out."""
        if (info := get_worker_info()) is None:
            return
        for left_out in ((), _LONG_STATS):
            counted = {name: value for name, value in stats.items() if name not in left_out}
            text = json.dumps(counted, separators=(",", ":")).encode()
            if len(text) < _STATS_BYTES // info.num_workers:
                self._write_stats(info.id, text)
                return

    def _write_stats(self, worker: int, text: bytes) -> None:
        begin = worker * (_STATS_BYTES // self.memory.readers)
        memoryview(self.memory.stats).cast("B")[begin : begin + len(text) + 1] = text + b"\0"

    def stats_of_workers(self) -> list[dict[str, Any]]:
        """Return what the workers of a loader counted in the latest pass, where they read it, and not this process."""
        if not self.memory.by_worker or get_worker_info() is not None:
            return []
        stats, size = [], _STATS_BYTES // self.memory.readers
        for worker in range(self.memory.readers):
            part = bytes(self.memory.stats[worker * size : (worker + 1) * size])
            with suppress(ValueError):  # it has noted nothing yet, or is writing
                items, tokens, seconds = self.memory.totals[worker]
                totals = {"items": int(items), "tokens": int(tokens), "seconds": seconds}
                stats.append(json.loads(part.partition(b"\0")[0]) | totals)
        return stats

    def note_rest(self, context: WorkerContext, begin: int, is_empty: bool) -> None:
        """Note where this worker begins a rest that it loaded, and whether it found nothing there."""
        memory, worker = self.memory, context.worker
        memory.workers, memory.begins[worker], memory.is_empty[worker] = context.workers, begin, is_empty

    def nothing_left(self) -> bool:
        """Say whether none of the workers found anything in the rests that they loaded."""
        return all(self.memory.is_empty[: self.memory.workers])

    def workers_before(self, worker: int) -> int:
        """Return how many workers a loader asks before this one, after rests that it loaded: it goes on behind the last."""
        begins = self.memory.begins[: self.memory.workers]
        return sum(begin < begins[worker] for begin in begins)

    def leave_parent(self) -> None:
        """Share nothing with the process that this one was forked from, unless it is a worker of a loader there."""
        if os.getpid() != self._owner and get_worker_info() is None:
            self._stand = self.get()
            self._share_nothing()

    def _share_nothing(self) -> None:
        """Share with no other process what is set from now on."""
        self._owner = os.getpid()
        self._generation = 0
        self._missed = False
        self.memory = RawValue(Memory)

    def __getstate__(self) -> dict[str, Any]:
        return {"_stand": self.get()} if get_spawning_popen() is None else self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if len(state) == 1:
            self._share_nothing()


def _text(position: Position, standing: Standing) -> bytes:
    return json.dumps([asdict(position), asdict(standing)], separators=(",", ":")).encode()


def _parsed(text: bytes) -> Stand:
    position, standing = json.loads(text)
    return Position(**position), Standing(**standing)
