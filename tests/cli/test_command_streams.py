"""Commands end without a traceback whatever stdout and stderr are: closed, full, or of an encoding that lacks characters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.cli.main import main
from tests.helpers.builds import digests
from tests.helpers.interpreters import ROOT, Interpreter
from tests.helpers.shard_samples import make_documents, write_dataset

PATHS = {"PYTHONPATH": str(ROOT)}
TEXT = "Café 汉字 “quoted” …"
COMMANDS = {  # those that print by rich, by print, by the parser, and to stderr alone
    "inspect": ["inspect", "data"],
    "try-rules": ["try-rules", "in.jsonl", "--measure", "words", "--rules", "none"],
    "build": ["build", "in.jsonl", "--output", "out", "--tokenizer", "bytes", "--rules", "none", "--workers", "1"],
    "help": ["build", "--help"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data", [make_documents(5)])
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": TEXT}) + "\n", encoding="utf-8")
    return tmp_path


def run(folder: Path, arguments: list[str], streams: str = "", **environment: str) -> tuple[int, str, str]:
    """Run a command by the shell, with what it prints to streams that are not redirected."""
    shell = ["sh", "-c", f'"$@" {streams}', "sh", sys.executable, "-m", "pipeline", *arguments]
    given = {**os.environ, **PATHS, **environment}
    done = subprocess.run(shell, cwd=folder, env=given, capture_output=True, timeout=120)
    return done.returncode, done.stdout.decode("latin-1"), done.stderr.decode("latin-1")


@pytest.mark.parametrize("name", ["inspect", pytest.param("build", marks=pytest.mark.nightly)])
def test_a_command_shows_no_traceback_where_its_output_is_closed(folder: Path, name: str) -> None:
    status, out, error = run(folder, COMMANDS[name], ">&-")
    assert (status, out, "Traceback" in error) == (0, "", False), error


@pytest.mark.parametrize("name", ["inspect", "help"])
def test_a_command_names_a_full_output_without_a_traceback(folder: Path, name: str) -> None:
    with open("/dev/full", "w") as full, open(folder / "error", "w+") as error:
        process = Interpreter(
            "-m", "pipeline", *COMMANDS[name], stdout=full.fileno(), stderr=error.fileno(), cwd=folder, variables=PATHS
        )
        assert process.wait() in (1, 2)
    said = (folder / "error").read_text()
    assert "No space left on device; make room" in said.splitlines()[-1]
    assert "Traceback" not in said


def test_a_command_shows_no_traceback_where_its_output_lacks_characters(folder: Path) -> None:
    status, _, error = run(folder, COMMANDS["try-rules"], PYTHONIOENCODING="ascii")
    assert (status, "Traceback" in error) == (0, False), error


@pytest.mark.parametrize("streams", ["2>&-", "2> /dev/full"])
def test_wrong_usage_ends_with_2_where_errors_cannot_be_written(folder: Path, streams: str) -> None:
    assert run(folder, [*COMMANDS["inspect"], "--nonsense"], streams) == (2, "", "")


def test_a_build_without_streams_writes_the_same_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert run(folder, COMMANDS["build"], ">&- 2>&- <&-")[0] == 0
    assert main([*COMMANDS["build"][:3], "open", *COMMANDS["build"][4:]]) == 0
    assert digests(folder / "open") == digests(folder / "out")
    status, out, error = run(folder, ["inspect", "open", "--document", "0"], PYTHONIOENCODING="latin-1")
    assert (status, error) == (0, "")
    assert "\\u6c49\\u5b57" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["build", "BAD.jsonl", "--output", "out", "--tokenizer", "bytes"],
        ["build", "in.jsonl", "--output", "BAD", "--tokenizer", "bytes"],
        ["build", "in.jsonl", "--output", "out", "--rules", "BAD"],
        ["texts", "BAD.jsonl", "--output", "BAD.parquet"],
        ["verify", "BAD"],
        ["build", "--BAD"],
    ],
)
def test_a_name_that_is_no_text_is_shown(
    folder: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    name = os.fsdecode(b"b\xff")
    Path(f"{name}.jsonl").write_bytes(Path("in.jsonl").read_bytes())
    try:
        status = main([each.replace("BAD", name) for each in arguments])
    except SystemExit as end:  # of the parser
        status = int(end.code or 0)
    error = capsys.readouterr().err
    assert status in (1, 2)
    assert "b\\udcff" in error or "b\\xff" in error
