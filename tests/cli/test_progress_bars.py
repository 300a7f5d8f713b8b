"""Long commands draw a bar with rate and time left on a terminal, and print nothing of it into a pipe."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

import pipeline
from pipeline.progress import Progress
from tests.helpers.commands import Says
from tests.helpers.interruptions import Units
from tests.helpers.shard_samples import make_documents, write_dataset
from tests.helpers.terminals import on_terminal
from tests.helpers.text_samples import jsonl, sentences

COMMANDS = {
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
    arguments, bar, rate = COMMANDS[name]
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
