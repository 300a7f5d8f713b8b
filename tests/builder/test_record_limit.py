"""``limit`` reads the first records of the input, with all workers, and which these are depends on no worker."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder.limits import Limits
from pipeline.errors import InputError, PlanChangedError
from pipeline.shards.manifest import Manifest
from tests.helpers.builds import digests, run_plain, table, write_jsonl
from tests.helpers.corpus import english
from tests.helpers.interruptions import Units

FILES, RECORDS = 8, 25
UNITS = Limits(unit_bytes=10_000, smallest_unit_bytes=10_000)  # one or two a file
MEASURE = """
import os, pathlib, time
def seen(page):
    pathlib.Path(__file__).with_name(str(os.getpid())).touch()
    time.sleep(0.01)
    return 1.0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limit")
    for number in range(FILES):
        texts = (f"{number} {k} {english(100 * number + k, 9)}" for k in range(RECORDS))
        rows = ({"id": f"{number}-{k}", "text": text} for k, text in enumerate(texts))
        path = write_jsonl(folder / f"{number}.jsonl", rows)
        assert 10_000 < path.stat().st_size < 20_000
    return folder


def run(inputs: Any, output: Path, **options: Any) -> Manifest:
    return run_plain(inputs, output, **{"dedup": False, "limits": UNITS, **options})


@pytest.mark.parametrize("limit", [pytest.param(25, marks=pytest.mark.nightly), 130])
def test_the_first_records_are_read_whatever_the_workers(folder: Path, tmp_path: Path, limit: int) -> None:
    for workers in (1, 3):
        run(folder, tmp_path / str(workers), limit=limit, workers=workers)
    every = [f"{number}-{k}" for number in range(FILES) for k in range(RECORDS)]
    assert table(tmp_path / "1")["id"] == every[:limit]
    assert digests(tmp_path / "1") == digests(tmp_path / "3")


@pytest.mark.nightly
def test_all_workers_filter_under_a_limit_and_an_interrupted_build_goes_on(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "seen_measure.py").write_text(MEASURE)
    (tmp_path / "rules.toml").write_text('"seen_measure:seen" = { min = 0 }\n')
    settings: dict[str, Any] = {"limit": 160, "workers": 2, "rules": str(tmp_path / "rules.toml")}

    def interrupt(name: str, count: int) -> None:
        if (name, count) == ("ingest", 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "out", progress=Units(interrupt), **settings)
    assert run(folder, tmp_path / "out", **settings).counts["read"] == 160
    assert len([path for path in tmp_path.iterdir() if path.name.isdecimal()]) >= 2
    run(folder, tmp_path / "whole", **settings)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


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
    assert run(inputs, tmp_path / "before", limit=75).counts["read"] == 75
    with pytest.raises(InputError, match=r"3\.jsonl\.gz: .*cut off"):
        run(inputs, tmp_path / "after", limit=101)
    manifest = run(inputs, tmp_path / "skip", limit=101, on_error="skip")
    assert manifest.counts["read"] + sum(manifest.counts["bad"].values()) == 101
    run(inputs, tmp_path / "skip 3", limit=101, workers=3, on_error="skip")
    assert digests(tmp_path / "skip") == digests(tmp_path / "skip 3")


@pytest.mark.parametrize("ending", [pytest.param(".jsonl", marks=pytest.mark.nightly), ".jsonl.gz"])
def test_a_limit_falls_within_pieces_of_one_file(tmp_path: Path, ending: str) -> None:
    lines = [json.dumps({"id": str(k), "text": f"{k} {os.urandom(500).hex()}"}) for k in range(300)]
    data = "\n".join(lines).encode()
    (tmp_path / f"in{ending}").write_bytes(gzip.compress(data, 1) if ending.endswith(".gz") else data)
    for workers in (1, 2):
        run(tmp_path / f"in{ending}", tmp_path / str(workers), limit=111, workers=workers)
    assert table(tmp_path / "1")["id"] == [str(k) for k in range(111)]
    assert digests(tmp_path / "1") == digests(tmp_path / "2")


def test_files_beyond_the_limit_are_not_read_at_the_start(tmp_path: Path) -> None:
    inputs = [write_jsonl(tmp_path / f"{name}.jsonl", (f"{name} {n} " * 9 for n in range(2000))) for name in "abc"]
    manifest = run(inputs, tmp_path / "out", limit=1)
    assert [bool(item["ends"]) for item in manifest.inputs] == [True, False, False]
    assert run(inputs, tmp_path / "out", limit=1).fingerprint == manifest.fingerprint
    (tmp_path / "c.jsonl").write_text("changed")
    with pytest.raises(PlanChangedError, match=r"inputs: c\.jsonl: bytes: was"):
        run(inputs, tmp_path / "out", limit=1)
