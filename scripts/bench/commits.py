"""The library of another commit, for ``bench_stream.py --against``."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def worktree(revision: str, repository: Path = ROOT) -> Iterator[Path]:
    """Give a git worktree of a commit in a temporary directory, and remove it when the block ends.

    Raises ``SystemExit`` with git's message where there is no such commit.
    """
    with tempfile.TemporaryDirectory(prefix="shardwright-") as folder:
        tree = Path(folder, "tree")
        _git(repository, "worktree", "add", "--quiet", "--detach", str(tree), revision)
        try:
            yield tree
        finally:
            _git(repository, "worktree", "remove", "--force", str(tree))


def environment(tree: Path) -> dict[str, str]:
    """Return the environment in which a process imports the library of that tree."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(tree)}


def _git(repository: Path, *arguments: str) -> None:
    done = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
