"""A bounded directory of blocks of remote shards, shared by any number of processes.

    CACHE/blocks/used                     bytes that are held, where a limit is set; locked while it changes
    CACHE/blocks/<id of a shard>/NAME     a block, or the index of its documents, once whole
    CACHE/blocks/<id>/NAME.part           locked by the process that fetches it, and by none after a kill

The time of change of a file is no date: it says when the order needs it next. What it needs last is evicted first. A file
that is mapped stays valid after its eviction, so files in use need no locks.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...user_cache import make_private
from .cache import FREE_SHARE

PART = ".part"
_SECONDS_OF_EPOCH = 10_000  # of a time of change, per epoch
_LATEST = 1_000_000.0  # epochs: times of change beyond it do not fit every file system
_PAST = 0.05  # epochs: what was needed so long before is not needed any more
_ABANDONED_SECONDS = 600.0
_RETRY_SECONDS = 0.005
_KEPT_SHARE = 7 / 8  # of the limit, when something must go: so that not every block makes all processes search

log = logging.getLogger("pipeline")

Fetch = Callable[[], bytes | memoryview]


class BlockCache:
    """Files of at most ``limit`` bytes in all below ``directory`` (None: a tenth of the disk stays free)."""

    def __init__(self, directory: Path, limit: int | None = None) -> None:
        self.directory = directory / "blocks"
        self.limit = limit
        self._failed = False
        self._held = 0  # bytes that the last search found

    def find(self, shard: str, name: str) -> int | None:
        """Return a descriptor of a file that is held, which the caller closes; else None."""
        try:
            return os.open(self.directory / shard / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None

    def bring(self, shard: str, name: str, due: float, fetch: Fetch) -> int | bytes | memoryview:
        """Return a descriptor of a file, which the caller closes; where it is not held it is made of what ``fetch`` returns.

        However many processes ask at once, one fetches. Where the disk takes nothing, what was fetched is returned itself,
        and a warning says so once. ``due`` is when the order needs the file, in epochs.
        """
        while True:
            found = self.find(shard, name)
            if found is not None:
                return found
            try:
                part = self._claim(shard, name)
            except OSError as error:
                self._warn(error)
                return fetch()
            if part is None:  # another process fetches it
                time.sleep(_RETRY_SECONDS)
                continue
            try:
                return self._fill(part, self.directory / shard / name, due, fetch)
            finally:
                os.close(part)

    def _claim(self, shard: str, name: str) -> int | None:
        """Return a locked descriptor of the part of a file; None where another process has it."""
        folder = self.directory / shard
        path = folder / f"{name}{PART}"
        try:
            part = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            make_private(folder)
            part = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(part)
            return None
        except OSError:  # no locks on this file system: two processes may fetch the same
            return part
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(part), os.stat(path)):
                return part
        os.close(part)  # it was completed before it was locked here
        return None

    def _fill(self, part: int, path: Path, due: float, fetch: Fetch) -> int | bytes | memoryview:
        data = fetch()
        try:
            os.ftruncate(part, 0)
            self._reserve(len(data), due, part)
            view, done = memoryview(data), 0
            while done < len(view):
                done += os.pwrite(part, view[done:], done)
            _set_due(part, due)
            found = os.open(f"{path}{PART}", os.O_RDONLY | os.O_CLOEXEC)  # once it has its name, others may evict it
            try:
                os.replace(f"{path}{PART}", path)
            except OSError:
                os.close(found)
                raise
            return found
        except OSError as error:
            with suppress(OSError):
                os.unlink(f"{path}{PART}")
            self._warn(error)
            return data

    def discard(self, shard: str, name: str) -> None:
        """Remove a file that is damaged."""
        with suppress(OSError):
            os.unlink(self.directory / shard / name)

    def trim(self) -> None:
        """Bring what other runs left within the limit."""
        if self.limit is not None and self.directory.is_dir():
            with suppress(OSError):
                self._reserve(0, 0.0)

    def _warn(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            log.warning(
                "%s: cannot hold blocks: %s; they are read through memory and fetched again by the next run; free the disk, "
                "lower cache_limit, or give another cache_dir",
                self.directory,
                error,
            )

    # Room

    def _reserve(self, size: int, now: float, part: int | None = None) -> None:
        """Make room for ``size`` bytes, which ``part`` takes at once; `OSError` where there is none.

        Without a part all is counted anew, since runs without a limit do not count.
        """
        if self.limit is not None and size > self.limit:
            raise OSError(errno.ENOSPC, f"{size:,} bytes are more than the whole cache_limit of {self.limit:,}")
        if self.limit is None:
            disk = shutil.disk_usage(self.directory)
            spare = disk.free - int(FREE_SHARE * disk.total)
            if spare < size and self._evict(now, lambda held: held + spare - size) + spare < size:
                raise OSError(errno.ENOSPC, "a tenth of the disk stays free")
            return
        with self._counted() as counter:
            used = int(os.pread(counter, 32, 0) or b"0") + size
            if used > self.limit or part is None:
                most, limit = int(self.limit * _KEPT_SHARE) - size, self.limit
                gone = self._evict(now, lambda held: most if held + size > limit else held)
                used = self._held - gone + size
            os.ftruncate(counter, 0)
            os.pwrite(counter, str(used).encode(), 0)
            if part is not None:
                os.ftruncate(part, size)  # so that another thread counts it, which searches while it is written

    @contextmanager
    def _counted(self) -> Iterator[int]:
        make_private(self.directory)
        counter = os.open(self.directory / "used", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with suppress(OSError):  # without locks the count drifts, until the next search sets it right
                fcntl.flock(counter, fcntl.LOCK_EX)
            yield counter
        finally:
            os.close(counter)

    def _evict(self, now: float, target: Callable[[int], int]) -> int:
        """Remove what the order needs last until no more than ``target(held)`` bytes are held; return the bytes removed."""
        found = []
        for folder in os.scandir(self.directory):
            if folder.is_dir():
                for entry in os.scandir(folder):
                    with suppress(FileNotFoundError):
                        info = entry.stat()
                        found.append((_worth(entry.name, info, now), info.st_size, entry.path))
        self._held = sum(size for _, size, _ in found)
        left, wanted = self._held, target(self._held)
        for worth, size, path in sorted(found, reverse=True):
            if left <= wanted or worth < 0:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)
            left -= size
        return self._held - left


def shard_id(*marks: object) -> str:
    """Return the folder of a shard, from what tells its contents from any other's."""
    return hashlib.blake2b(repr(marks).encode(), digest_size=16).hexdigest()


def _set_due(file: int | Path, due: float) -> None:
    seconds = int(min(max(due, 0.0), _LATEST) * _SECONDS_OF_EPOCH * 1e9)
    os.utime(file, ns=(seconds, seconds))


def _worth(name: str, info: os.stat_result, now: float) -> float:
    """Return in how many epochs a file is needed: the largest goes first; below 0 is what another process writes."""
    if name.endswith(PART):
        return float("inf") if time.time() - info.st_ctime > _ABANDONED_SECONDS else -1.0
    due = info.st_mtime / _SECONDS_OF_EPOCH - now
    return _LATEST if due < -_PAST else max(0.0, due)
