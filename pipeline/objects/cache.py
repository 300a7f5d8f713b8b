"""A bounded directory of blocks and whole objects, shared by any number of processes.

    CACHE/objects/used              bytes in use, and the bound on them; locked while they change
    CACHE/objects/<id>/NAME         a complete block, index or whole object
    CACHE/objects/<id>/NAME.part    a file that is fetched, locked by its process; after a kill, not locked
    CACHE/objects/<id>/NAME.sha256  the hash of a whole object

The modification time of a file is the time of its last use. The least recently used file is evicted first; a process that has
it open can read on. Locks are the kernel's (flock): they end with their process, even if it is killed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from ..atomic import sync
from ..errors import ConfigError, StorageError
from ..notices import warn
from ..user_cache import make_private

FREE_SHARE = 0.1  # this share of the disk stays free if no limit is set
_KEPT_SHARE = 7 / 8  # an eviction leaves this share of the limit, so that not every new file causes one
_PART, _HASH = ".part", ".sha256"
_POLL_SECONDS = 0.01
_UNBOUNDED = 1 << 62

log = logging.getLogger("pipeline")


def disk_space(directory: Path) -> tuple[int, int]:
    """Return the bytes of a directory's disk, and how many of them are free."""
    usage = shutil.disk_usage(directory)
    return usage.total, usage.free


