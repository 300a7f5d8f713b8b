"""Open files by path, within the process's budget."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from .open_files import MOST, OPEN_FILES, OpenFiles, tick


@dataclass(slots=True)
class _Handle:
    """A descriptor, how many use it now, and when it was used last."""

    descriptor: int
    users: int
    used: int


class _Use:
    """A context in which a descriptor is used; generators as contexts would take most of a short read's time."""

    __slots__ = ("_handle", "_handles", "_path")
    _handle: _Handle

    def __init__(self, handles: Handles, path: str) -> None:
        self._handles = handles
        self._path = path

    def __enter__(self) -> int:
        self._handle = self._handles._take(self._path)
        return self._handle.descriptor

    def __exit__(self, *_: object) -> None:
        self._handles._give_back(self._handle)


class Handles:
    """Descriptors of files by path, at most ``limit`` besides those in use; the least recently used close first.

    They count in ``budget``, which may close those that nobody uses. Threads may share it.
    """

    def __init__(self, limit: int = MOST, budget: OpenFiles = OPEN_FILES) -> None:
        self._limit = limit
        self._budget = budget
        self._lock = threading.Lock()
        self._files: dict[str, _Handle] = {}
        budget.join(self)

    @property
    def held(self) -> int:
        """How many descriptors are open."""
        return len(self._files)

    def opened(self, path: str) -> _Use:
        """Return a context that gives a descriptor of the file, which stays open while it is used."""
        return _Use(self, path)

    def _give_back(self, handle: _Handle) -> None:
        with self._lock:
            handle.users -= 1
            excess = len(self._files) - self._limit
        if excess > 0:
            self.close_files([number for _, number, _ in sorted(self.closable())[:excess]])

    def _take(self, path: str) -> _Handle:
        with self._lock:
            handle = self._files.get(path)
            if handle is not None:
                handle.users += 1
                handle.used = tick()
                return handle
        # Without the lock: to open takes time on slow file systems, and may have to close others of these first.
        descriptor = self._budget.opening(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC), 1)
        with self._lock:
            handle = self._files.setdefault(path, _Handle(descriptor, 0, 0))
            if handle.descriptor != descriptor:  # another thread was faster
                os.close(descriptor)
            handle.users += 1
            handle.used = tick()
            return handle

    def closable(self) -> list[tuple[int, int, int]]:
        """Return the descriptors that nobody uses, as (tick of the last use, number, 1)."""
        with self._lock:
            return [(each.used, each.descriptor, 1) for each in self._files.values() if each.users == 0]

    def close_files(self, numbers: list[int], close: Callable[[int], None] = os.close) -> None:
        """Close descriptors, but those that are used again; also when the interpreter ends, and ``os`` is gone."""
        closing = set(numbers)
        with self._lock:
            for path, handle in list(self._files.items()):
                if handle.users == 0 and handle.descriptor in closing:
                    close(self._files.pop(path).descriptor)

    def close(self) -> None:
        """Close all that nobody uses."""
        self.close_files([number for _, number, _ in self.closable()])

    def forget(self) -> None:
        """Close all, after a fork, in the child."""
        self._lock = threading.Lock()
        for handle in self._files.values():
            os.close(handle.descriptor)
        self._files = {}

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Of a circle that is collected at once, a reader may close this afterwards.
        files, self._files = self._files, {}
        for handle in files.values():
            close(handle.descriptor)
