"""Directories that appear under their name when they are complete."""

from __future__ import annotations

import fcntl
import glob
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ..atomic_directory import discard, explain_disk_full_errors, result_directory
from ..errors import BuildError, ConfigError
from ..shards.dataset_folder import local_directory
from ..shards.manifest import MANIFEST_NAME


@contextmanager
def new_directory(output: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a hidden directory next to ``output``, which is renamed to ``output`` when the block ends.

    Deletes such directories of killed processes. Raises ``ConfigError`` if ``output`` is not empty.
    """
    path = local_directory(os.fspath(output))
    if path.exists() and any(path.iterdir()):
        there = "a dataset" if (path / MANIFEST_NAME).exists() else "files"
        raise ConfigError(f"{path}: holds {there} already; choose another output, or remove it first")
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError), _locked(left):  # the lock is free, so its process has ended
            discard(left)
    with explain_disk_full_errors(path), ExitStack() as stack, result_directory(path) as directory:
        with suppress(OSError):  # without locks, no process deletes this directory either
            stack.enter_context(_locked(directory))
        yield directory
        if path.exists() and any(path.iterdir()):
            raise BuildError(f"{path}: another process wrote there meanwhile; choose another output")


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Lock a directory until the block ends. Raises ``OSError`` if it is locked, or if the file system has no locks."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
