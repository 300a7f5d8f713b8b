"""``limit`` reads the first records of the input, with all workers, and which these are depends on no worker."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.build import build
from pipeline.builder.counts.progress import Progress
from pipeline.builder.limits import Limits
from pipeline.errors import InputError, PlanChangedError
from pipeline.shards.manifest import Manifest
from pipeline.shards.reader import Shard
from tests import interpreters
from tests.builds import ROOT, digests
from tests.corpus import english

SETTINGS: dict[str, Any] = {"tokenizer": "bytes", "rules": (), "val_fraction": 0.0, "dedup": False}
FILES, RECORDS = 8, 25  # a file is a unit: larger than a unit's least size
WIDE = english(1, 900)
SMALL_UNITS = Limits(unit_bytes=100_000, smallest_unit_bytes=100_000)
MEASURE = """
import os, pathlib, time
def seen(page):
    pathlib.Path(__file__).with_name(str(os.getpid())).touch()
    time.sleep(0.01)
    return 1.0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of 25 records each, 1.1 MB or more: each is a unit of its own."""
    folder = tmp_path_factory.mktemp("limit")
    for number in range(FILES):
        texts = (f"{number} {k} {english(100 * number + k)} {WIDE}" for k in range(RECORDS))
        lines = [json.dumps({"id": f"{number}-{k}", "text": text}) + "\n" for k, text in enumerate(texts)]
        (folder / f"{number}.jsonl").write_text("".join(lines))
    assert (folder / "0.jsonl").stat().st_size > 1 << 20
    return folder


def run(inputs: Any, output: Path, **options: Any) -> Manifest:
    return build(inputs, output, progress=Progress(quiet=True), **{"start_method": "fork", **SETTINGS, **options})


def ids(output: Path) -> list[str]:
    return [name for path in sorted(output.glob("train-*.tar")) for name in Shard(path).table()["id"]]


@pytest.mark.parametrize("limit", [25, 130])
def test_the_first_records_are_read_whatever_the_workers(folder: Path, tmp_path: Path, limit: int) -> None:
    for workers in (1, 3):
        run(folder, tmp_path / str(workers), limit=limit, workers=workers)
    every = [f"{number}-{k}" for number in range(FILES) for k in range(RECORDS)]
    assert ids(tmp_path / "1") == every[:limit]
    assert digests(tmp_path / "1") == digests(tmp_path / "3")


def test_all_workers_filter_under_a_limit(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "seen_measure.py").write_text(MEASURE)
    (tmp_path / "rules.toml").write_text('"seen_measure:seen" = { min = 0 }\n')
    command = [ROOT / "scripts/build_shards.py", folder, "--output", tmp_path / "out", "--tokenizer", "bytes"]
    command += ["--rules", tmp_path / "rules.toml", "--limit", "80", "--workers", "2", "--quiet"]
    assert interpreters.run(*command).returncode == 0
    assert Manifest.read(tmp_path / "out").counts["read"] == 80
    assert len([path for path in tmp_path.iterdir() if path.name.isdecimal()]) >= 2


def damaged(folder: Path, target: Path) -> Path:
    """Copy the files, the fourth of them compressed and cut off."""
    target.mkdir()
    for path in folder.glob("*.jsonl"):
        (target / path.name).write_bytes(path.read_bytes())
    data = gzip.compress((target / "3.jsonl").read_bytes())
    (target / "3.jsonl").unlink()
    (target / "3.jsonl.gz").write_bytes(data[: len(data) // 2])
    return target


def test_a_fault_beyond_the_limit_is_not_met_and_one_before_it_is(folder: Path, tmp_path: Path) -> None:
    inputs = damaged(folder, tmp_path / "in")
    assert run(inputs, tmp_path / "before", limit=75, workers=2).counts["read"] == 75
    with pytest.raises(InputError, match=r"3\.jsonl\.gz: .*cut off"):
        run(inputs, tmp_path / "after", limit=101, workers=1)
    manifest = run(inputs, tmp_path / "skip", limit=101, workers=2, on_error="skip")
    assert manifest.counts["read"] + sum(manifest.counts["bad"].values()) == 101
    run(inputs, tmp_path / "skip 3", limit=101, workers=3, on_error="skip")
    assert digests(tmp_path / "skip") == digests(tmp_path / "skip 3")


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
def test_a_limit_falls_within_pieces_of_one_file(tmp_path: Path, ending: str) -> None:
    lines = [json.dumps({"id": str(k), "text": f"{k} {os.urandom(500).hex()}"}) for k in range(900)]
    data = "\n".join(lines).encode()
    (tmp_path / f"in{ending}").write_bytes(gzip.compress(data, 1) if ending.endswith(".gz") else data)
    for workers in (1, 2):
        run(tmp_path / f"in{ending}", tmp_path / str(workers), limit=333, workers=workers, limits=SMALL_UNITS)
    assert ids(tmp_path / "1") == [str(k) for k in range(333)]
    assert digests(tmp_path / "1") == digests(tmp_path / "2")


def test_a_limited_build_goes_on_after_kill_9(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "whole", limit=160, workers=2)
    command = [ROOT / "scripts/build_shards.py", folder, "--output", tmp_path / "out", "--tokenizer", "bytes"]
    command += ["--rules", "", "--val-fraction", "0", "--no-dedup", "--limit", "160", "--quiet", "--workers", "2"]
    process = interpreters.Interpreter(*command, stdout=1, stderr=2)
    while process.poll() is None and not list(tmp_path.glob("out/.build/filter/*/done.json")):
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert interpreters.run(*command).returncode == 0
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_files_beyond_the_limit_are_not_read_at_the_start(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": f"{name} {n} " * 9}) + "\n" for n in range(2000))
        )
    settings: dict[str, Any] = {"limit": 1, "tokenizer": "bytes", "rules": (), "progress": Progress(quiet=True)}
    inputs = [tmp_path / f"{name}.jsonl" for name in "abc"]
    manifest = build(inputs, tmp_path / "out", **settings)
    assert [bool(item["ends"]) for item in manifest.inputs] == [True, False, False]
    assert build(inputs, tmp_path / "out", **settings).fingerprint == manifest.fingerprint
    (tmp_path / "c.jsonl").write_text("changed")
    with pytest.raises(PlanChangedError, match=r"inputs: c\.jsonl: bytes: was"):
        build(inputs, tmp_path / "out", **settings)
