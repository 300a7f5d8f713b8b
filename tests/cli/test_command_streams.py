"""Commands end without a traceback whatever stdout and stderr are: closed, full, or of an encoding that lacks characters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shard_samples import make_documents, write_dataset

ROOT = Path(__file__).resolve().parents[2]
TEXT = "Café 汉字 “quoted” …"
COMMANDS = {
    "verify": ["verify", "data"],
    "inspect": ["inspect", "data"],
    "texts": ["texts", "in.jsonl", "--output", "texts.parquet"],
    "try-rules": ["try-rules", "in.jsonl", "--measure", "words", "--rules", "none"],
    "build": ["build", "in.jsonl", "--output", "out", "--tokenizer", "bytes", "--rules", "none", "--workers", "1"],
    "help": ["build", "--help"],
    "rules": ["build", "--list-rules"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data", [make_documents(5)])
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": TEXT}) + "\n", encoding="utf-8")
    return tmp_path


def run(folder: Path, arguments: list[str], streams: str = "", **environment: str) -> tuple[int, str, str]:
    """Run a command by the shell, with what it prints to streams that are not redirected."""
    python = ["-m", "pipeline", *arguments]
    given = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    shell = ["sh", "-c", f'"$@" {streams}', "sh", sys.executable, *python]
    done = subprocess.run(shell, cwd=folder, env=given, capture_output=True, timeout=120)
    return done.returncode, done.stdout.decode("latin-1"), done.stderr.decode("latin-1")


@pytest.mark.parametrize("name", COMMANDS)
def test_closed_streams_are_no_fault(folder: Path, name: str) -> None:
    status, out, error = run(folder, COMMANDS[name], ">&-")
    assert (status, out) == (0, ""), error
    assert "Traceback" not in error
    status, out, error = run(folder, [*COMMANDS[name], "--nonsense"], "2>&-")
    assert (status, out, error) == (2 if name not in ("help", "rules") else 0, out, "")
    assert "Traceback" not in out
    if name in ("build", "verify"):
        assert run(folder, COMMANDS[name], ">&- 2>&- <&-") == (0, "", "")


def test_what_a_build_writes_is_the_same_where_streams_are_closed(folder: Path) -> None:
    for name, streams in (("open", ""), ("closed", ">&- 2>&- <&-")):
        status, _, error = run(folder, [*COMMANDS["build"][:3], name, *COMMANDS["build"][4:]], streams)
        assert status == 0, error
    for path in (folder / "open").iterdir():
        if path.is_file() and path.name != "run.json":
            assert (folder / "closed" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("name", COMMANDS)
def test_full_streams_are_errors_in_one_line(folder: Path, name: str) -> None:
    if name != "build":  # which prints to stderr alone
        status, _, error = run(folder, COMMANDS[name], "> /dev/full")
        assert status in (1, 2)
        assert error.splitlines()[-1].startswith("error: No space left on device")
        assert "Traceback" not in error
    status, out, _ = run(folder, [*COMMANDS[name], "--nonsense"], "2> /dev/full")
    assert "Traceback" not in out
    assert status in (0, 2)


@pytest.mark.parametrize(("name", "encoding"), [*((name, "ascii") for name in COMMANDS), ("try-rules", "latin-1")])
def test_characters_that_a_terminal_lacks_are_shown_as_escapes(folder: Path, name: str, encoding: str) -> None:
    status, out, error = run(folder, COMMANDS[name], PYTHONIOENCODING=encoding)
    assert status == 0, error
    assert "Traceback" not in error
    if name == "build":
        status, out, error = run(folder, ["inspect", "out", "--document", "0"], PYTHONIOENCODING=encoding)
        assert status == 0, error
        assert "\\u6c49\\u5b57" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["build", "BAD.jsonl", "--output", "out", "--tokenizer", "bytes"],
        ["build", "in.jsonl", "--output", "BAD", "--tokenizer", "bytes"],
        ["build", "in.jsonl", "--output", "out", "--rules", "BAD"],
        ["build", "in.jsonl", "--output", "out", "--config", "BAD"],
        ["build", "noBAD", "--output", "out"],
        ["try-rules", "BAD.jsonl"],
        ["texts", "BAD.jsonl", "--output", "BAD.parquet"],
        ["verify", "BAD"],
        ["inspect", "BAD"],
        ["BAD"],
        ["build", "--BAD"],
    ],
)
def test_a_name_that_is_no_text_is_shown_and_no_traceback(folder: Path, arguments: list[str]) -> None:
    name = os.fsdecode(b"b\xff")
    (folder / f"{name}.jsonl").write_bytes((folder / "in.jsonl").read_bytes())
    status, _, error = run(folder, [each.replace("BAD", name) for each in arguments])
    assert "Traceback" not in error
    assert status in (1, 2)
    assert "b\\udcff" in error or "b\\xff" in error
