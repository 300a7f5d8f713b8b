"""The position of a stream in memory that the worker processes of a loader see, too."""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import asdict
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import Any

from ...errors import StateError
from ..position import Position

CAPACITY = 64 << 10  # bytes of a position as JSON that reach workers which run already: some 1,400 lanes

# The shared numbers: how often the position was set; whether a worker began since, and ended; the pass that a loader loaded
# its workers at, plus 1; and the size of each of the two texts.
_GENERATION, _WORKER_BEGAN, _WORKER_ENDED, _WORKER_LOADED, _SIZES = range(5)


class SharedPosition:
    """A position that the worker processes of a loader, persistent ones too, see when it is set later on.

    It lies as JSON in shared memory, which has room for `CAPACITY` bytes and ends with its processes. Two texts take turns, so
    a worker never reads one that is being written. Worker processes get the memory however they are started; plain pickles
    and ``deepcopy`` start at the same position and move on their own. A process that is no worker of a loader but inherited
    the memory, as a rank started by fork, shares nothing from when it first sets a position.
    """

    _numbers: Any  # ctypes arrays
    _texts: Any
    _generation: int
    _missed: int  # the size of a position that is too large, if one was set

    def __init__(self, position: Position) -> None:
        self._position = position
        self._own()

    def get(self) -> Position:
        """Return the position that was set last."""
        while (generation := self._numbers[_GENERATION]) != self._generation:
            slot = generation % 2
            size = self._numbers[_SIZES + slot]
            text = bytes(self._texts[slot * CAPACITY : slot * CAPACITY + min(size, CAPACITY)])
            if self._numbers[_GENERATION] != generation:
                continue  # it was set again, and may have been written over
            self._missed = size if size > CAPACITY else 0
            if not self._missed:
                self._position = Position(**json.loads(text))
            self._generation = generation
        return self._position

    def refuse_missed(self) -> None:
        """Raise ``StateError`` in a worker where the position that was set last is too large to reach it."""
        if self._missed:
            raise StateError(
                f"the position takes {self._missed} bytes, and {CAPACITY} reach the workers of a DataLoader that run already; "
                "give the DataLoader persistent_workers=False"
            )

    def set(self, position: Position) -> None:
        """Set the position from which every following ``iter()`` starts."""
        if os.getpid() != self._owner:
            self._own()
        text = json.dumps(asdict(position), separators=(",", ":")).encode()
        generation = self._generation + 1
        slot = generation % 2
        if len(text) <= CAPACITY:
            memoryview(self._texts).cast("B")[slot * CAPACITY : slot * CAPACITY + len(text)] = text
        self._numbers[_SIZES + slot] = len(text)
        self._position = Position(**json.loads(text))  # shares nothing with what the caller has
        self._numbers[_WORKER_BEGAN] = self._numbers[_WORKER_ENDED] = self._numbers[_WORKER_LOADED] = 0
        self._generation, self._missed = generation, 0
        self._numbers[_GENERATION] = generation  # last, so that who sees it finds the text

    @property
    def worker_began(self) -> bool:
        """Whether a worker process of a loader began to iterate since the position was set."""
        return bool(self._numbers[_WORKER_BEGAN])

    @property
    def worker_ended(self) -> bool:
        """Whether a worker process of a loader came to the end of its pass since the position was set."""
        return bool(self._numbers[_WORKER_ENDED])

    @property
    def worker_pass(self) -> int | None:
        """The pass that a loader loaded its workers at since the position was set, if it did."""
        return self._numbers[_WORKER_LOADED] - 1 if self._numbers[_WORKER_LOADED] else None

    def note_worker(self, *, ended: bool = False, loaded: int | None = None) -> None:
        """Note that a worker process of a loader begins to iterate, comes to the end, or was put at a pass."""
        if loaded is not None:
            self._numbers[_WORKER_LOADED] = loaded + 1
        else:
            self._numbers[_WORKER_ENDED if ended else _WORKER_BEGAN] = 1

    def note_reader(self) -> None:
        """Note that this process itself begins to iterate, after any worker that began before."""
        self._numbers[_WORKER_BEGAN] = self._numbers[_WORKER_ENDED] = 0

    def _own(self) -> None:
        """Share with no other process what is set from now on."""
        self._owner = os.getpid()
        self._generation = 0
        self._missed = 0
        self._numbers = RawArray(ctypes.c_int64, _SIZES + 2)
        self._texts = RawArray(ctypes.c_uint8, 2 * CAPACITY)

    def __getstate__(self) -> dict[str, Any]:
        return {"_position": self.get()} if get_spawning_popen() is None else self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if len(state) == 1:
            self._own()
