"""Asserts that a DataLoader raises, and ends its workers at once."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader


def assert_raises(error: type[Exception], match: str, loader: DataLoader[Any]) -> None:
    """Assert that a pass over a loader raises.

    The error keeps the loader's iterator alive until it is collected, which waits five seconds for each worker.
    """
    iterators: list[Any] = []

    def read() -> None:
        iterators.append(iter(loader))
        list(iterators[0])

    with pytest.raises(error, match=match):
        read()
    for iterator in iterators if loader.num_workers else ():
        iterator._shutdown_workers()
