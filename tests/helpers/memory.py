"""Folders of tests that lie in memory."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
ROOM = 2 << 30  # bytes that must be free; the tests of a room write a tenth of it


@pytest.fixture(scope="session")
def tmp_path_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.TempPathFactory]:
    """Make folders in memory where there is room: on a disk, small builds take a tenth more time of the processor."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM:
        yield tmp_path_factory
        return
    with tempfile.TemporaryDirectory(prefix="shardwright-tests-", dir=MEMORY) as folder:
        factory = copy.copy(tmp_path_factory)
        factory._basetemp = Path(folder)
        yield factory
