"""Lets one build at a time work in a directory, by a lock of the kernel on ``.build/lock``.

The lock ends with its process, even a killed one, and with the workers forked from it, which then end at once.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ...errors import BuildError
from ...shards.manifest import LOCK_NAME
from ..limits import DEFAULT_LIMITS

_UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}


@contextmanager
def locked(
    work: Path,
    *,
    lock: bool = True,
    patience: float = DEFAULT_LIMITS.lock_seconds,
    cure: str = "wait for it, end it, or choose another --output",
    elsewhere: str = "choose another --output",
) -> Iterator[None]:
    """Lock the work directory for this caller until the block ends. A missing directory is made.

    At the end the lock's file is removed, with the work directory if it is empty, and with its parent if this call made it.
    Without ``lock``, nothing excludes other builds. Raises ``BuildError`` if another build holds the lock for longer than
    ``patience`` seconds, if the file system has no locks, or if the directory cannot be written. The message ends with ``cure``
    if the directory is locked, with ``elsewhere`` if it cannot be written.
    """
    made = not work.parent.exists()
    deadline = time.monotonic() + patience
    while True:
        try:
            file = _open_locked(work, lock)
            break
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise BuildError(f"{work.parent}: another build or redaction works here ({error}); {cure}") from None
            time.sleep(0.1)
        except OSError as error:
            # A build that ends removes its directory. Then mkdir raises FileExistsError, and all else FileNotFoundError.
            passing = isinstance(error, FileNotFoundError | FileExistsError)
            if not passing or time.monotonic() > deadline:
                raise BuildError(f"{work.parent}: cannot be written: {error.strerror}; {elsewhere}") from error
    try:
        yield
    finally:
        # The file is removed before the lock is released: a process that waits for the lock notices, and tries again.
        (work / LOCK_NAME).unlink(missing_ok=True)
        file.close()
        with suppress(OSError):  # not empty: the next run continues from what it holds
            work.rmdir()
            if made:
                work.parent.rmdir()


def _open_locked(work: Path, lock: bool) -> IO[str]:
    """Return the locked file, after one try. Raises ``BlockingIOError``, which names the process that holds the lock."""
    work.mkdir(parents=True, exist_ok=True)
    file = open(work / LOCK_NAME, "a+")  # noqa: SIM115 - it stays open as long as the lock
    try:
        if lock:
            _lock_file(file)
            if not os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
                raise FileNotFoundError(file.name)  # it was removed, and another process may have made a new one
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _lock_file(file: IO[str]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            file.seek(0)
            raise BlockingIOError(file.read().strip() or "process unknown") from None
        if error.errno in _UNSUPPORTED:
            raise BuildError(
                f"{file.name}: this file system has no locks ({error.strerror}), so another build could work here at the "
                "same time. Make sure that no other build works here and give --no-lock, or work on another file system"
            ) from None
        raise
