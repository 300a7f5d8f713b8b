"""Mapped ranges of files: shared by threads through weak references, and gone once nothing refers to them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SHARE = """
import ctypes, os, sys, threading, weakref
from pipeline.shards.ranges.mapped import map_range

sys.setswitchinterval(1e-6)
handle = os.open(sys.argv[1], os.O_RDONLY)
shared = weakref.WeakValueDictionary()

def use():
    for _ in range(5_000):
        held = shared.get(0)
        if held is None:
            held = shared.setdefault(0, map_range(handle, 0, 1 << 16, random=True))
        assert ctypes.string_at(held.address, 4) == b"text"
        del held

threads = [threading.Thread(target=use) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_a_range_that_threads_share_is_unmapped_only_when_no_thread_can_get_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text" * (1 << 14))
    command = [sys.executable, "-c", SHARE, str(tmp_path / "file")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
