"""The files that the streams of a process keep open: the least recently used close first.

Half of what the process may open is left to others.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

DEFAULT_MAX_OPEN_FILES = 16_384


def allowed_files() -> int:
    """Return how many files the streams of this process may open: half of what the process may."""
    try:
        import resource

        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except ImportError:  # not a Unix system
        allowed = 1024
    return max(8, min(allowed // 2, DEFAULT_MAX_OPEN_FILES)) if allowed > 0 else DEFAULT_MAX_OPEN_FILES


@dataclass(slots=True)
class _File:
    descriptor: int
    users: int = 0


class OpenFiles:
    """Descriptors of files by the number of their owner and their path. Threads may share it."""

    def __init__(self) -> None:
        self._close = os.close  # also when the interpreter ends, and ``os`` is gone
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._files: OrderedDict[tuple[int, str], _File] = OrderedDict()  # the least recently used first
        self._limit = DEFAULT_MAX_OPEN_FILES
        self._gone: deque[int] = deque()  # owners whose files are to be closed
        self._closing: set[int] = set()  # of them, those that use some still

    def __len__(self) -> int:
        return len(self._files)

    def add_owner(self, owner: object) -> int:
        """Return a number for an owner, whose files close when nothing refers to it any more."""
        number = next(self._numbers)
        weakref.finalize(owner, self.close, number).atexit = False
        return number

    @contextmanager
    def opened(self, owner: int, path: str, limit: int) -> Iterator[int]:
        """Give a descriptor, which stays open while it is used; others close until at most ``limit`` are open."""
        key = owner, path
        file = self._take(key, limit)
        try:
            yield file.descriptor
        finally:
            with self._lock:
                file.users -= 1
                if file.users == 0 and owner in self._closing:
                    self._close(self._files.pop(key).descriptor)

    def close(self, owner: int) -> None:
        """Close the files of an owner, those that are used now afterwards."""
        self._gone.append(owner)
        self._close_gone()

    def _close_gone(self) -> None:
        # The garbage collector may call this in a thread that has the lock: then they close at the next use of any file.
        while self._gone and self._lock.acquire(blocking=False):
            try:
                self._closing |= {self._gone.popleft() for _ in range(len(self._gone))}
                own = [(key, file) for key, file in self._files.items() if key[0] in self._closing]
                for key in [key for key, file in own if file.users == 0]:
                    self._close(self._files.pop(key).descriptor)
                self._closing = {key[0] for key, file in own if file.users}
            finally:
                self._lock.release()

    def _take(self, key: tuple[int, str], limit: int) -> _File:
        if self._gone:
            self._close_gone()
        with self._lock:
            if (file := self._files.get(key)) is not None:
                self._files.move_to_end(key)
                file.users += 1
                return file
        self._make_room(min(limit, self._limit, allowed_files()) - 1)
        descriptor = self._open(key[1])  # without the lock: on slow file systems it takes time
        with self._lock:
            file = self._files.setdefault(key, _File(descriptor))
            if file.descriptor != descriptor:  # another thread was faster
                os.close(descriptor)
            file.users += 1
            return file

    def _make_room(self, limit: int) -> None:
        """Close the least recently used that nobody uses, until at most ``limit`` are open."""
        with self._lock:
            if len(self._files) > limit:
                for key in [key for key, file in self._files.items() if file.users == 0][: len(self._files) - limit]:
                    self._close(self._files.pop(key).descriptor)

    def _open(self, path: str) -> int:
        """Open a file; where others hold too many, keep to half of what is open now."""
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        self._limit = max(8, len(self._files) // 2)
        self._make_room(self._limit)
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            error.add_note(
                f"this process may open {2 * allowed_files()} files, and others than its streams hold most; raise ulimit -n"
            )
            raise

    def after_fork(self) -> None:
        """Close what a child inherited: locks may be held by threads that are not there."""
        self._lock = threading.Lock()
        self._gone.clear()
        self._closing.clear()
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()


OPEN_FILES = OpenFiles()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=OPEN_FILES.after_fork)
