"""Asserts that a DataLoader raises, and ends its workers at once."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from torch.utils.data import DataLoader


def assert_raises(error: type[Exception], match: str, loader: DataLoader[Any]) -> None:
    """Assert that a pass over a loader raises.

    The frames of the error keep the loader's iterator alive until they are collected, which waits five seconds for each
    worker: here they let go of it.
    """

    with pytest.raises(error, match=match) as found:
        list(loader)
    traceback.clear_frames(found.tb)
    del found  # it refers to this frame, which refers to it
