"""Directories that appear under their final name only when they are whole, and the message for a full disk."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .atomic import is_temporary, name_final, sync_directory, temporary_path
from .errors import BuildError

_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def explain_disk_full_errors(path: Path, then: str = "run the same command again") -> Iterator[None]:
    """Raise ``BuildError`` with the cure if the block, which writes ``path``, fills the disk.

    This includes errors of numpy and pyarrow. ``then`` tells the user what to do when there is room.
    """
    try:
        yield
    except OSError as error:
        text = str(error)
        from_numpy = error.errno is None and " requested and " in text and text.endswith(" written")
        if error.errno not in _FULL and os.strerror(errno.ENOSPC) not in text and not from_numpy:
            raise
        free = shutil.disk_usage(path if path.is_dir() else path.parent).free
        raise BuildError(
            f"{path}: the disk is full, or a quota is used up ({free / 1e6:,.1f} MB are free now); make room, then {then}"
        ) from error


@contextmanager
def result_directory(path: Path) -> Iterator[Path]:
    """Yield a directory to fill. It is renamed to ``path`` when the block ends; if the block raises, it is removed.

    Files are on disk before the rename. If ``path`` already exists, it is equal to the new directory, which is removed.
    """
    temporary = temporary_path(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for file in (*temporary.rglob("*"), temporary):
            sync_directory(file)  # the call is the same for files
        with suppress(FileExistsError):
            _rename(temporary, path)
    except OSError as error:
        name_final(error, temporary, path)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_directory(path.parent)


def _rename(source: Path, target: Path) -> None:
    try:
        os.rename(source, target)
    except OSError:
        if target.is_dir():
            raise FileExistsError(target) from None
        raise


def sweep(directory: Path) -> None:
    """Remove half-written files and directories that killed processes left below ``directory``.

    A process on another machine may still write such a path, and rename it to its final name while it is half removed. So each
    path is renamed first.
    """
    for left in filter(is_temporary, sorted(directory.rglob(".*.tmp"))):
        discard_whole(left)


def discard_whole(path: Path) -> None:
    """Remove a file or a directory; after a kill, no part of it has the name ``path``."""
    temporary = temporary_path(path)
    with suppress(FileNotFoundError):
        os.rename(path, temporary)
    discard(temporary)


def discard(path: Path) -> None:
    """Remove a file or a directory with its contents, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
