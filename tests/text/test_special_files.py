"""A FIFO that nobody writes to makes whoever opens it wait for ever: it is refused at once, wherever a file is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pipeline
from pipeline.cli.main import run_command
from pipeline.errors import ShardwrightError
from tests.helpers.builds import ROOT


@pytest.fixture
def alarm() -> Iterator[None]:
    """End a test that waits."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("build {fifo} --output {out}", "x.jsonl"),
        ("build web={fifo} --output {out}", "x.parquet"),
        ("build {folder} --output {out}", "x.jsonl.gz"),
        ("build {fifo} --output {out} --dry-run", "x.csv"),
        ("build {file} --output {out} --config {fifo}", "x.yaml"),
        ("build {file} --output {out} --lid-model {fifo}", "x.ftz"),
        ("build {file} --output {out} --decontaminate {fifo}", "x.jsonl"),
        ("build {file} --output {out} --against {folder}", "manifest.json"),
        ("build {file} --output {folder}", "manifest.json"),
        ("verify {fifo}", "x.tar"),
        ("verify {folder}", "manifest.json"),
        ("try-rules {fifo}", "x.jsonl"),
    ],
)
def test_commands_refuse_a_fifo(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, name: str) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "some words"}\n')
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "data" / name)
    if "--against" in command:
        (tmp_path / "data" / "signatures").mkdir()
        os.mkfifo(tmp_path / "data" / "signatures" / "scheme.json")
    places = {"file": tmp_path / "in.jsonl", "fifo": tmp_path / "data" / name}
    places |= {"folder": tmp_path / "data", "out": tmp_path / "out"}
    which, *flags = command.format(**places).split(" ")
    flags += ["--tokenizer", "bytes", "--workers", "1"] if which == "build" else []
    assert run_command(which, flags) in (1, 2)
    assert "FIFO" in "".join(capsys.readouterr())


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda path: pipeline.ShardDataset(path), "x.tar"),
        (lambda path: pipeline.ShardDataset(path.parent), "manifest.json"),
        (lambda path: pipeline.TextDataset(path, "bytes"), "x.jsonl"),
    ],
    ids=["shard", "dataset", "text"],
)
def test_a_stream_refuses_a_fifo_at_once(tmp_path: Path, make: Callable[[Path], pipeline.Stream], name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ShardwrightError, match="FIFO"):
        next(iter(make(tmp_path / name).pack(4).batch(1)))


def test_what_is_piped_in_is_refused_with_the_cure(tmp_path: Path) -> None:
    code = "import sys; from scripts.build_shards import main\n"
    code += "print([main([name, '--output', sys.argv[1]]) for name in ('/dev/stdin', '-')])"
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        out, error = process.communicate()
    assert out == "[1, 1]\n"
    assert error.count("a build reads its input more than once, so write it to a file first") == 2
