"""A FIFO that nobody writes to makes whoever opens it wait for ever: it is refused at once, wherever a file is named."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.paths import special_kind
from tests import interpreters
from tests.builds import ROOT

BUILD = ["scripts/build_shards.py", "{file}", "--output", "{out}", "--tokenizer", "bytes"]
READ = "import pipeline, sys; next(iter(pipeline.{}(sys.argv[1]{}).pack(4).batch(1)))"


def first(name: str, more: str = "") -> list[str]:
    return ["-c", READ.format(name, more), "{fifo}"]


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        (["scripts/build_shards.py", "{fifo}", "--output", "{out}"], "jsonl"),
        (["scripts/build_shards.py", "web={fifo}", "--output", "{out}"], "parquet"),
        (["scripts/build_shards.py", "{folder}", "--output", "{out}"], "jsonl.gz"),
        (["scripts/build_shards.py", "{fifo}", "--output", "{out}", "--dry-run"], "csv"),
        ([*BUILD, "--config", "{fifo}"], "yaml"),
        ([*BUILD, "--lid-model", "{fifo}"], "ftz"),
        ([*BUILD, "--decontaminate", "{fifo}"], "jsonl"),
        ([*BUILD, "--against", "{folder}"], "manifest.json"),
        (["scripts/build_shards.py", "{file}", "--output", "{folder}", "--tokenizer", "bytes"], "manifest.json"),
        (["scripts/verify_shards.py", "{fifo}"], "tar"),
        (["scripts/verify_shards.py", "{folder}"], "manifest.json"),
        (["scripts/try_rules.py", "{fifo}"], "jsonl"),
        (first("ShardDataset"), "tar"),
        (["-c", "import pipeline, sys; pipeline.ShardDataset(sys.argv[1])", "{folder}"], "manifest.json"),
        (first("TextDataset", ", tokenizer='bytes'"), "jsonl"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_fifo_is_refused_at_once(tmp_path: Path, command: list[str], ending: str) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "some words"}\n')
    (tmp_path / "data").mkdir()
    name = ending if ending.endswith(".json") else f"x.{ending}"
    os.mkfifo(tmp_path / "data" / name)
    if ending == "manifest.json" and "--against" in command:
        (tmp_path / "data" / "signatures").mkdir()
        os.mkfifo(tmp_path / "data" / "signatures" / "scheme.json")
    places = {"file": tmp_path / "in.jsonl", "fifo": tmp_path / "data" / name}
    places |= {"folder": tmp_path / "data", "out": tmp_path / "out"}
    given = [part.format(**places) if "{" in part else part for part in command]
    done = interpreters.run(*given, timeout=60)
    assert done.returncode in (1, 2)
    assert "FIFO" in done.stdout + done.stderr


def test_what_is_piped_in_is_refused_with_the_cure(tmp_path: Path) -> None:
    for name in ("/dev/stdin", "-"):
        command = [sys.executable, "scripts/build_shards.py", name, "--output", str(tmp_path / "out")]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.wait(60) == 1
            assert process.stderr is not None
            assert "a build reads its input more than once, so write it to a file first" in process.stderr.read()


def test_kinds_of_special_files_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket holds 107 bytes at most
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        os.mkfifo("fifo")
        os.symlink("fifo", "link")
        Path("file").touch()
        names = ("socket", "fifo", "link", "file", ".", "none", "/dev/zero")
        assert [special_kind(name) for name in names] == ["a socket", "a FIFO", "a FIFO", None, None, None, "a device"]
