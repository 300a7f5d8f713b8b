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
    if len(seen) == 4:
        print("running", flush=True)  # within the fourth batch, so that the signal comes there however long anything takes
        while not stopped or wait_for_error:
            time.sleep(0.01)
        time.sleep(0.5)  # the death of a worker would raise an error here


"""


def run_until_sigterm(folder: Path, recipe: str, wait_for_error: bool) -> tuple[int, list[str], str]:
    """Run a recipe in a process group of its own, send SIGTERM to the group; return its status, its output and its errors.

    ``wait_for_error``: the training ends when a worker's death raises an error in it, and not before.
    """
    reading, writing = os.pipe()
    with open(reading) as output, open(folder / "errors", "w+") as errors:
        code = f"wait_for_error = {wait_for_error}\n{AROUND}{recipe}print(len(seen), 'saved', flush=True)"
        process = Interpreter("-c", code, stdout=writing, stderr=errors.fileno(), cwd=folder, new_session=True)
        os.close(writing)
        assert output.readline() == "running\n"
        os.killpg(process.pid, signal.SIGTERM)
        return process.wait(), output.read().splitlines(), (folder / "errors").read_text()


def test_a_training_with_workers_saves_after_sigterm(tmp_path: Path) -> None:
    status, printed, errors = run_until_sigterm(tmp_path, RECIPE, wait_for_error=False)
    assert (status, printed) == (0, ["4 saved"]), errors
    stream = pipeline.ShardDataset.from_tokens(range(4096)).shuffle().pack(16).batch(2)
    expected = list(zip(range(5), stream, strict=False))[4][1]
    resumed = pipeline.ShardDataset.from_tokens(range(4096)).shuffle().pack(16).batch(2)
    resumed.load_state_dict(json.loads((tmp_path / "data.json").read_text()))
    assert next(iter(resumed))["input_ids"].tolist() == expected["input_ids"].tolist()


def test_without_the_function_sigterm_ends_the_training(tmp_path: Path) -> None:
    plain = RECIPE.replace(", worker_init_fn=outlive_sigterm", "")
    assert plain != RECIPE
    status, printed, errors = run_until_sigterm(tmp_path, plain, wait_for_error=True)
    assert (status, printed) == (1, [])
    assert "is killed by signal: Terminated" in errors
    assert not (tmp_path / "data.json").exists()
