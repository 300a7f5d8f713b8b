"""A build that is killed again and again gives, when it is continued, the bytes of one that never was."""

from __future__ import annotations

import multiprocessing
import random
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from pipeline.cli.main import run_command
from tests.builds import digests
from tests.corpus import write_inputs

FLAGS = ["--tokenizer", "train:400", "--rules", "gopher_quality", "--language", "en=0.2", "--workers", "2", "--quiet"]


def _run(arguments: list[str]) -> None:
    raise SystemExit(run_command("build", arguments))


def start(inputs: list[str], output: Path, *flags: str) -> ForkServerProcess:
    """Start a build in a process of its own, forked from one that has its libraries loaded."""
    arguments = [*inputs, "--output", str(output), *FLAGS, *flags]
    process = multiprocessing.get_context("forkserver").Process(target=_run, args=(arguments,))
    process.start()
    return process


def finish(process: ForkServerProcess) -> None:
    process.join()
    assert process.exitcode == 0


def test_kill_9_at_twenty_random_moments_and_a_re_run_give_the_same_bytes(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path / "in", 600)
    finish(start(inputs, tmp_path / "warm"))
    started = time.monotonic()
    finish(start(inputs, tmp_path / "whole"))
    whole = time.monotonic() - started
    generator = random.Random(5)
    over: list[str] = []
    killed = 0
    while killed < 20:
        process = start(inputs, tmp_path / "killed", *over)
        process.join(generator.uniform(0.1, 0.8) * whole)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode in (-9, 0)
        killed += process.exitcode == -9
        over = (
            ["--overwrite"] if process.exitcode == 0 else []
        )  # it was complete before the kill: the next one starts over
    finish(start(inputs, tmp_path / "killed"))
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")
    assert [path.name for path in (tmp_path / "killed").iterdir() if path.name.startswith(".")] == []
