"""The user's cache directory, and small files in it that take long to make: one process makes each, the others read it.

They are caches alone: a disk that is full or read-only costs the next run the time that it takes to make them again.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .atomic import atomic_file

CACHE_VARIABLE = "SHARDWRIGHT_CACHE"

log = logging.getLogger("pipeline")


def default_directory() -> Path:
    """Return ``$SHARDWRIGHT_CACHE``, else ``shardwright`` in the user's cache directory."""
    directory = os.environ.get(CACHE_VARIABLE)
    if directory:
        return Path(directory).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "shardwright"


def make_private(directory: Path) -> None:
    """Make a directory, and those above it that are missing, which their owner alone can enter."""
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir(0o700)


def read_kept(place: Path) -> bytes | None:
    """Return what a file holds, None where it cannot be read."""
    try:
        return place.read_bytes()
    except OSError:
        return None


def keep(place: Path, raw: bytes | memoryview, what: str) -> None:
    """Write a file where that is possible; ``what`` is what a warning calls it."""
    try:
        make_private(place.parent)
        with atomic_file(place) as file:
            file.write(raw)
    except OSError as error:
        log.warning("%s: %s cannot be kept: %s", place, what, error)


@contextmanager
def made_by_one(place: Path) -> Iterator[None]:
    """Keep other processes that make the same file waiting, where the file system can lock."""
    try:
        make_private(place.parent)
        file = open(place.with_suffix(".lock"), "ab")  # noqa: SIM115 - closed below
    except OSError:
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            log.debug("%s: no locks on this file system", place)
        yield
