"""A bounded directory of blocks and whole objects, shared by any number of processes.

    CACHE/objects/used              bytes in use, and the bound where none is set; locked while they change
    CACHE/objects/<id>/NAME         a block, an index or a whole object, once complete
    CACHE/objects/<id>/NAME.part    locked by the process that fetches it, and by none after a kill
    CACHE/objects/<id>/NAME.sha256  the hash of a whole object

The time of change of a file is that of its last use. The least recently used is evicted first. A whole object is locked while
it is in use, and then it is not evicted; a block is read at once, which an eviction does not disturb. Locks are the kernel's
(flock) and end with the process, however it ends.
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
from typing import BinaryIO

from ..errors import ConfigError, StorageError
from ..notices import warn
from ..user_cache import make_private

FREE_SHARE = 0.1  # of the disk, which stays free where no limit is set
_KEPT_SHARE = 7 / 8  # of the limit, when something must go: so that not every file makes a process search
_PART, _HASH = ".part", ".sha256"
_POLL_SECONDS = 0.01

log = logging.getLogger("pipeline")


class Lease:
    """A whole object in the cache, which is not evicted until `close`, or until the process ends."""

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


def disk_space(directory: Path) -> tuple[int, int]:
    """Return how many bytes the disk of a directory has, and how many of them are free."""
    usage = shutil.disk_usage(directory)
    return usage.total, usage.free


class Cache:
    """Files of at most ``limit`` bytes in all below ``directory``; None: a tenth of the disk stays free.

    Where others take more of the disk than that, the cache stays as large as it is. A process waits while another fetches
    the same file, but not for one that has written nothing for ``patience`` seconds.
    """

    def __init__(
        self,
        directory: str | Path,
        limit: int | None = None,
        *,
        patience: float = 60.0,
        disk_space: Callable[[Path], tuple[int, int]] = disk_space,
    ) -> None:
        if limit is not None and limit < 1:
            raise ConfigError(f"cache_limit must be 1 byte or more, or None for no limit, got {limit}")
        self.directory = Path(directory)
        self.limit = limit
        self._objects = self.directory / "objects"
        self._patience = patience
        self._disk_space = disk_space
        self._has_warned = False

    def read(
        self, id: str, name: str, fetch: Callable[[], bytes | memoryview], is_sound: Callable[[bytes], bool]
    ) -> bytes | memoryview:
        """Return what a file holds, or where it is not there, or not sound, what ``fetch`` returns, which is kept.

        However many processes ask at once, one fetches. Where the disk takes nothing, a warning says so once.
        """
        path = self._objects / id / name
        while True:
            with suppress(OSError), open(path, "rb") as file:
                found = file.read()
                if is_sound(found):
                    os.utime(file.fileno())
                    return found
            try:
                part = self._claim(path)
            except OSError as error:
                self._warn(error)
                return fetch()
            if part is None:
                return fetch()
            with part:
                if path.exists() and is_sound(kept := path.read_bytes()):  # completed while this one waited
                    _discard(part, path)
                    return kept
                try:
                    data = fetch()
                    try:
                        if self._make_room(len(data), part):
                            raise OSError(errno.ENOSPC, "no room within the limit")
                        part.write(data)
                        part.flush()
                        _complete(part, path)
                    except OSError as error:
                        self._warn(error)
                    return data
                finally:
                    _discard(part, path)

    def lease(self, id: str, name: str, size: int, fetch: Callable[[Path], str]) -> Lease:
        """Return a lease on a whole object, calling ``fetch(path)`` to write it, and return its sha256, where it is not there.

        A copy that does not have the hash that it had when it was fetched is fetched again, with a warning that names it.
        Where all files are in use, the object is fetched all the same, with a warning that names the limit it needs; one
        that is larger than the limit raises ``ConfigError``.
        """
        if self.limit is not None and size > self.limit:
            raise ConfigError(
                f"{name}: {size:,} bytes, more than the whole cache_limit of {self.limit:,}; raise the limit"
            )
        path = self._objects / id / name
        while (lease := self._held(path)) is None:
            try:
                part = self._claim(path, must=True)
                assert part is not None
                with part:
                    if path.exists():
                        _discard(part, path)
                    else:
                        self._fetch(part, path, size, fetch)
            except OSError as error:
                raise StorageError(
                    f"{self.directory}: cannot hold {name} ({size:,} bytes): {error}; free the disk, lower cache_limit, or "
                    "give another cache_dir"
                ) from error
        return lease

    def trim(self) -> None:
        """Remove what other runs left beyond the limit."""
        if self.limit is not None and self._objects.is_dir():
            with suppress(OSError):
                self._make_room(0)

    def remove(self, id: str) -> None:
        """Remove an object, and what was made of it."""
        shutil.rmtree(self._objects / id, ignore_errors=True)

    def capacity(self) -> int:
        """Return how many bytes of objects the cache can hold."""
        make_private(self._objects)
        return self.limit if self.limit is not None else self._held_bytes() + max(0, self._spare())

    # One process fetches

    def _claim(self, path: Path, *, must: bool = False) -> BinaryIO | None:
        """Return the part of a file, locked, once no other process has it.

        None where another has it for longer than ``patience`` without writing; with ``must``, the part is then taken from it.
        """
        place = Path(f"{path}{_PART}")
        while True:
            try:
                part = os.fdopen(os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
            except FileNotFoundError:
                make_private(path.parent)
                continue
            try:
                fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_stuck = time.time() - os.fstat(part.fileno()).st_mtime > self._patience
                part.close()
                if is_stuck and not must:
                    return None
                if is_stuck:
                    place.unlink(missing_ok=True)
                time.sleep(_POLL_SECONDS)
                continue
            except OSError:  # no locks on this file system: two processes may fetch the same
                pass
            if _is_at(part, place):
                part.truncate(0)
                os.utime(part.fileno())
                return part
            part.close()  # it was completed before it was locked here

    def _fetch(self, part: BinaryIO, path: Path, size: int, fetch: Callable[[Path], str]) -> None:
        place = Path(f"{path}{_PART}")
        try:
            if over := self._make_room(size, part):
                warn(
                    f"{self.directory}: {over:,} bytes are needed at once, more than the cache_limit of {over - size:,}; "
                    f"set cache_limit to {over:,} or more, or lower window, lanes or max_open_shards"
                )
            Path(f"{path}{_HASH}").write_text(fetch(place))
            os.fsync(part.fileno())
            _complete(part, path)
        finally:
            _discard(part, path)

    def _held(self, path: Path) -> Lease | None:
        """Return a lease on a file that is there and has its hash, else None."""
        try:
            lock = open(path, "rb")  # noqa: SIM115 - the lease closes it
        except FileNotFoundError:
            return None
        with suppress(OSError):  # no locks on this file system
            fcntl.flock(lock, fcntl.LOCK_SH)
        if _is_at(lock, path):  # else it was evicted before it was locked here
            found = hashlib.file_digest(lock, "sha256").hexdigest()
            with suppress(OSError):
                if (known := Path(f"{path}{_HASH}").read_text()) == found:
                    os.utime(lock.fileno())
                    return Lease(path, lock)
                warn(f"{path}: damaged in the cache: sha256 {found}, but it had {known}; it is fetched again")
            path.unlink(missing_ok=True)
        lock.close()
        return None

    # Room

    def _make_room(self, size: int, part: BinaryIO | None = None) -> int:
        """Evict until ``size`` more bytes are within the limit, and let the part take them.

        Return 0, or the bytes that are in use together with these where they are more than the limit.
        """
        over = 0
        with self._counted() as counter:
            used, bound = map(int, (os.pread(counter, 64, 0) or b"0 0").split())
            if self.limit is not None:
                bound = self.limit
            elif self._spare() >= size:
                bound = 0
            elif not bound:
                bound = self._held_bytes() + max(0, self._spare())
            limited = bool(bound) or self._spare() < size
            if limited and (used + size > bound or part is None):
                used = self._evict(bound, size)
                over = used + size if used + size > bound else 0
            if part is not None:
                used += size
                with suppress(OSError):  # so that a search in another process counts it
                    os.ftruncate(part.fileno(), size)
                part.seek(0)
            os.pwrite(counter, f"{used} {bound}".ljust(64).encode(), 0)
        return over

    @contextmanager
    def _counted(self) -> Iterator[int]:
        make_private(self._objects)
        counter = os.open(self._objects / "used", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with suppress(OSError):  # without locks the count drifts, until the next search
                fcntl.flock(counter, fcntl.LOCK_EX)
            yield counter
        finally:
            os.close(counter)

    def _spare(self) -> int:
        total, free = self._disk_space(self._objects)
        return free - int(FREE_SHARE * total)

    def _files(self) -> list[tuple[float, int, str]]:
        """Return time of use, bytes and path of each file, those of fetches under way too."""
        found = []
        for folder in os.scandir(self._objects):
            if folder.is_dir():
                for entry in os.scandir(folder):
                    if entry.name.endswith(_HASH):
                        continue
                    with suppress(FileNotFoundError):
                        info = entry.stat()
                        found.append((info.st_mtime, info.st_size, entry.path))
        return found

    def _held_bytes(self) -> int:
        return sum(size for _, size, _ in self._files())

    def _evict(self, bound: int, size: int) -> int:
        """Remove the least recently used files until ``size`` more bytes are within the bound; return the bytes left."""
        files = sorted(self._files())
        left = sum(size for _, size, _ in files)
        if left + size > bound:
            for _, held, path in files:
                if left + size <= bound * _KEPT_SHARE:
                    break
                if _remove_unused(path):
                    left -= held
        return left

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: cannot hold blocks: %s; they are read through memory and fetched again by the next run; free the disk, "
                "lower cache_limit, or give another cache_dir",
                self.directory,
                error,
            )


def object_id(*marks: object) -> str:
    """Return the folder of an object, from what tells its contents from any other's."""
    return hashlib.blake2b(repr(marks).encode(), digest_size=16).hexdigest()


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is the one at a path, which others may have replaced or removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _complete(part: BinaryIO, path: Path) -> None:
    """Give a part its name, unless it was taken from this process."""
    if _is_at(part, place := Path(f"{path}{_PART}")):
        os.replace(place, path)


def _discard(part: BinaryIO, path: Path) -> None:
    """Remove a part that was not completed."""
    if _is_at(part, place := Path(f"{path}{_PART}")):
        place.unlink(missing_ok=True)


def _remove_unused(path: str) -> bool:
    """Remove a file, unless a process has it locked; return whether it is gone."""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # no locks on this file system
            pass
        os.unlink(path)
    with suppress(OSError):
        os.unlink(f"{path}{_HASH}")
    return True
