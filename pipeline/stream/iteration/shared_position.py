"""The position of a stream in memory that the worker processes of a loader see, too."""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import asdict
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawValue
from typing import Any

from ...errors import StateError
from ..position import Position

CAPACITY = 64 << 10  # bytes of a position as JSON that reach workers which run already: some 1,400 lanes


class Memory(ctypes.Structure):
    """What processes share.

    ``generation``: how often the position was set. ``texts``: it as JSON, in two that take turns, so that a worker never reads
    one that is being written; empty where it is longer than `CAPACITY`. The rest is what workers did since it was set: whether
    one began to iterate, and came to the end of its pass, and the pass at which a loader loaded them, -1 if it did not.
    """

    _fields_ = (
        ("generation", ctypes.c_int64),
        ("texts", (ctypes.c_char * (CAPACITY + 1)) * 2),
        ("worker_began", ctypes.c_bool),
        ("worker_ended", ctypes.c_bool),
        ("worker_pass", ctypes.c_int64),
    )


class SharedPosition:
    """A position that the worker processes of a loader, persistent ones too, see when it is set later on.

    It lies in shared memory, which ends with its processes. Worker processes get the memory however they are started; plain
    pickles and ``deepcopy`` start at the same position and move on their own. A process that is no worker of a loader but
    inherited the memory, as a rank started by fork, shares nothing from when it first sets a position.
    """

    memory: Any  # a `Memory`
    _generation: int  # of `_position`
    _missed: bool  # whether a position was set that is too large for this process

    def __init__(self, position: Position) -> None:
        self._position = position
        self._own()

    def get(self) -> Position:
        """Return the position that was set last."""
        while (generation := self.memory.generation) != self._generation:
            text = self.memory.texts[generation % 2].value
            if self.memory.generation != generation:
                continue  # it was set again, and may have been written over
            self._missed = not text
            if text:
                self._position = Position(**json.loads(text))
            self._generation = generation
        return self._position

    def refuse_missed(self) -> None:
        """Raise ``StateError`` in a worker where the position that was set last is too large to reach it."""
        if self._missed:
            raise StateError(
                f"the position takes more than the {CAPACITY} bytes that reach the workers of a DataLoader which run already; "
                "give the DataLoader persistent_workers=False"
            )

    def set(self, position: Position) -> None:
        """Set the position from which every following ``iter()`` starts."""
        if os.getpid() != self._owner:
            self._own()
        text = json.dumps(asdict(position), separators=(",", ":")).encode()
        self._position, self._missed = Position(**json.loads(text)), False  # shares nothing with what the caller has
        self._generation += 1
        memory = self.memory
        memory.texts[self._generation % 2].value = text if len(text) <= CAPACITY else b""
        memory.worker_began, memory.worker_ended, memory.worker_pass = False, False, -1
        memory.generation = self._generation  # last, so that who sees it finds the text

    def _own(self) -> None:
        """Share with no other process what is set from now on."""
        self._owner = os.getpid()
        self._generation = 0
        self._missed = False
        self.memory = RawValue(Memory)
        self.memory.worker_pass = -1

    def __getstate__(self) -> dict[str, Any]:
        return {"_position": self.get()} if get_spawning_popen() is None else self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if len(state) == 1:
            self._own()
