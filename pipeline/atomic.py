"""Files that appear under their final name only when they are whole."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from .errors import ConfigError
from .paths import special_kind

_CANNOT_GROW = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")


def temporary_path(path: Path) -> Path:
    """Return a hidden name beside ``path`` under which it may be written; each call returns another.

    Process numbers would not do: machines that share the directory have the same ones.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def is_temporary(path: Path) -> bool:
    """Whether a path has a name that `temporary_path` returns.

    >>> is_temporary(temporary_path(Path("a.tar"))), is_temporary(Path(".notes.tmp"))
    (True, False)
    """
    return _TEMPORARY.fullmatch(path.name) is not None


def sync(handle: int, full: int | None = getattr(fcntl, "F_FULLFSYNC", None)) -> None:
    """Return when what was written to an open file is on disk.

    On macOS, fsync leaves it in the memory of the drive; ``full`` is the request that does not, where a file system knows it.
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
    """Open a binary file that replaces ``path`` when the block ends, and vanishes if it raises.

    The bytes are on disk (`sync`) before the rename, the rename before the block returns. A link stays: the file that it
    leads to is replaced. Raises ``ConfigError`` where that is a directory, a device or a pipe. An ``OSError`` names ``path``.
    """
    name, path = path, Path(os.path.realpath(path))
    if kind := "a directory" if path.is_dir() else special_kind(path):
        raise ConfigError(f"{name}: {kind}, where a file is to be written; choose another name")
    temporary = temporary_path(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            sync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):  # of a file system that cannot be written
            temporary.unlink(missing_ok=True)
        name_final(error, temporary, name)
        raise
    sync_directory(path.parent)


def name_final(error: BaseException, temporary: Path, final: str | Path) -> None:
    """Let an ``OSError`` name a path by its final name in place of a temporary one, or of none when a file cannot grow."""
    if isinstance(error, OSError):
        named = f"{temporary}" if error.filename is None and error.errno in _CANNOT_GROW else str(error.filename)
        if named.startswith(f"{temporary}"):
            error.filename = f"{final}{named.removeprefix(str(temporary))}"


def read_json(path: Path) -> Any:
    """Return what a file of JSON holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: str | Path, value: object) -> None:
    """Write ``value`` as JSON atomically: sorted keys, two spaces, a final newline, no NaN.

    Equal values give equal bytes, whatever the order in which their keys were made.
    """
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    with atomic_file(path) as file:
        file.write(text.encode() + b"\n")
