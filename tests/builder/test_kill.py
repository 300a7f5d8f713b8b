"""A build that is killed again and again gives, when it is continued, the bytes of one that never was."""

from __future__ import annotations

import functools
import multiprocessing
import random
import shutil
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pipeline
from pipeline.builder.limits import Limits
from pipeline.cli.main import run_command
from pipeline.shards.manifest import Manifest
from tests.builds import digests, run
from tests.corpus import write_inputs
from tests.interruptions import Units, killed_at

FLAGS = ["--tokenizer", "train:400", "--rules", "gopher_quality", "--language", "en=0.2", "--workers", "2", "--quiet"]


def _run(arguments: list[str]) -> None:
    raise SystemExit(run_command("build", arguments))


def start(inputs: list[str], output: Path) -> ForkServerProcess:
    """Start a build in a process of its own, forked from one that has its libraries loaded."""
    arguments = [*inputs, "--output", str(output), *FLAGS]
    process = multiprocessing.get_context("forkserver").Process(target=_run, args=(arguments,))
    process.start()
    return process


def finish(process: ForkServerProcess) -> None:
    process.join()
    assert process.exitcode == 0


def test_kill_9_at_random_moments_and_a_re_run_give_the_same_bytes(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path / "in", 200)
    finish(start(inputs[:1], tmp_path / "warm"))
    started = time.monotonic()
    finish(start(inputs, tmp_path / "whole"))
    whole = time.monotonic() - started
    generator = random.Random(5)
    killed = 0
    while killed < 3:
        process = start(inputs, tmp_path / "killed")
        process.join(generator.uniform(0.1, 0.8) * whole)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode in (-9, 0)
        killed += process.exitcode == -9
        if process.exitcode == 0:  # it was complete before the kill
            shutil.rmtree(tmp_path / "killed")
    finish(start(inputs, tmp_path / "killed"))
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")
    assert [path.name for path in (tmp_path / "killed").iterdir() if path.name.startswith(".")] == []


def halves(document: pipeline.Document) -> list[pipeline.Document]:
    middle = len(document.text) // 2
    return [pipeline.Document(text, "", "", 0) for text in (document.text[:middle], document.text[middle:])]


EVERYTHING: dict[str, Any] = {
    "tokenizer": "bytes",
    "transforms": [pipeline.transform(halves, version="1")],
    "where": "text != 'Too short.'",
    "dedup_lines": True,
    "shortest_passage": 20,
    "words_left": 5,
    "dedup_keep": "longest",
    "keep_rejected": True,
    "limits": Limits(smallest_unit_bytes=20_000, partition_characters=20_000, batch_records=20, bucket_hashes=500),
}


def test_a_build_with_every_stage_killed_after_any_unit_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    inputs = write_inputs(tmp_path / "in", 100)
    (tmp_path / "gone.txt").write_text("doc-1\ndoc-20\n")
    inputs = [f"{name}={path}" for name, path in zip("abcabc", inputs, strict=True)]
    build = functools.partial(run, inputs, drop_ids=str(tmp_path / "gone.txt"), **EVERYTHING)
    units = Units()
    build(tmp_path / "whole", progress=units)
    assert {"filter", "find repeats", "cut repeats", "drop_ids", "tokenize", "split", "write"} < set(units.counts)
    done = sum(units.counts.values())
    for count in [1] + 6 * [done // 8]:  # each goes on where the one before was killed
        assert killed_at(count, functools.partial(build, tmp_path / "killed")) == -signal.SIGKILL
    build(tmp_path / "killed", workers=2)
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")
    dropped = Manifest.read(tmp_path / "whole").counts["dropped"]
    assert dropped["drop_ids"] > 0
