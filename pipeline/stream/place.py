"""Where a stream stands: the place that every ``iter()`` starts at, shared by all processes of a loader."""

from __future__ import annotations

import ctypes
import json
import os
import struct
from dataclasses import asdict, dataclass, field
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import Any

from ..errors import StateError

_HEADER = struct.Struct("<QB")  # bytes of JSON that follow, and whether a loader's worker began to iterate
_BYTES = 1 << 17  # the cursors of 2,048 lanes fit


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the stream, riding with the item that it comes after.

    ``i``: the next global sequence; ``skip``: items of this rank to pass over from there, for a loader's worker that
    takes every n-th; ``stages``: what stages of the user's own remember, by dotted name; ``bound_to``: the stage that
    makes this place one rank's own, if any; ``weights``: (global sequence, weights as fractions) where a mix's were
    changed; ``lanes``: the cursors of a cursor stream by the number of their lane, None at the start of all.
    """

    i: int
    skip: int = 0
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    bound_to: str | None = None
    weights: list[list[Any]] | None = None
    lanes: dict[str, list[int]] | None = None


class Place:
    """A mark in shared memory, so that a loader's workers, persistent ones too, see what is set later on.

    Memory is shared with worker processes however they are started, and copied by plain pickling and ``deepcopy``. A
    process that is no worker of a loader but inherited the memory, as a rank started by fork, detaches on its first
    ``set``.
    """

    def __init__(self, mark: Mark) -> None:
        self._memory = RawArray(ctypes.c_char, _BYTES)
        self._owner = os.getpid()
        self._write(mark)

    def get(self) -> Mark:
        """Return the mark that was set last."""
        raw = bytes(memoryview(self._memory))
        size, _ = _HEADER.unpack_from(raw)
        return Mark(**json.loads(raw[_HEADER.size : _HEADER.size + size]))

    def set(self, mark: Mark) -> None:
        """Set the mark from which every following ``iter()`` starts."""
        if os.getpid() != self._owner:
            self._memory, self._owner = RawArray(ctypes.c_char, _BYTES), os.getpid()
        self._write(mark)

    @property
    def in_workers(self) -> bool:
        """Whether a loader's worker began to iterate since the mark was set."""
        return bool(_HEADER.unpack_from(bytes(memoryview(self._memory)[: _HEADER.size]))[1])

    def note_worker(self) -> None:
        """Note that a loader's worker begins to iterate."""
        self._memory[_HEADER.size - 1] = b"\1"

    def _write(self, mark: Mark) -> None:
        raw = json.dumps(asdict(mark), separators=(",", ":")).encode()
        if len(raw) > _BYTES - _HEADER.size:
            raise StateError(
                f"a state of {len(raw)} bytes, more than {_BYTES - _HEADER.size}; stages save places, not data"
            )
        # Workers read when an iteration begins, and this is written between two, so nobody reads half of it.
        memoryview(self._memory).cast("B")[: _HEADER.size + len(raw)] = _HEADER.pack(len(raw), 0) + raw

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is None:
            return {"mark": self.get()}
        return {"memory": self._memory, "owner": self._owner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "mark" in state:
            self.__init__(state["mark"])  # type: ignore[misc]
        else:
            self._memory, self._owner = state["memory"], state["owner"]
