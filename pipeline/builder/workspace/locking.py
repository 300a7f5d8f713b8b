"""One build at a time in a work directory: by a lock of the kernel or, on file systems without locks, by a lease.

A kernel lock on ``.build/lock`` ends with its process, however that ends. Lustre mounted without ``flock`` and some NFS
have none: there ``.build/lease`` names the process that holds the directory. It appears whole or not at all (a hard
link). A lease whose process is gone is taken over on the machine that wrote it; elsewhere it is unknown whether it is
gone, so the error names the file to remove. Either kind of holder writes its own file before it looks for the other
kind, since one directory may be mounted with locks on some machines and without them on others.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, TypedDict, cast

from ...atomic import temporary_path
from ...errors import BuildError
from ..limits import DEFAULT_LIMITS

LOCK_NAME, LEASE_NAME = "lock", "lease"
_HELD = {errno.EACCES, errno.EAGAIN}
_UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}
_EXCLUSIVE = fcntl.LOCK_EX | fcntl.LOCK_NB
_guard = threading.Lock()
_taken: set[tuple[int, str]] = set()  # process and directory: record locks tell no threads of a process apart

Lock = Callable[[Any, int], object]


class Holder(TypedDict, total=False):
    """What is known of the process that holds a directory: its number, when it ``started``, and its machine."""

    process: int
    started: int | None
    machine: str
    host: str


@contextmanager
def locked(work: Path, *, lock: Lock = fcntl.lockf, patience: float = DEFAULT_LIMITS.lock_seconds) -> Iterator[None]:
    """Hold the work directory, which is made where it is missing, for this thread alone until the block ends.

    The lock is removed then, and so are the work directory and its parent if they are empty and were made here.
    ``lock`` locks a file as ``fcntl.lockf`` does: record locks, because a forked worker that outlives its parent by a
    moment would inherit a ``flock``. Raises ``BuildError`` where another one holds the directory for longer than
    ``patience`` seconds, or where it cannot be written.
    """
    made, mine = not work.parent.exists(), (os.getpid(), os.path.realpath(work))
    deadline = time.monotonic() + patience
    while True:
        try:
            work.mkdir(parents=True, exist_ok=True)
            with _guard:
                if mine in _taken:  # asked first: to read the file of a lock and close it ends the lock
                    raise _HeldError(_works_here(work, _this_process(), "wait for it"))
                file = _take(work, lock)
                _taken.add(mine)
            break
        except _HeldError as error:
            if time.monotonic() > deadline:
                raise BuildError(str(error)) from None
            time.sleep(0.1)
        except OSError as error:
            # A build that ends removes its directory. Then mkdir raises FileExistsError, and all else FileNotFoundError.
            passing = isinstance(error, FileNotFoundError | FileExistsError)
            if not passing or time.monotonic() > deadline:
                raise BuildError(
                    f"{work.parent}: cannot be written: {error.strerror}; choose another --output"
                ) from error
    try:
        yield
    finally:
        # The file is removed before its lock: a process that waits for it finds it gone, and tries again.
        (work / (LEASE_NAME if file is None else LOCK_NAME)).unlink(missing_ok=True)
        if file is not None:
            file.close()
        with suppress(OSError):  # not empty: the next run continues from what it holds
            work.rmdir()
            if made:
                work.parent.rmdir()
        _taken.discard(mine)


class _HeldError(Exception):
    """Another process holds the directory."""


def _take(work: Path, lock: Lock) -> IO[str] | None:
    """Try once: return the locked file, or None where a lease is held; raise `_HeldError` where another holds either."""
    if not _has_locks(work, lock):
        _take_lease(work)
        try:
            holder = _read(work / LOCK_NAME)
            if holder and not _is_gone(holder):
                raise _unknown(work / LOCK_NAME, holder)
        except BaseException:
            (work / LEASE_NAME).unlink()
            raise
        return None
    file = open(work / LOCK_NAME, "a+")  # noqa: SIM115 - stays open for as long as the lock is held
    try:
        _lock_file(file, work, lock)
    except BaseException:
        file.close()
        raise
    return file


def _lock_file(file: IO[str], work: Path, lock: Lock) -> None:
    path = work / LOCK_NAME
    try:
        lock(file, _EXCLUSIVE)
    except OSError as error:
        if error.errno not in _HELD:
            raise
        raise _HeldError(_works_here(work, _read(path), "wait for it, end it")) from None
    if not os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
        raise FileNotFoundError(path)  # its holder removed it, and a third process made another
    file.truncate(0)
    file.write(json.dumps(_this_process()) + "\n")
    file.flush()
    try:
        while holder := _read(work / LEASE_NAME):  # again, because another process may hold it by now
            _remove_stale(work / LEASE_NAME, holder)
    except BaseException:
        path.unlink()
        raise


def _has_locks(work: Path, lock: Lock) -> bool:
    """Whether the file system locks files; asked of a file of this process, so that no lock is touched."""
    probe = temporary_path(work / "probe")
    try:
        with open(probe, "w") as file:
            lock(file, _EXCLUSIVE)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return False
        raise
    finally:
        probe.unlink(missing_ok=True)
    return True


def _take_lease(work: Path) -> None:
    path, mine = work / LEASE_NAME, temporary_path(work / LEASE_NAME)
    holder = _read(path)
    if holder:
        _remove_stale(path, holder)
    try:
        mine.write_text(json.dumps(_this_process()) + "\n")
        os.link(mine, path)
    except FileExistsError:
        raise _HeldError(_works_here(work, _read(path), "wait for it, end it")) from None
    finally:
        mine.unlink(missing_ok=True)


def _remove_stale(path: Path, holder: Holder) -> None:
    """Remove a lease whose process is gone; `_HeldError` where it runs, or where this machine cannot know.

    Only one process at a time removes, and it looks again first: it never removes a lease that is younger than ``holder``.
    """
    if not _is_gone(holder):
        raise _unknown(path, holder)
    guard = path.with_name(f"{path.name}.removal")
    try:
        os.close(os.open(guard, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        raise _HeldError(
            f"{path.parent.parent}: another build takes over what a killed one held; if none runs, remove {guard}, then "
            "run the same command again"
        ) from None
    try:
        if _read(path) == holder:
            path.unlink()
    finally:
        guard.unlink()


def _unknown(path: Path, holder: Holder) -> _HeldError:
    cure = "wait for it, end it"
    if holder.get("machine") != _this_process()["machine"]:
        cure = (
            f"this file system has no locks to tell whether it still runs: if it does not, remove {path} and run the same "
            "command again; else wait for it"
        )
    return _HeldError(_works_here(path.parent, holder, cure))


def _works_here(work: Path, holder: Holder, cure: str) -> str:
    host = holder.get("host", platform.node())
    where = "" if host == platform.node() else f" on {host}"
    return (
        f"{work.parent}: another build works here (process {holder.get('process', 'unknown')}{where}); {cure}, or choose "
        "another --output"
    )


def _read(path: Path) -> Holder:
    """Return what a lock or lease says of its holder; nothing where it is not there or not written yet."""
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return cast(Holder, value) if isinstance(value, dict) else {}


def _is_gone(holder: Holder) -> bool:
    """Whether a process certainly runs no more; one of another machine is never known to be gone."""
    process = holder.get("process")
    if holder.get("machine") != _this_process()["machine"] or not isinstance(process, int):
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    started = _started(process)
    return started is not None and started != holder.get("started")  # another process has its number by now


def _this_process() -> Holder:
    process = os.getpid()
    return {"process": process, "started": _started(process), "machine": _machine(), "host": platform.node()}


def _machine() -> str:
    """Return what tells where process numbers mean the same: the host, its boot and the namespace of its processes."""
    found = [platform.node()]
    with suppress(OSError):
        found.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        found.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(found)


def _started(process: int) -> int | None:
    """Return when a process started, in clock ticks since the boot; None where that cannot be known."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return int(status.rpartition(")")[2].split()[19])  # the name in parentheses may hold spaces
