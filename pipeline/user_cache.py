"""The user's cache directory."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CACHE_VARIABLE = "SHARDWRIGHT_CACHE"


def default_directory() -> Path:
    """Return ``$SHARDWRIGHT_CACHE``, else ``shardwright`` in the user's cache directory."""
    directory = os.environ.get(CACHE_VARIABLE)
    if directory:
        return Path(directory).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "shardwright"


def make_private(directory: Path) -> None:
    """Make a directory and its missing parents, such that only their owner can enter them."""
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for folder in reversed(missing):
        with suppress(FileExistsError):
            folder.mkdir(0o700)
