"""``shardwright inspect DIR`` shows a dataset on one page of the terminal."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.cli.main import main
from tests.builds import run_plain
from tests.corpus import english, write_inputs


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    write_inputs(folder / "in", 120)
    odd = folder / "odd.jsonl"
    odd.write_text("".join(json.dumps({"text": english(k, 5)}) + "\n" for k in range(4)) + "{broken\n")
    settings: dict[str, Any] = {"rules": "gopher,fineweb", "dedup_threshold": 0.7, "val_fraction": 0.1, "seed": 3}
    run_plain([f"odd={odd}", f"rest={folder / 'in'}"], folder / "out", **settings)
    return folder / "out"


def test_the_page_has_100_columns_where_it_is_piped_and_its_rows_add_up(
    built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(built)]) == 0
    counts = pipeline.Manifest.read(built).counts
    *lines, _ = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:])) <= 100
    first, last = (
        next(k for k, line in enumerate(lines) if line.startswith(f"documents {end}")) for end in ("read", "kept")
    )
    numbers = [int(re.split(r"\s{2,}", line)[1].replace(",", "")) for line in lines[first : last + 1]]
    assert sum(numbers[:-1]) == numbers[-1] == counts["kept"]
    assert any(line.startswith("odd ") for line in lines)
    assert any(re.fullmatch(rf"{counts['bad']['invalid JSON']}  .*%  unreadable: invalid JSON", line) for line in lines)


def test_the_command_that_it_shows_makes_the_same_dataset(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(built)]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    paths = {"odd=INPUT": f"odd={built.parent}/odd.jsonl", "rest=INPUT": f"rest={built.parent}/in"}
    words = [{**paths, "DATASET": str(built.parent / "again")}.get(word, word) for word in command]
    assert main([*words[1:], "--workers", "1", "--quiet"]) == 0
    assert pipeline.Manifest.read(built.parent / "again").fingerprint == pipeline.Manifest.read(built).fingerprint
