"""A test that does not end fails, whatever runs it."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import interpreters

ENDLESS = """
import time
from hypothesis import given, strategies

@given(strategies.integers())
def test_of_drawn_numbers(number):
    while True:
        time.sleep(0.01)
"""


def test_a_property_that_does_not_end_fails_at_its_time_limit(tmp_path: Path) -> None:
    (tmp_path / "test_endless.py").write_text(ENDLESS)
    options = ["-p", "tests.conftest", "-c", "setup.cfg", "-o", "timeout=1", "-p", "no:cacheprovider"]
    done = interpreters.run("-m", "pytest", *options, tmp_path, timeout=30)
    assert done.returncode == 1
    assert "Timeout (>1.0s)" in done.stdout
