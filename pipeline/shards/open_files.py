"""The files that are open for reading: one budget for the whole process, the least recently used close first."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

_FEWEST, _MOST = 64, 16_384


class OpenFiles:
    """Descriptors of files by path, at most ``limit`` (default: half of what the process may have) besides those in use.

    A process that was forked opens its own.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = default_limit() if limit is None else limit
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._files: OrderedDict[str, list[int]] = OrderedDict()  # path -> descriptor, users

    def __len__(self) -> int:
        return len(self._files)

    @contextmanager
    def opened(self, path: str) -> Iterator[int]:
        """Give a descriptor of the file, which stays open while it is used."""
        entry = self._take(path)
        try:
            yield entry[0]
        finally:
            with self._lock:
                entry[1] -= 1
                self._close_some()

    def forget(self, path: str) -> None:
        """Close a file once nobody uses it: another one may lie under its path."""
        with self._lock:
            entry = self._files.pop(path, None)
            if entry is not None and entry[1] == 0:
                os.close(entry[0])
            elif entry is not None:
                self._files[f"{path}\0{entry[0]}"] = entry  # found by nobody; closed as the others are
                self._files.move_to_end(f"{path}\0{entry[0]}", last=False)

    def _take(self, path: str) -> list[int]:
        with self._lock:
            if self._process != os.getpid():
                self._process, self._files = os.getpid(), OrderedDict()
            entry = self._files.get(path)
            if entry is not None:
                entry[1] += 1
                self._files.move_to_end(path)
                return entry
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # waits on slow file systems, so others must not wait for it
        with self._lock:
            entry = self._files.setdefault(path, [handle, 0])
            if entry[0] != handle:
                os.close(handle)
            entry[1] += 1
            return entry

    def _close_some(self) -> None:
        excess = len(self._files) - self.limit
        if excess <= 0:
            return
        for path in [path for path, (_, users) in self._files.items() if users == 0][:excess]:
            os.close(self._files.pop(path)[0])

    def close(self) -> None:
        """Close the files that nobody uses."""
        with self._lock:
            for path in [path for path, (_, users) in self._files.items() if users == 0]:
                os.close(self._files.pop(path)[0])


def default_limit() -> int:
    """Return half of the files that this process may open, from 64 to 16,384."""
    try:
        import resource

        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except ImportError:  # not a Unix system
        allowed = 1024
    return max(_FEWEST, min(allowed // 2 if allowed > 0 else _MOST, _MOST))
