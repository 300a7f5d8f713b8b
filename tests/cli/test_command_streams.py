"""Commands end without a traceback whatever stdout and stderr are: closed, full, or of an encoding that lacks characters."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pipeline
from pipeline.cli.main import main
from pipeline.progress import Progress
from tests.helpers.builds import digests
from tests.helpers.commands import Says
from tests.helpers.interpreters import ROOT, Interpreter
from tests.helpers.interruptions import Units
from tests.helpers.shard_samples import make_documents, write_dataset
from tests.helpers.terminals import on_terminal
from tests.helpers.text_samples import jsonl, sentences

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


# Long commands draw a bar with rate and time left on a terminal, and print nothing of it into a pipe.


LONG = {
    "build": ("texts.jsonl --output built --tokenizer bytes --rules none --workers 1", "ingest", "MB/s"),
    "verify": ("shards", "verify", "MB/s"),
    "export": ("shards --to nanogpt --output exported", "export", "tokens/s"),
    "import": ("ids.jsonl --output imported --tokenizer bytes --tokens-key input_ids", "read", "MB/s"),
    "texts": ("texts.jsonl --output texts.parquet", "read", "MB/s"),
}


@pytest.mark.parametrize(
    "name",
    ["build", "verify", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("export", "import", "texts"))],
)
def test_a_long_command_draws_a_bar_on_a_terminal_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    jsonl(tmp_path / "texts.jsonl", sentences(300))
    write_dataset(tmp_path / "shards", [make_documents(100)], vocab_size=60_000)
    (tmp_path / "ids.jsonl").write_text('{"input_ids": [104, 105, 1]}\n' * 500)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(pipeline.__file__).parents[1]))
    arguments, bar, rate = LONG[name]
    command = [sys.executable, "-m", "pipeline", name, *arguments.split()]
    last = [line for line in on_terminal(command) if line.startswith(bar)][-1]
    assert "100%" in last
    assert rate in last
    again = [word.replace("ed", "ed-again") if word.endswith("ed") else word for word in arguments.split()]
    said = says(0, name, *again).err
    assert "%" not in said
    assert not [line for line in said.splitlines() if line.startswith(bar)]


class Eager(Progress):
    line_seconds = 0.0


def test_into_a_pipe_a_line_a_minute_tells_share_rate_and_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Progress.line_seconds == 60
    progress = Eager()
    with progress.bar("ingest", 400_000_000, "bytes") as advance:
        advance(100_000_000)
        advance(100_000_000)
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"ingest: 25%, [\d.]+ MB/s, \d+ s left", first)
    assert re.fullmatch(r"ingest: 50%, [\d.]+ MB/s, \d+ s left", second)
    assert progress.bytes == 200_000_000
    times = iter([0.0, 2.0, 0.0, 2.1])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    for _ in range(2):
        with progress.bar("ingest", 1, "bytes"):
            pass
    assert capsys.readouterr().err == "ingest: done in 2.1 s\n"  # and no line for two seconds


def test_a_bar_over_items_counts_each_when_the_loop_is_done_with_it() -> None:
    bars = Units()
    with bars.each("read", ["a", "bcd"], len, "bytes") as items:
        seen = [(item, bars.amounts.get("read", 0)) for item in items]
    assert seen == [("a", 0), ("bcd", 1)]
    assert bars.amounts == bars.totals == {"read": 4}
