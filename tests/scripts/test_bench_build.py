"""What the bench of builds makes of its rounds, and how it ends."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts._build_parts import least_seconds
from scripts.bench_build import Round, main, report, run
from tests.corpus import english

COUNTS = {"read": 1_000, "characters": 2_000_000}


def one_round(cpu: float) -> Round:
    alone = {"reading": 1.0, "languages": 2.5, "encoding": 0.5}
    return Round(cpu, cpu / 2, 2.0, 1.0, alone, {"filter": 3.0}, peer_cpu=40.0, peer_wall=20.0)


def test_ratios_come_first_and_are_medians_of_rounds() -> None:
    options = argparse.Namespace(datatrove="python", workers=2)
    lines = report([one_round(cpu) for cpu in (6.0, 90.0, 10.0)], options, COUNTS, 300.0)
    figures = [line.split()[0] for line in lines]
    assert figures[:2] == ["2.00", "2.50"]  # (10 - 2) / 4 and 10 / 4
    assert figures[2:4] == ["10.0", "8.0"]  # 2 M characters take datatrove 80 s of CPU
    assert figures[4:6] == ["10.0", "8.0"]
    assert all("x " in line for line in lines[:6])
    assert "(6.00 to 90.00)" in next(line for line in lines if "CPU seconds  (" in line)
    alone = argparse.Namespace(datatrove=None, workers=2)
    assert not [line for line in report([one_round(10.0)], alone, COUNTS, 300.0) if "datatrove" in line]


def test_parts_are_the_least_of_runs_that_take_turns_and_the_first_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[str] = []
    found = least_seconds([lambda: called.append("a"), lambda: called.append("b")], runs=2)
    assert called == ["a", "b"] * 3
    assert all(0 <= seconds < 1 for seconds in found)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": english(k)}) + "\n" for k in range(6)))
    assert main([str(tmp_path / "in.jsonl"), "--parts", "--sample", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["documents"] == 4
    assert len(told["parts"]) == 3
    assert min(told["parts"].values()) > 0


def test_a_command_that_fails_ends_the_bench_with_what_it_said() -> None:
    with pytest.raises(SystemExit, match="no such luck"):
        run([sys.executable, "-c", "import sys; sys.exit('no such luck')"], capture_output=True)


def test_a_reader_that_has_seen_enough_ends_it_quietly() -> None:
    code = "import scripts.bench_build as b; b.bench = lambda *_: ['a line'] * 1_000_000; b.main(['none'])"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"a line\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE
