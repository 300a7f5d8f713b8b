from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.build.work import locked, result_directory, sweep
from pipeline.errors import BuildError


def test_a_result_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail() -> None:
        with result_directory(tmp_path / "result") as directory:
            (directory / "one").write_text("1")
            assert not (tmp_path / "result").exists()
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half"):
        fail()
    assert list(tmp_path.iterdir()) == []
    with result_directory(tmp_path / "result") as directory:
        (directory / "one").write_text("1")
    assert (tmp_path / "result" / "one").read_text() == "1"


def test_a_result_that_is_there_stays(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with result_directory(tmp_path / "result") as directory:
            (directory / "one").write_text(text)
    assert (tmp_path / "result" / "one").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


def test_what_killed_processes_left_is_swept(tmp_path: Path) -> None:
    (tmp_path / "deep" / ".000001.77.tmp").mkdir(parents=True)
    (tmp_path / "deep" / ".000001.77.tmp" / "half").write_text("")
    (tmp_path / "deep" / ".file.77.tmp").write_text("")
    (tmp_path / "deep" / "whole").write_text("")
    sweep(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["deep", "whole"]


def test_a_directory_is_locked_against_other_processes_and_freed_with_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = "import sys, time; from pathlib import Path; from pipeline.build.work import locked\n"
    hold += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    root = str(Path(__file__).resolve().parents[1])
    command = [sys.executable, "-c", hold, str(tmp_path / ".build")]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root})
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        monkeypatch.setattr("pipeline.build.work._LOCK_PATIENCE", 0.2)
        with pytest.raises(BuildError, match=f"process {holder.pid}"), locked(tmp_path / ".build"):
            pass
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout:
            holder.stdout.close()
    with locked(tmp_path / ".build"):
        pass
