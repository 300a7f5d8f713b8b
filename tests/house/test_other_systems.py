"""What the package does where a system is not Linux: each way that is taken there is called here."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pipeline
from pipeline.atomic import sync
from tests.helpers.builds import run_plain, write_jsonl

UNKNOWN_REQUEST = 51  # F_FULLFSYNC of macOS, which Linux refuses
SCRIPT = """
import pipeline
pipeline.build("raw", "out", tokenizer="bytes", rules="none", workers=2, start_method="spawn")
"""


def test_a_file_is_synced_by_the_request_that_its_system_has(
    tmp_path: Path,
) -> None:
    with open(tmp_path / "file", "wb") as file:
        for request in (None, UNKNOWN_REQUEST, fcntl.F_GETFD):
            file.write(b"x")
            file.flush()
            sync(file.fileno(), request)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync(10_000, UNKNOWN_REQUEST)


@pytest.mark.nightly
def test_a_script_without_a_guard_is_told_where_workers_spawn(tmp_path: Path) -> None:
    for number in range(2):
        write_jsonl(tmp_path / f"raw/{number}.jsonl", [f"text {number} {n}" for n in range(5)])
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(pipeline.__file__).parents[1])}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "call pipeline.build there below if __name__ == '__main__'" in done.stderr.splitlines()[-1]


def test_no_two_files_of_a_build_have_names_that_differ_in_case_alone(tmp_path: Path) -> None:
    for name in ("web", "Web"):
        write_jsonl(tmp_path / f"{name}-raw/a.jsonl", [f"{name} {n}" for n in range(50)])
    seen: set[str] = set()

    def note(stage: str) -> None:
        seen.update(str(path.relative_to(tmp_path)) for path in (tmp_path / "out").rglob("*"))

    inputs = [f"{name}={tmp_path / name}-raw" for name in ("web", "Web")]
    run_plain(inputs, tmp_path / "out", after_stage=note, keep_texts="parquet")
    note("end")
    assert len(seen) > 20
    assert len({name.casefold() for name in seen}) == len(seen)
