"""A bounded directory of downloaded objects, shared by any number of processes.

    CACHE/<id>/lock         held exclusively while the object is fetched or removed, shared while it is in use;
                            its time of change is the time of the last use
    CACHE/<id>/plan         size and version of what is being fetched
    CACHE/<id>/part         what has come so far
    CACHE/<id>/ahead        fetched ahead of need, and not used yet
    CACHE/<id>/<NAME>       the object, once whole

Locks are the kernel's (flock) and end with the process, however it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ...errors import ConfigError, StorageError
from ...notices import warn
from ...user_cache import make_private

LOCK, PLAN, PART, AHEAD = "lock", "plan", "part", "ahead"
FREE_SHARE = 0.1  # of the disk, kept free where no limit is set


class Entry(NamedTuple):
    """What is to be held: its ``name``, ``size`` in bytes and ``version``; objects that differ in any have two places."""

    url: str
    name: str
    size: int
    version: str

    @property
    def id(self) -> str:
        return hashlib.blake2b(repr(tuple(self)).encode(), digest_size=16).hexdigest()


class Lease:
    """A whole object in the cache, safe from eviction until `close`, or until the process ends."""

    def __init__(self, path: Path, lock: BinaryIO | None = None) -> None:
        self.path = path
        self._lock = lock

    def close(self) -> None:
        """Let the object be evicted; its path may be gone at any time from here on."""
        if self._lock is not None:
            # Closed, not unlocked: in a forked child an unlock would end the parent's lease too.
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CacheFull(Exception):
    """Nothing more can be evicted; ``held`` bytes are in use."""

    def __init__(self, held: int) -> None:
        super().__init__(held)
        self.held = held


_RETRY_SECONDS = 0.01


def disk_space(directory: Path) -> tuple[int, int]:
    """Return how many bytes the disk of a directory has, and how many of them are free."""
    usage = shutil.disk_usage(directory)
    return usage.total, usage.free


class Cache:
    """Objects under ``directory``, at most ``limit`` bytes of them; the least recently used is evicted first.

    Without a limit, a tenth of the disk stays free. Objects that were fetched ahead and not used yet are evicted after
    those that were used.

    An object on which a process holds a lease is never evicted. If all are in use, a demanded object is fetched all the
    same, with a warning that names the limit it needs; an object larger than the limit raises ``ConfigError``.
    """

    def __init__(
        self,
        directory: str | Path,
        limit: int | None = None,
        disk_space: Callable[[Path], tuple[int, int]] = disk_space,
    ) -> None:
        if limit is not None and limit < 1:
            raise ConfigError(f"cache_limit must be 1 byte or more, or None for no limit, got {limit}")
        self.directory = Path(directory)
        self.limit = limit
        self._disk_space = disk_space

    def lease(self, entry: Entry, fetch: Callable[[Path], None], *, spare: bool = False) -> Lease:
        """Return a lease on an object, calling ``fetch(part)`` to complete the file ``part`` where it is not held yet.

        ``part`` may hold what an earlier, interrupted fetch of the same version left. However many processes ask at
        once, one fetches. ``spare`` is for what is fetched ahead of need: it pushes out neither what is in use nor what
        else was fetched ahead, but raises `CacheFull`.
        """
        if self.limit is not None and entry.size > self.limit:
            raise ConfigError(
                f"{entry.name}: {entry.size:,} bytes, more than the whole cache_limit of {self.limit:,}; raise the limit"
            )
        folder = self.directory / entry.id
        final = folder / entry.name
        while True:
            lock = _open_lock(folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
                if not (_is_current(lock, folder) and _is_whole(final, entry.size)):
                    # Never wait for the exclusive lock: who fetches meanwhile keeps a shared one for as long as its lease.
                    fcntl.flock(lock, fcntl.LOCK_UN)
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        lock.close()
                        time.sleep(_RETRY_SECONDS)
                        continue
                    if _is_current(lock, folder) and not _is_whole(final, entry.size):
                        self._fetch(entry, folder, fetch, spare)
                    fcntl.flock(lock, fcntl.LOCK_SH)
                # The exclusive lock is released before the shared one is held: another process may act in between.
                if _is_current(lock, folder) and _is_whole(final, entry.size):
                    os.utime(lock.fileno())
                    if not spare:
                        (folder / AHEAD).unlink(missing_ok=True)
                    return Lease(final, lock)
            except BaseException:
                lock.close()
                raise
            lock.close()

    def trim(self) -> None:
        """Evict what other runs left until the rest is within the limit."""
        if self.limit is not None and self.directory.is_dir():
            with suppress(OSError), _exclusive(self.directory / LOCK):
                sizes = {folder: _held(folder) for folder in _folders(self.directory)}
                self._evict(sizes, sum(sizes.values()), self.limit)

    def remove(self, entry: Entry) -> None:
        """Remove an object that no process uses."""
        _evict(self.directory / entry.id)

    def _fetch(self, entry: Entry, folder: Path, fetch: Callable[[Path], None], spare: bool) -> None:
        part, plan = folder / PART, folder / PLAN
        wanted = json.dumps({"size": entry.size, "version": entry.version})
        if not plan.exists() or plan.read_text() != wanted:
            part.unlink(missing_ok=True)
        try:
            self._reserve(entry, plan, wanted, spare)
            fetch(part)
        except CacheFull:
            _remove(folder)
            raise
        except OSError as error:
            raise StorageError(
                f"{self.directory}: cannot hold {entry.name} ({entry.size:,} bytes): {error}; free the disk, lower "
                "cache_limit, or give another cache_dir"
            ) from error
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        if spare:
            (folder / AHEAD).touch()
        os.replace(part, folder / entry.name)
        plan.unlink()

    def capacity(self) -> int:
        """Return how many bytes of objects the cache can hold."""
        make_private(self.directory)
        return self._limit_now(_folders(self.directory))

    def _limit_now(self, folders: list[Path]) -> int:
        if self.limit is not None:
            return self.limit
        total, free = self._disk_space(self.directory)
        return sum(_held(folder, planned=False) for folder in folders) + free - int(FREE_SHARE * total)

    def _evict(self, sizes: dict[Path, int], total: int, limit: int, *, spare: bool = False) -> int:
        """Evict objects until no more than ``limit`` bytes of ``total`` are left; return those left."""
        for folder in sorted(sizes, key=_worth):
            if total <= limit or (spare and _is_ahead(folder)):
                break
            if _evict(folder):
                total -= sizes[folder]
        return total

    def _reserve(self, entry: Entry, plan: Path, wanted: str, spare: bool) -> None:
        """Evict until what is held, what is being fetched and this object are within the limit, and put it on record."""
        with _exclusive(self.directory / LOCK):
            folders = _folders(self.directory)
            sizes = {folder: _held(folder) for folder in folders if folder != plan.parent}
            total = sum(sizes.values()) + entry.size
            # Read-ahead leaves room for one object that a reader waits for.
            limit = self._limit_now(folders) - (entry.size if spare else 0)
            total = self._evict(sizes, total, limit, spare=spare)
            if total > limit and spare:
                raise CacheFull(total - entry.size)
            plan.write_text(wanted)
        if total > limit:
            warn(
                f"{self.directory}: {total:,} bytes are needed at once, more than the cache_limit of {limit:,}; "
                f"set cache_limit to {total:,} or more, or lower window, lanes or max_open_shards"
            )


def _open_lock(folder: Path) -> BinaryIO:
    while True:
        try:
            make_private(folder)
            return open(folder / LOCK, "ab")
        except (FileExistsError, FileNotFoundError):  # evicted just now: mkdir raises both, and so does what follows it
            continue


def _is_whole(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _is_current(lock: BinaryIO, folder: Path) -> bool:
    """Whether a lock that was waited for is still the one at its path: eviction removes it."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(folder / LOCK))
    except FileNotFoundError:
        return False


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _folders(directory: Path) -> list[Path]:
    return [Path(entry.path) for entry in os.scandir(directory) if entry.is_dir() and len(entry.name) == 32]


