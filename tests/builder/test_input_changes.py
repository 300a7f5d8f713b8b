"""Inputs are read as one thing: hashed whole, and never taken for the same when they changed on the way."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.builder.limits import Limits
from pipeline.errors import InputError, PlanChangedError
from tests.helpers.builds import digests, run_plain, write_jsonl
from tests.helpers.corpus import english, write_inputs
from tests.helpers.interruptions import interrupt_after

TEXTS = [english(number) for number in range(60)]
SMALL_UNITS = Limits(smallest_unit_bytes=2_000, lane_bytes=2_000)


def test_the_manifest_holds_the_sha256_of_every_file_cut_or_not(tmp_path: Path) -> None:
    files = [Path(path) for path in write_inputs(tmp_path / "in")]
    manifest = run_plain(tmp_path / "in", tmp_path / "out", limits=SMALL_UNITS)
    wanted = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert {item["name"]: item["sha256"] for item in manifest.inputs} == wanted


def test_a_file_that_was_not_read_to_its_end_has_no_hash(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", TEXTS)
    data = gzip.compress(write_jsonl(tmp_path / "b.jsonl", TEXTS).read_bytes())
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(data[: len(data) // 2])
    limited = run_plain(tmp_path / "in", tmp_path / "limited", limit=3, limits=SMALL_UNITS)
    assert [item["sha256"] for item in limited.inputs] == [None, None]
    manifest = run_plain(tmp_path / "in", tmp_path / "damaged", on_error="skip", limits=SMALL_UNITS)
    assert [item["sha256"] is None for item in manifest.inputs] == [False, True]


def append(path: Path) -> None:
    with open(path, "a") as file:
        file.write('{"text": "one more"}\n')


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (append, r"in\.jsonl: it changed during the build: [\d,]+ bytes of .* before, now [\d,]+ bytes"),
        (truncate, r"in\.jsonl: it changed during the build"),
        (Path.unlink, r"in\.jsonl: cannot be read.*No such file"),
    ],
)
def test_a_file_that_changes_ends_the_build(tmp_path: Path, change: Callable[[Path], None], said: str) -> None:
    path, on_error = write_jsonl(tmp_path / "in.jsonl", TEXTS), "skip"  # which passes over damage
    whole = run_plain(path, tmp_path / "whole", on_error=on_error)
    kept = shutil.copy2(path, tmp_path / "kept.jsonl")

    def change_after_the_plan(name: str) -> None:
        if name == "plan":
            change(path)

    with pytest.raises(InputError, match=said):
        run_plain(path, tmp_path / "out", on_error=on_error, after_stage=change_after_the_plan)
    shutil.copy2(kept, path)
    assert run_plain(path, tmp_path / "out", on_error=on_error).fingerprint == whole.fingerprint
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_a_change_between_two_runs_is_named_with_both_values_and_the_cure(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "in.jsonl", map(english, range(20)))
    before = path.stat().st_size
    with pytest.raises(KeyboardInterrupt):
        run_plain(path, tmp_path / "out", after_stage=interrupt_after("ingest"))
    append(path)
    with pytest.raises(PlanChangedError) as refused:
        run_plain(path, tmp_path / "out")
    message = str(refused.value)
    assert f"inputs: in.jsonl: bytes: was {before}, now {path.stat().st_size}" in message
    assert 'inputs: in.jsonl: modified: was "20' in message
    assert "inputs: in.jsonl: sha256 of its first and last MiB: was" in message
    assert "--overwrite to start over" in message


def test_inputs_may_move_between_two_runs(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", TEXTS)
    whole = run_plain(tmp_path / "in", tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run_plain(tmp_path / "in", tmp_path / "out", after_stage=interrupt_after("plan"))
    (tmp_path / "in").rename(tmp_path / "elsewhere")
    assert run_plain(tmp_path / "elsewhere", tmp_path / "out").fingerprint == whole.fingerprint
