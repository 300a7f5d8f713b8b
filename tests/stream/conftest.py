"""Data that several tests of streams read, and leave as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.shard_samples import make_documents, write_dataset
from tests.helpers.text_samples import write_texts


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of some 27 sequences of 16 tokens."""
    directory = tmp_path_factory.mktemp("small") / "data"
    write_dataset(directory, [make_documents(n, seed=n) for n in (12, 1, 9)])
    return directory


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 60 texts."""
    path = tmp_path_factory.mktemp("texts") / "a.jsonl"
    return write_texts(path, [f"text {number} " * (1 + number % 5) for number in range(60)])