def _worth(folder: Path) -> tuple[bool, float]:
    """What is worth least goes first: the used before what was fetched ahead of need, each by its last use."""
    try:
        return _is_ahead(folder), (folder / LOCK).stat().st_mtime
    except FileNotFoundError:
        return False, 0.0


def _is_ahead(folder: Path) -> bool:
    return (folder / AHEAD).exists()


def _held(folder: Path, *, planned: bool = True) -> int:
    """Return the bytes of an object's folder; one that is being fetched counts as what it will come to."""
    size = whole = 0
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            with suppress(FileNotFoundError):
                size += entry.stat().st_size
    if planned:
        with suppress(FileNotFoundError, ValueError, KeyError):
            whole = json.loads((folder / PLAN).read_text())["size"]
    return max(size, whole)


def _evict(folder: Path) -> bool:
    """Remove an object that no process uses or fetches; return whether it is gone."""
    try:
        lock = open(folder / LOCK, "ab")  # noqa: SIM115 - closed below, after the removal
    except FileNotFoundError:
        return True
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not _is_current(lock, folder):
            return True
        _remove(folder)
    return True


def _remove(folder: Path) -> None:
    """Remove an object whose lock is held; the lock goes last, so that who makes a new one finds the object gone."""
    for entry in os.scandir(folder):
        if entry.name != LOCK:
            os.unlink(entry)
    (folder / LOCK).unlink()
    with suppress(OSError):  # another process made its lock meanwhile
        folder.rmdir()