class Cache:
    """Files of at most ``limit`` bytes in all below ``directory``. If ``limit`` is None, a tenth of the disk stays free.

    If other programs fill that tenth, the cache keeps its size. A process waits while another one fetches the same file,
    unless the other one has written nothing for ``patience`` seconds.
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
        self._sound: set[Path] = set()  # whole objects whose hash this process has compared

    def read_all(
        self,
        id: str,
        names: Sequence[str],
        fetch: Callable[[list[int]], Sequence[bytes | memoryview]],
        is_sound: Callable[[int, bytes], bool],
    ) -> list[bytes | memoryview]:
        """Return the contents of files. One call of ``fetch`` returns those that are missing or not sound, and they are kept.

        ``fetch`` and ``is_sound`` get the numbers of files. If several processes ask for a file at once, one of them fetches.
        All callers must name files in the same order, so that no two processes wait for each other. If the disk cannot be
        written, one warning says so.
        """
        paths = [self._objects / id / name for name in names]
        found: dict[int, bytes | memoryview] = {}

        def look(number: int) -> bool:
            if (kept := _read_sound(paths[number], partial(is_sound, number))) is not None:
                found[number] = kept
            return number in found

        with ExitStack() as claims:
            parts: dict[int, BinaryIO] = {}
            for number in [number for number in range(len(paths)) if not look(number)]:
                try:
                    part = self._claim(paths[number])
                except OSError as error:
                    self._warn(error)
                    continue
                claims.enter_context(part)
                claims.callback(_discard, part, paths[number])
                if not look(number):  # else another process has completed it meanwhile
                    parts[number] = part
            missing = [number for number in range(len(paths)) if number not in found]
            for number, data in zip(missing, fetch(missing) if missing else (), strict=True):
                found[number] = data
                if number in parts:
                    self._keep(parts[number], paths[number], data)
        return [found[number] for number in range(len(paths))]

    def _keep(self, part: BinaryIO, path: Path, data: bytes | memoryview) -> None:
        try:
            if not self._make_room(len(data), part):
                raise OSError(errno.ENOSPC, "no room within the limit")
            part.write(data)
            part.flush()
            _complete(part, path)
        except OSError as error:
            self._warn(error)

    def open(self, id: str, name: str, size: int, fetch: Callable[[Path], str]) -> BinaryIO:
        """Return the open file of a whole object. If it is missing, ``fetch(path)`` writes it and returns its sha256.

        An eviction does not disturb the reader of an open file. If a file no longer has the hash that ``fetch`` returned, it is
        fetched again, with a warning that names it. Raises ``ConfigError`` if the object is larger than the limit.
        """
        if self.limit is not None and size > self.limit:
            raise ConfigError(
                f"{name}: {size:,} bytes, more than the whole cache_limit of {self.limit:,}; raise the limit"
            )
        path = self._objects / id / name
        try:
            while (file := self._open_sound(path)) is None:
                with self._claim(path) as part:
                    try:
                        if not path.exists():
                            self._make_room(size, part)
                            Path(f"{path}{_HASH}").write_text(fetch(Path(f"{path}{_PART}")))
                            sync(part.fileno())
                            _complete(part, path)
                    finally:
                        _discard(part, path)
        except OSError as error:
            raise StorageError(
                f"{self.directory}: cannot keep {name} ({size:,} bytes): {error}; free the disk, lower cache_limit, or "
                "give another cache_dir"
            ) from error
        return file

    def _open_sound(self, path: Path) -> BinaryIO | None:
        """Return the open file of a whole object; None if it is missing, or at its first use here has a wrong hash."""
        try:
            file = open(path, "rb")  # noqa: SIM115 - the caller closes it
        except FileNotFoundError:
            return None
        if path not in self._sound:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            with suppress(OSError):
                if (known := Path(f"{path}{_HASH}").read_text(errors="backslashreplace")) == sha256:
                    self._sound.add(path)
                else:
                    warn(f"{path}: damaged in the cache: sha256 {sha256}, but it had {known}; it is fetched again")
        if path in self._sound:
            os.utime(file.fileno())
            file.seek(0)
            return file
        file.close()
        path.unlink(missing_ok=True)
        return None

    # One process fetches

    def _claim(self, path: Path) -> BinaryIO:
        """Return the part of a file, locked for this process, as soon as no other process holds the lock.

        If the holder writes nothing for ``patience`` seconds, its part is removed, and this process makes a new one.
        """
        name = Path(f"{path}{_PART}")
        while True:
            try:
                part = os.fdopen(os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
            except FileNotFoundError:
                make_private(path.parent)
                continue
            try:
                fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.time() - os.fstat(part.fileno()).st_mtime > self._patience:
                    name.unlink(missing_ok=True)
                part.close()
                time.sleep(_POLL_SECONDS)
                continue
            except OSError:  # no locks on this file system: two processes may fetch one file
                pass
            if _is_at(part, name):
                part.truncate(0)
                os.utime(part.fileno())
                return part
            part.close()  # another process completed it before this one got the lock

    # Room

    def _make_room(self, size: int, part: BinaryIO) -> bool:
        """Evict until ``size`` more bytes are within the bound, reserve them for the part, and return whether they fit.

        The bound is the limit. Without a limit, the bound is the size that the cache has when the disk gets full, until other
        programs free space.
        """
        with self._counter() as counter:
            used, bound = self._counted(os.pread(counter, 64, 0))
            if self.limit is not None:
                bound = self.limit
            elif (spare := self._spare()) >= size:
                bound = _UNBOUNDED
            elif bound == _UNBOUNDED:
                bound = max(0, spare) + self._used()
            if used + size > bound:
                used = self._evict(bound, size)
            used += size
            with suppress(OSError):  # an eviction by another process then counts these bytes
                os.ftruncate(part.fileno(), size)
            part.seek(0)
            os.pwrite(counter, f"{used} {bound}".ljust(64).encode(), 0)
        return used <= bound

    def _counted(self, raw: bytes) -> tuple[int, int]:
        """Return the bytes in use and their bound. If the counter holds no numbers, as after a power cut, files are counted."""
        if not raw:
            return 0, _UNBOUNDED
        try:
            used, bound = map(int, raw.split())
        except ValueError:
            used = bound = -1
        if min(used, bound) >= 0 and used <= _UNBOUNDED:
            return used, bound
        return self._used(), _UNBOUNDED

    @contextmanager
    def _counter(self) -> Iterator[int]:
        make_private(self._objects)
        counter = os.open(self._objects / "used", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with suppress(OSError):  # without locks the count drifts until the next eviction
                fcntl.flock(counter, fcntl.LOCK_EX)
            yield counter
        finally:
            os.close(counter)

    def _spare(self) -> int:
        total, free = self._disk_space(self._objects)
        return free - int(FREE_SHARE * total)

    def _used(self) -> int:
        return sum(bytes for _, bytes, _ in self._files())

    def _files(self) -> list[tuple[float, int, str]]:
        """Return time of use, bytes and path of each file, including those that are being fetched."""
        files = []
        for folder in os.scandir(self._objects):
            if folder.is_dir():
                for entry in os.scandir(folder):
                    if entry.name.endswith(_HASH):
                        continue
                    with suppress(FileNotFoundError):
                        info = entry.stat()
                        files.append((info.st_mtime, info.st_size, entry.path))
        return files

    def _evict(self, bound: int, size: int) -> int:
        """Remove the least recently used files until ``size`` more bytes are within the bound; return the bytes left."""
        files = sorted(self._files())
        left = sum(bytes for _, bytes, _ in files)
        if left + size > bound:
            for _, bytes, path in files:
                if left + size <= bound * _KEPT_SHARE:
                    break
                if _remove(path):
                    left -= bytes
        return left

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: cannot keep blocks: %s; they are read through memory and fetched again by the next run; free the disk, "
                "lower cache_limit, or give another cache_dir",
                self.directory,
                error,
            )


def object_id(*marks: object) -> str:
    """Return the name of an object's folder: a hash of the marks that identify its contents."""
    return hashlib.blake2b(repr(marks).encode(), digest_size=16).hexdigest()


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is still the one at a path: another process may have replaced or removed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _complete(part: BinaryIO, path: Path) -> None:
    """Give a part its final name, unless another process has taken the part over."""
    if _is_at(part, name := Path(f"{path}{_PART}")):
        os.replace(name, path)


def _discard(part: BinaryIO, path: Path) -> None:
    """Remove a part that was not completed."""
    if _is_at(part, name := Path(f"{path}{_PART}")):
        name.unlink(missing_ok=True)


def _remove(path: str) -> bool:
    """Remove a file, unless a process is fetching it; return whether it is gone."""
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


def _read_sound(path: Path, is_sound: Callable[[bytes], bool]) -> bytes | None:
    """Return the contents of a file and set its time of use; None if it is missing or not sound."""
    with suppress(OSError), open(path, "rb") as file:
        data = file.read()
        if is_sound(data):
            os.utime(file.fileno())
            return data
    return None
