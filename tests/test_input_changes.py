"""Inputs are read as one thing: hashed whole, and never taken for the same when they changed on the way."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.builder import build as builder
from pipeline.builder.build import build
from pipeline.builder.report.console import Progress
from pipeline.errors import InputError, PlanChangedError
from pipeline.shards.manifest import Manifest
from tests.corpus import english
from tests.test_builder import digests

SETTINGS: dict[str, Any] = {"tokenizer": "bytes", "rules": (), "val_fraction": 0}


def run(inputs: Any, output: Path, **options: Any) -> Manifest:
    return build(inputs, output, progress=Progress(quiet=True), **{**SETTINGS, **options})


def write_jsonl(path: Path, count: int = 60) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"id": f"d{k}", "text": english(k)}) + "\n" for k in range(count)))
    return path


def write_every_format(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = write_jsonl(folder / "a.jsonl").read_bytes()
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    texts = [json.loads(line)["text"] for line in lines.splitlines()]
    (folder / "c.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in texts))
    pq.write_table(pa.table({"text": texts}), folder / "d.parquet", row_group_size=7)
    (folder / "e.txt").write_text(english(1))
    (folder / "f.jsonl").write_text("")
    return folder


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.builder.plan.SMALLEST_UNIT", 2_000)
    monkeypatch.setattr("pipeline.builder.plan.LANE_BYTES", 2_000)


@pytest.mark.usefixtures("small_units")
@pytest.mark.parametrize("workers", [1, 2])
def test_the_manifest_holds_the_sha256_of_every_file_cut_or_not(tmp_path: Path, workers: int) -> None:
    folder = write_every_format(tmp_path / "in")
    manifest = run(folder, tmp_path / "out", workers=workers)
    wanted = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    assert {item["name"]: item["sha256"] for item in manifest.inputs} == wanted


@pytest.mark.usefixtures("small_units")
def test_a_file_that_was_not_read_to_its_end_has_no_hash(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl")
    data = gzip.compress(write_jsonl(tmp_path / "b.jsonl").read_bytes())
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(data[: len(data) // 2])
    assert [item["sha256"] for item in run(tmp_path / "in", tmp_path / "limited", limit=3).inputs] == [None, None]
    manifest = run(tmp_path / "in", tmp_path / "damaged", on_error="skip")
    assert [item["sha256"] is None for item in manifest.inputs] == [False, True]


@pytest.mark.usefixtures("small_units")
def test_a_piece_that_was_read_otherwise_than_it_was_hashed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jsonl(tmp_path / "in.jsonl")
    read = builder.hash_input

    def hash_after_a_change(work: Path, number: int) -> None:
        read(work, number)
        status = path.stat()
        text = path.read_text()
        path.write_text(text[:-100] + text[-100:].upper())  # of equal size, and the clock set back
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    monkeypatch.setattr(builder, "hash_input", hash_after_a_change)
    with pytest.raises(InputError, match=r"in\.jsonl: piece \d+ of \d+ had sha256 .* it changed meanwhile"):
        run(path, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def append(path: Path) -> None:
    with open(path, "a") as file:
        file.write('{"text": "one more"}\n')


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("on_error", ["records", "skip"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (append, r"in\.jsonl: it changed during the build: [\d,]+ bytes of .* before, now [\d,]+ bytes"),
        (truncate, r"in\.jsonl: it changed during the build"),
        (Path.unlink, r"in\.jsonl: cannot be read.*No such file"),
    ],
)
def test_a_file_that_grows_shrinks_or_vanishes_ends_the_build_and_once_restored_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], said: str, on_error: str
) -> None:
    path = write_jsonl(tmp_path / "in.jsonl")
    whole = run(path, tmp_path / "whole", on_error=on_error)
    kept = shutil.copy2(path, tmp_path / "kept.jsonl")
    begin = builder.begin

    def change_after_the_plan(*given: Any) -> Any:
        plan = begin(*given)
        change(path)
        return plan

    with monkeypatch.context() as patch:
        patch.setattr(builder, "begin", change_after_the_plan)
        with pytest.raises(InputError, match=said):
            run(path, tmp_path / "out", on_error=on_error)
    shutil.copy2(kept, path)
    assert run(path, tmp_path / "out", on_error=on_error).fingerprint == whole.fingerprint
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_a_change_between_two_runs_is_named_with_both_values_and_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", 20)
    before = path.stat().st_size
    with monkeypatch.context() as patch:
        patch.setattr(builder, "dedup", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(path, tmp_path / "out")
    append(path)
    with pytest.raises(PlanChangedError) as refused:
        run(path, tmp_path / "out")
    message = str(refused.value)
    assert f"inputs: in.jsonl: bytes: was {before}, now {path.stat().st_size}" in message
    assert 'inputs: in.jsonl: modified: was "20' in message
    assert "inputs: in.jsonl: sha256 of its first and last MiB: was" in message
    assert "--overwrite to begin anew" in message


def test_inputs_may_move_between_two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl")
    whole = run(tmp_path / "in", tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(builder, "filter_unit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "in", tmp_path / "out")
    (tmp_path / "in").rename(tmp_path / "elsewhere")
    assert run(tmp_path / "elsewhere", tmp_path / "out").fingerprint == whole.fingerprint


def interrupt(*given: object) -> None:
    raise KeyboardInterrupt
