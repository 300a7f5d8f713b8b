"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real text kept beside the checkout for measuring; tests that need it skip where it is absent."""
    path = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip("no real-text corpus beside this checkout")
    return path
