"""SIGTERM to all processes of a job: the worker_init_fn of docs/clusters.md lets the training save, and its workers end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

import pipeline
from tests.helpers.documentation import PAGES
from tests.helpers.interpreters import Interpreter

pytestmark = pytest.mark.stacks
INDENTED = PAGES["docs/clusters.md"].partition("  ```python\n")[2].partition("  ```\n")[0]
RECIPE = "".join(line.removeprefix("  ") for line in INDENTED.splitlines(keepends=True))
AROUND = """
import os, time, pipeline
stream = pipeline.ShardDataset.from_tokens(range(4096)).shuffle().pack(16).batch(2)
seen = []


def train(batch):
    seen.append(batch["input_ids"].tolist())
    if len(seen) > 3:
        print("running", flush=True)  # within the fourth batch, so that the signal comes there however long anything takes
        while not stopped:
            time.sleep(0.01)
        time.sleep(0.5)  # until workers that the signal ends have ended


"""


def run_until_sigterm(folder: Path, recipe: str) -> tuple[int, list[str]]:
    """Run a recipe in a process group of its own, send SIGTERM to the group, and return the status and what it printed."""
    reading, writing = os.pipe()
    with open(reading) as output, open(os.devnull, "wb") as nothing:
        code = AROUND + recipe + 'print(len(seen), "saved", flush=True)'
        process = Interpreter("-c", code, stdout=writing, stderr=nothing.fileno(), cwd=folder, new_session=True)
        os.close(writing)
        assert output.readline() == "running\n"
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)
        return process.returncode, output.read().splitlines()


def test_a_training_with_workers_saves_after_sigterm_to_its_process_group(tmp_path: Path) -> None:
    status, printed = run_until_sigterm(tmp_path, RECIPE)
    assert (status, printed) == (0, ["4 saved"])
    stream = pipeline.ShardDataset.from_tokens(range(4096)).shuffle().pack(16).batch(2)
    expected = list(zip(range(5), stream, strict=False))[4][1]
    resumed = pipeline.ShardDataset.from_tokens(range(4096)).shuffle().pack(16).batch(2)
    resumed.load_state_dict(json.loads((tmp_path / "data.json").read_text()))
    assert next(iter(resumed))["input_ids"].tolist() == expected["input_ids"].tolist()


def test_without_the_function_workers_end_and_nothing_is_saved(tmp_path: Path) -> None:
    plain = RECIPE.replace(", worker_init_fn=outlive_sigterm", "")
    assert plain != RECIPE
    status, printed = run_until_sigterm(tmp_path, plain)
    assert status != 0
    assert printed == []
