"""Fixtures that several files of this room share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.shard_samples import index_extents, make_documents, write_dataset


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test of one tar writes it."""
    return tmp_path / "a.tar"


@pytest.fixture(scope="session")
def in_extents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards of 300 documents in extents of 4 KiB, which tests leave as they are."""
    folder = tmp_path_factory.mktemp("extents") / "data"
    write_dataset(folder, [make_documents(300, seed=seed, longest=200) for seed in range(4)])
    index_extents(folder, 4 << 10)
    return folder
