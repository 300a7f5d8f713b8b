"""Where a stream stands: the position that every ``iter()`` starts at, seen by all worker processes of a loader."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import tempfile
import weakref
from dataclasses import asdict, dataclass, field
from multiprocessing.context import get_spawning_popen
from multiprocessing.sharedctypes import RawArray
from typing import Any

from ...errors import StateError

MOST = 1 << 53  # of a number in a position: no product of it overflows, and JSON keeps it exactly everywhere

# The shared integers: the generation of the position; whether workers of a loader began since, and ended; the epoch that
# a loader loaded them at, plus 1.
_GENERATION, _WORKER_BEGAN, _WORKER_ENDED, _WORKER_LOADED = range(4)


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the stream; every item comes with the one after it.

    ``sequence_index``: the next sequence of the global order; ``skip``: items of this rank to pass over from there, for
    a loader's worker that takes every n-th; ``stages``: what stages of the user remember, by dotted name;
    ``bound_to``: the stage that makes this position one rank's own, if any; ``weights``: (sequence index, weights as
    fractions) where a mix's were changed; ``lanes``: the cursors of a sequential stream by the number of their lane,
    None at the start of all; ``start_epoch``: the number of this pass, which ``set_epoch`` began, None before it was
    ever called; ``taken``: rows of the step that begins here which this rank has taken, where the position is inside one.
    """

    sequence_index: int
    skip: int = 0
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    bound_to: str | None = None
    weights: list[list[Any]] | None = None
    lanes: dict[str, list[int]] | None = None
    start_epoch: int | None = None
    taken: int = 0


class SharedPosition:
    """A position that the worker processes of a loader, persistent ones too, see when it is set later on.

    The position lies in a private temporary file of the process that set it, and a generation number in shared memory
    says when to read that file. Worker processes get both however they are started; plain pickles and ``deepcopy``
    start at the same position and move on their own. A process that is no worker of a loader but inherited the memory, as a
    rank started by fork, detaches when it first sets a position.
    """

    def __init__(self, position: Position) -> None:
        self._position, self._generation, self._path = position, 0, ""
        self._own()

    def get(self) -> Position:
        """Return the position that was set last."""
        if self._shared[_GENERATION] != self._generation:
            self._generation, self._position = _read(self._path)
        return self._position

    def set(self, position: Position) -> None:
        """Set the position from which every following ``iter()`` starts."""
        if os.getpid() != self._owner:
            self._own()
        generation = self._shared[_GENERATION] + 1
        raw = json.dumps([generation, asdict(position)], separators=(",", ":"))
        _write(self._path, raw)
        self._generation, self._position = _parse(raw)  # shares nothing with what the caller holds
        self._shared[_WORKER_BEGAN] = self._shared[_WORKER_ENDED] = self._shared[_WORKER_LOADED] = 0
        self._shared[_GENERATION] = generation  # last, so that who sees it finds the file

    @property
    def worker_began(self) -> bool:
        """Whether a worker process of a loader began to iterate since the position was set."""
        return bool(self._shared[_WORKER_BEGAN])

    @property
    def worker_ended(self) -> bool:
        """Whether a worker process of a loader came to the end of its pass since the position was set."""
        return bool(self._shared[_WORKER_ENDED])

    @property
    def worker_epoch(self) -> int | None:
        """The epoch that a loader loaded its workers at since the position was set, if it did."""
        return self._shared[_WORKER_LOADED] - 1 if self._shared[_WORKER_LOADED] else None

    def note_worker(self, *, ended: bool = False, loaded: int | None = None) -> None:
        """Note that a worker process of a loader begins to iterate, comes to the end, or was put at an epoch."""
        if loaded is not None:
            self._shared[_WORKER_LOADED] = loaded + 1
        else:
            self._shared[_WORKER_ENDED if ended else _WORKER_BEGAN] = 1

    def note_reader(self) -> None:
        """Note that this process itself begins to iterate, after any worker that began before."""
        self._shared[_WORKER_BEGAN] = self._shared[_WORKER_ENDED] = 0

    def _own(self) -> None:
        """Share with no other process what is set from now on."""
        self._owner = os.getpid()
        self._shared = RawArray(ctypes.c_uint64, 4)
        self._generation = 0
        # Worker processes must know the path before the file is there.
        self._path = os.path.join(tempfile.gettempdir(), f"shardwright-position-{secrets.token_hex(16)}.json")
        weakref.finalize(self, _remove, self._path, self._owner)

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is None:
            return {"position": self.get()}
        names = ("_position", "_owner", "_shared", "_generation", "_path")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "position" in state:
            self.__init__(state["position"])  # type: ignore[misc]
        else:
            self.__dict__.update(state)


def _write(path: str, raw: str) -> None:
    """Write a file that its user alone may read, all at once."""
    descriptor, temporary = tempfile.mkstemp(prefix="shardwright-position-", dir=os.path.dirname(path))
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(raw)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _read(path: str) -> tuple[int, Position]:
    try:
        with open(path) as file:
            return _parse(file.read())
    except FileNotFoundError as error:
        raise StateError(
            f"the position of this stream was set by a process that has ended, and its file {path} is gone; keep the "
            "stream that workers share alive, or load the state in this process"
        ) from error


def _parse(raw: str) -> tuple[int, Position]:
    generation, fields = json.loads(raw)
    return generation, Position(**fields)


def _remove(path: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked process ends without taking the file away from the others
        with contextlib.suppress(OSError):
            os.unlink(path)
