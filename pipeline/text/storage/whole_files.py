"""Objects of servers without ranges: each is downloaded once by a process, to a temporary file without a name."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Object:
    place: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_whole: bool = False


class WholeFiles:
    """One temporary file of a process, which holds objects one behind the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file = -1
        self._end = 0
        self._objects: dict[Hashable, _Object] = {}

    def read(self, key: Hashable, size: int, pieces: Callable[[], Iterable[bytes]], start: int, stop: int) -> bytes:
        """Return bytes of an object of ``size`` bytes, all of which ``pieces()`` yields where they are not here yet."""
        with self._lock:
            if self._file < 0:
                with tempfile.TemporaryFile(prefix="shardwright-") as file:
                    self._file = os.dup(file.fileno())
            if key not in self._objects:
                self._objects[key] = _Object(self._end)
                self._end += size
            found = self._objects[key]
        with found.lock:
            if not found.is_whole:
                at = found.place
                for piece in pieces():
                    at += os.pwrite(self._file, piece, at)
                found.is_whole = True
        return os.pread(self._file, stop - start, found.place + start)


WHOLE_FILES = WholeFiles()


def _after_fork() -> None:
    WHOLE_FILES.__init__()  # type: ignore[misc]  # the file of the parent, which writes to it too, is left to it


os.register_at_fork(after_in_child=_after_fork)
