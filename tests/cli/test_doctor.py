"""``shardwright doctor``: versions, extras and the machine; a problem is status 1, and its line says the cure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pipeline
from pipeline.cli.main import main
from tests.helpers.commands import Says


def test_the_doctor_says_versions_extras_cache_disk_and_locks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "block").write_bytes(bytes(30_000_000))
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho H100\necho H200\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    status = main(["doctor", "--output", str(tmp_path / "not" / "yet")])
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines() if not line.startswith("extra "))
    assert status == 0
    assert lines["shardwright"].startswith(pipeline.__version__)
    assert lines["cache"] == f"{tmp_path}/cache, 0.03 GB"
    assert lines["disk"].startswith(f"{tmp_path}, ")
    assert (lines["locks"], lines["gpu"]) == ("yes", "H100, H200")
    assert {"python", "torch", "gpu", "machine"} <= lines.keys()


def test_a_directory_that_cannot_be_written_is_a_problem(says: Says) -> None:
    last = says(1, "doctor", "--output", "/proc/none").out.splitlines()[-1]
    assert re.fullmatch(r"locks +/proc: .*  <- this user cannot write there; name another --output", last)


def test_a_problem_is_status_1_and_its_line_says_the_cure(tmp_path: Path) -> None:
    code = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from pipeline.cli.main import main
sys.exit(main(["doctor", "--output", {str(tmp_path)!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 1
    assert "256  <- ulimit -n 1024" in done.stdout


def test_the_doctor_names_a_file_of_the_user_that_hides_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.py").write_text("")
    assert "scripts beside pipeline.py import that instead of the package: rename it" in says(1, "doctor").out
