"""The user's cache directory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from .notices import say_once

CACHE_VARIABLE = "SHARDWRIGHT_CACHE"


def default_directory() -> Path | None:
    """Return ``$SHARDWRIGHT_CACHE``, else ``shardwright`` in the user's cache directory.

    If the user has no home directory, or may not write there, as in some containers, the result is None, and a warning is
    logged once.
    """
    directory = os.environ.get(CACHE_VARIABLE)
    if directory:
        return Path(directory).absolute()
    with suppress(RuntimeError, OSError):  # no home directory, or none that this user may enter
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "shardwright"
        nearest = next(path for path in (folder, *folder.parents) if path.exists())
        if nearest == folder or (nearest.is_dir() and os.access(nearest, os.W_OK)):
            return folder
    say_once(
        "this user has no home directory to write in, so remote data is read without a cache, and each process requests it "
        f"again: set {CACHE_VARIABLE} to a folder that the user may write"
    )
    return None


def make_private(directory: Path) -> None:
    """Make a directory and its missing parents, such that only their owner can enter them."""
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for folder in reversed(missing):
        with suppress(FileExistsError):
            folder.mkdir(0o700)
