"""The part of ``bench_stream.py`` that times the streams of another commit and of the present tree in turn."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts._against import ROOT, compare, environment, show, worktree
from scripts._bench_data import dataset
from scripts._bench_text import text_files, tokenizer_folder
from scripts._stream_child import STREAMS

CHILD = ROOT / "scripts/_stream_child.py"
PROCESS_START = "process start to first batch, less import torch"
STARTS = ("first batch", "first batch after a resume")


def compare_streams(revision: str, directory: Path, texts: str | None, rounds: int) -> dict[str, Any]:
    """Compare the streams of the present tree with those of a commit, on datasets below ``directory``."""
    files = text_files(directory, texts)
    data = {
        "shards": str(dataset(directory, shards=16, documents=100_000, median=600)),
        "short": str(dataset(directory, shards=16, documents=800_000, median=60)),
        "sources": [str(dataset(directory, shards=16, documents=25_000 + n, median=600)) for n in range(4)],
        "texts": files,
        "tokenizer": str(tokenizer_folder(directory, files)),
    }
    with worktree(revision) as before:
        return {"against": revision, **in_turn(before, ROOT, data, rounds)}


def in_turn(before: Path, now: Path, data: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    """Return comparisons of two trees, whether their batches are the same, and what either tree lacks.

    ``data`` is what `_stream_child` reads. The trees take turns, each measurement in a process of its own; the first run
    of each is not counted, because it compiles.
    """
    first = [run(tree, data) for tree in (before, now)]
    found = [(measure(before, data), measure(now, data)) for _ in range(rounds)]
    digests = [each["digests"] for each in first]
    return {
        "comparisons": compare(found, units()),
        "same_batches": {name: digests[0][name] == digests[1][name] for name in digests[0] if name in digests[1]},
        "missing": {"before": first[0]["missing"], "now": first[1]["missing"]},
    }


def units() -> dict[str, str]:
    """Return the unit of every quantity, in the order of the table."""
    found: dict[str, str] = {}
    for name in (*STREAMS, *STARTS):
        unit = "ms" if name in STARTS else "us/batch"
        found |= {name: unit, f"{name}, CPU": unit}
    return {**found, PROCESS_START: "s", f"{PROCESS_START}, CPU": "s"}


def measure(tree: Path, data: Mapping[str, Any]) -> dict[str, float]:
    """Return the quantities of one round, in the units of the table."""
    streams = run(tree, data)
    start = streams["start"]
    found: dict[str, float] = {}
    if "missing" not in start:
        found = {PROCESS_START: start["seconds"], f"{PROCESS_START}, CPU": start["cpu"]}
    for suffix, kind in (("", "seconds"), (", CPU", "cpu")):
        for name, seconds in streams[kind].items():
            found[name + suffix] = seconds * (1e3 if name in STARTS else 1e6)
    return found


def run(tree: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    """Run the child on the library of a tree and return what it found."""
    request = json.dumps({**data, "began": time.monotonic()})
    done = subprocess.run(
        [sys.executable, str(CHILD), request], env=environment(tree), capture_output=True, text=True, cwd=tree
    )
    if done.returncode:
        raise SystemExit(f"{CHILD.name} failed with the library of {tree}:\n{done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def print_comparisons(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the comparisons, which streams give other batches than before, and which are missing."""
    same: Mapping[str, bool] = found["same_batches"]
    other = [name for name, equal in same.items() if not equal]
    notes = [f"other first batches: {', '.join(other)}" if other else f"the same first batches in {len(same)} streams"]
    for tree, missing in found["missing"].items():
        notes += [f"missing {tree}: {name} ({reason})" for name, reason in missing.items()]
    show(found, notes, as_json=as_json)
