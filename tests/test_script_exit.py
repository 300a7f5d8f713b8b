"""Scripts that still hold an iterator end at once and print nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.text_samples import make_texts, write_texts

SCRIPT = """
import sys, time, pipeline
stream = pipeline.TextDataset(sys.argv[1], "bytes").shuffle(0, lanes=2).pack(16).batch(2)
stream = stream.map(lambda batch: time.sleep(0.02) or batch).prefetch(int(sys.argv[2]))
held = iter(stream)
next(held), next(held)
"""


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "tar"])
@pytest.mark.parametrize("ahead", [0, 3])
def test_a_script_that_still_holds_an_iterator_ends_in_silence(tmp_path: Path, kind: str, ahead: int) -> None:
    file = write_texts(tmp_path / f"a.{kind}", make_texts(300))
    command = [sys.executable, "-c", SCRIPT, str(file), str(ahead)]
    ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
