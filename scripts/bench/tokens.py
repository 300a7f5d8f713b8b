"""Whole builds of a given number of tokens, stage by stage, for ``bench_growth.py --tokens``."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.bench.child import BATCH, SEQ_LEN, run_child
from scripts.bench.process import memory, tree_cpu_seconds
from scripts.bench.report import table

SCRIPTS = Path(__file__).resolve().parents[1]
TRILLION = 10**12
_SECONDS = 0.1  # between two measurements of a build's processes
_DISK_SECONDS = 5.0  # between two measurements of its files


class Stage(NamedTuple):
    """The cost of a stage: wall seconds, CPU seconds, and the most bytes of memory at one moment."""

    seconds: float
    cpu: float
    memory: int


class Measured(NamedTuple):
    tokens: int
    documents: int
    read: int
    stages: dict[str, Stage]  # in the order of the build
    rows: list[tuple[str, str]]  # of the table about the dataset


def measure(
    sizes: Sequence[int], copies: Callable[[int], list[Path]], per_copy: int, kills: int, settings: Sequence[str]
) -> None:
    """Build datasets of ``sizes`` tokens from copies of a corpus; print their cost and an estimate for a trillion.

    The largest build is repeated and killed ``kills`` times; its bytes must be equal.
    """
    results = []
    for size in sizes:
        files = copies(-(-size // per_copy))
        output = files[0].parent / "out"
        build = sys.executable, str(SCRIPTS / "build_shards.py")
        command = [*build, *map(str, files), "--output", str(output), *settings]
        shutil.rmtree(output, ignore_errors=True)
        results.append(measure_one(command, output))
        print_one(results[-1])
    if len(results) > 1:
        print_trillion(results[-2], results[-1])
    if kills:
        whole = sum(stage.seconds for stage in results[-1].stages.values())
        same = killed_build(command, output, whole / (kills + 1), kills)
        print(f"\nkilled {kills} times and resumed: {'the same bytes' if same else 'OTHER BYTES'}", flush=True)


def measure_one(command: Sequence[str], output: Path) -> Measured:
    """Build, verify, and stream more than an epoch; return the measurements."""
    stages, disk = watch_stages(command, output)
    manifest = json.loads((output / "manifest.json").read_text(encoding="utf-8"))
    tokens = sum(split["tokens"] for split in manifest["splits"].values())
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, str(SCRIPTS / "verify_shards.py"), str(output)], check=True, stdout=subprocess.DEVNULL
    )
    verified = time.perf_counter() - began
    stream = run_child({"data": str(output), "warm": 1.0, "seconds": max(3.0, tokens / 1e8)})
    given = stream["batches"] * SEQ_LEN * BATCH
    shards = [path.stat().st_size for path in output.glob("*.tar")]
    rows = [
        ("disk at its peak", f"{disk / 1e9:,.2f} GB"),
        ("shards", f"{len(shards)}, {sum(shards) / 1e9:,.2f} GB"),
        ("verify", f"{verified:,.1f} s"),
        ("stream: first batch / memory", f"{stream['first']:,.2f} s / {stream['memory'] / 1e6:,.0f} MB"),
        ("stream: tokens a second, epochs read", f"{given / stream['seconds'] / 1e6:,.0f} M, {given / tokens:.1f}"),
    ]
    return Measured(tokens, manifest["counts"]["kept"], manifest["counts"]["read"], stages, rows)


def watch_stages(command: Sequence[str], output: Path) -> tuple[dict[str, Stage], int]:
    """Run a build; return the cost of each stage, and the most bytes of disk at one moment.

    A build prints a line at the end of a stage. The measurements since the previous line belong to that stage.
    """
    stages: dict[str, Stage] = {}
    log = output.with_name("build.log")
    with log.open("wb") as writing, subprocess.Popen(command, stdout=writing, stderr=writing) as process:
        began, cpu, cpu_before, most, disk, disk_at = time.perf_counter(), 0.0, 0.0, 0, 0, 0.0
        with log.open(encoding="utf-8") as lines:
            while True:
                ended = process.poll() is not None
                now = time.perf_counter()
                cpu, most = max(cpu, tree_cpu_seconds(process.pid)), max(most, memory(process.pid))
                if now >= disk_at:
                    disk, disk_at = max(disk, used(output)), time.perf_counter() + _DISK_SECONDS
                names = [name for line in lines if (name := line.partition(": done in ")[0]) != line]
                for name in [*names, *["report, manifest"] * ended]:
                    stages[name] = Stage(now - began, cpu - cpu_before, most)
                    began, cpu_before, most = now, cpu, 0
                if ended:
                    break
                time.sleep(_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command), log.read_text(encoding="utf-8"))
    return stages, disk


def used(folder: Path) -> int:
    """Return the bytes on disk of all files of a folder. Files may vanish meanwhile."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += 512 * os.stat(os.path.join(root, name)).st_blocks
            except OSError:
                continue
    return total


def killed_build(command: Sequence[str], output: Path, seconds: float, kills: int) -> bool:
    """Build again, killed ``kills`` times after ``seconds`` each, and return whether the bytes are equal."""
    before = digests(output)
    shutil.rmtree(output)
    for _ in range(kills):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return digests(output) == before


def digests(output: Path) -> dict[str, str]:
    found = {}
    for path in sorted([*output.glob("*.tar"), output / "manifest.json"]):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def print_one(result: Measured) -> None:
    stages = list(result.stages.values())
    whole = Stage(sum(s.seconds for s in stages), sum(s.cpu for s in stages), max(s.memory for s in stages))
    rows = [
        (name, f"{stage.seconds:,.1f}", f"{stage.cpu:,.1f}", f"{stage.memory / 1e6:,.0f}")
        for name, stage in [*result.stages.items(), ("whole build", whole)]
    ]
    title = f"{result.tokens:,} tokens of {result.documents:,} documents, of {result.read:,} that were read"
    table(title, ("stage", "seconds", "CPU seconds", "memory, MB"), rows)
    table("Its dataset", ("", "measured"), result.rows)


def print_trillion(smaller: Measured, larger: Measured) -> None:
    """Print the CPU of each stage for a trillion tokens, on a line through two builds, which is level if it would fall."""
    rows, total = [], 0.0
    for name, stage in larger.stages.items():
        earlier = smaller.stages[name].cpu if name in smaller.stages else 0.0
        slope = max((stage.cpu - earlier) / (larger.tokens - smaller.tokens), 0.0)
        growth = (stage.cpu / larger.tokens) / (earlier / smaller.tokens) if earlier else float("nan")
        total += slope * TRILLION
        rows.append((name, f"{slope * 1e9:,.1f}", f"{growth:.2f}", f"{slope * TRILLION / 3600:,.1f}"))
    rows.append(("all", f"{total / 1e3:,.1f}", "", f"{total / 3600:,.1f}"))
    costs = "CPU seconds for each 10^9 tokens more", "CPU a token, of the smaller build's", "CPU hours for 10^12"
    heads = ("stage", *costs)
    table(f"From {smaller.tokens:,} to {larger.tokens:,} tokens, and on to a trillion", heads, rows)
