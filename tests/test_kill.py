from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from tests.corpus import write_inputs
from tests.test_builder import ROOT, digests

FLAGS = ["--tokenizer", "train:400", "--rules", "gopher_quality", "--language", "en=0.2", "--workers", "2", "--quiet"]


def test_kill_9_at_twenty_random_moments_and_a_re_run_give_the_same_bytes(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path / "in", 600)
    script = str(ROOT / "scripts/build_shards.py")
    started = time.monotonic()
    subprocess.run([sys.executable, script, *inputs, "--output", str(tmp_path / "whole"), *FLAGS], check=True)
    whole = time.monotonic() - started
    command = [sys.executable, script, *inputs, "--output", str(tmp_path / "killed"), *FLAGS]
    generator = random.Random(5)
    anew: list[str] = []
    killed = 0
    while killed < 20:
        process = subprocess.Popen([*command, *anew], stderr=subprocess.PIPE)
        try:
            process.wait(generator.uniform(0.1, 0.8) * whole)
            anew = ["--overwrite"]  # it was done sooner than the kill: the next one begins at the beginning
        except subprocess.TimeoutExpired:
            process.kill()
            killed += 1
            anew = []
        assert process.wait() in (0, -9), process.stderr and process.stderr.read()
    subprocess.run(command, check=True)
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")
    assert [path.name for path in (tmp_path / "killed").iterdir() if path.name.startswith(".")] == []
