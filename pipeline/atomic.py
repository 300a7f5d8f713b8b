"""Files that appear under their final name only when they are whole."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from .errors import ConfigError
from .paths import special_kind

_CANNOT_GROW = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")


def temporary_path(path: Path) -> Path:
    """Return a new hidden name beside ``path`` under which the file may be written.

    The name is random, since process numbers of machines that share the directory can be equal.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def is_temporary(path: Path) -> bool:
    """Whether a path has a name that `temporary_path` returns.

    >>> is_temporary(temporary_path(Path("a.tar"))), is_temporary(Path(".notes.tmp"))
    (True, False)
    """
    return _TEMPORARY.fullmatch(path.name) is not None


def sync(handle: int, full: int | None = getattr(fcntl, "F_FULLFSYNC", None)) -> None:
    """Wait until everything written to an open file is on disk.

    On macOS, fsync returns while data is still in the memory of the drive. There, ``full`` is the request that waits for it; not
    every file system supports it.
    """
    if full is not None:
        with suppress(OSError):
            fcntl.fcntl(handle, full)
            return
    os.fsync(handle)


def sync_directory(directory: Path) -> None:
    """Make renames inside ``directory`` survive a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        sync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Yield a binary file that replaces ``path`` when the block ends; if the block raises, the file is removed.

    The bytes are on disk (`sync`) before the rename, and the rename is on disk before the call returns. If ``path`` is a link,
    its target is replaced. Raises ``ConfigError`` if that target is a directory, device or pipe. An ``OSError`` names ``path``.
    """
    name, path = path, Path(os.path.realpath(path))
    if kind := "a directory" if path.is_dir() else special_kind(path):
        raise ConfigError(f"{name} is {kind}, but a file is to be written there; choose another name")
    temporary = temporary_path(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            sync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):  # the file system may not be writable
            temporary.unlink(missing_ok=True)
        name_final(error, temporary, name)
        raise
    sync_directory(path.parent)


def keep_access(old: os.stat_result, new: Path | int) -> None:
    """Give a new file the permissions of an old file, and its owner if this process may."""
    with suppress(PermissionError):
        os.chown(new, old.st_uid, old.st_gid)
    os.chmod(new, stat.S_IMODE(old.st_mode))


def move(source: Path, target: Path) -> None:
    """Replace ``target`` by ``source`` at once, even if they are on different file systems. An ``OSError`` names ``target``."""
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            error.filename = f"{target}"
            raise
        with open(source, "rb") as file, atomic_file(target) as copy:
            keep_access(os.fstat(file.fileno()), copy.fileno())
            shutil.copyfileobj(file, copy)
        source.unlink()
    sync_directory(target.parent)


def name_final(error: BaseException, temporary: Path, final: str | Path) -> None:
    """Make an ``OSError`` name the final path if it names the temporary path, or no path because a file cannot grow."""
    if isinstance(error, OSError):
        named = f"{temporary}" if error.filename is None and error.errno in _CANNOT_GROW else str(error.filename)
        if named.startswith(f"{temporary}"):
            error.filename = f"{final}{named.removeprefix(str(temporary))}"


def read_json(path: Path) -> Any:
    """Return the value in a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: str | Path, value: object) -> None:
    """Write ``value`` as JSON atomically: sorted keys, two spaces, a final newline, no NaN.

    Equal values give equal bytes, whatever the order of their keys.
    """
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    with atomic_file(path) as file:
        file.write(text.encode() + b"\n")
