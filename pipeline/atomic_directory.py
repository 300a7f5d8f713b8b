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
    """Raise ``BuildError`` with the cure if the block, which writes ``path``, runs out of disk.

    numpy and pyarrow each say so in their way. ``then`` says what to do when there is room.
    """
    try:
        yield
    except OSError as error:
        words = str(error)
        numpy_says = error.errno is None and " requested and " in words and words.endswith(" written")
        if error.errno not in _FULL and os.strerror(errno.ENOSPC) not in words and not numpy_says:
            raise
        free = shutil.disk_usage(path if path.is_dir() else path.parent).free
        raise BuildError(
            f"{path}: the disk is full, or a quota is used up ({free / 1e6:,.1f} MB are free now); make room, then {then}"
        ) from error


@contextmanager
def result_directory(path: Path) -> Iterator[Path]:
    """Yield a directory to fill; it gets its name ``path`` when the block ends, and is removed if the block raises.

    Files are on disk before the rename. If ``path`` exists already, the new result, which is equal, is removed.
    """
    temporary = temporary_path(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.iterdir():
            sync_directory(file)  # of a file it is the same call
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
    """Remove what killed processes left half-written below ``directory``.

    One may still run, on another machine. So each is renamed first: what is half removed would get its final name.
    """
    for left in filter(is_temporary, sorted(directory.rglob(".*.tmp"))):
        discard_whole(left)


def discard_whole(path: Path) -> None:
    """Remove a file or a directory under its name at once: a kill leaves no part of it that looks complete."""
    temporary = temporary_path(path)
    with suppress(FileNotFoundError):
        os.rename(path, temporary)
    discard(temporary)


def discard(path: Path) -> None:
    """Remove a file or a directory with all in it, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
