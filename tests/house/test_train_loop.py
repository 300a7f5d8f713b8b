"""The loops of the pages on training and on epochs go on after a kill, the first one under torchrun, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers import interpreters
from tests.helpers.documentation import ROOT, blocks_of
from tests.helpers.shard_samples import EOS, write_dataset

LOOP = blocks_of("docs/train.md")[0][1]
[EPOCHS] = (block for _, block in blocks_of("docs/epochs.md") if "set_epoch" in block)


def run(folder: Path, code: str, *launcher: str) -> str:
    (folder / "train.py").write_text(code)
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    if launcher:
        command = [sys.executable, *launcher, "train.py"]
        environment = {**os.environ, **variables}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    else:
        done = interpreters.run(folder / "train.py", cwd=folder, variables=variables)
    assert done.returncode == 0 or "Killed" in code, done.stderr
    return done.stdout


def losses(printed: str) -> dict[int, float]:
    lines = [line.split() for line in printed.splitlines() if line[:1].isdigit()]
    return {int(step): float(loss) for step, loss in lines}


KILLED = LOOP.replace("    if step % 10", "    if step == 25:\n        os._exit(1)  # Killed\n    if step % 10")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    documents = np.random.default_rng(0).integers(1, 300, (200, 90)).astype("<u2")
    documents[:, -1] = EOS
    write_dataset(tmp_path / "shards", [list(documents)], vocab_size=300)
    return tmp_path


@pytest.mark.stacks
def test_the_loop_goes_on_exactly_after_a_kill(folder: Path) -> None:
    seeded = [
        code.replace("torch.nn.Sequential(", "torch.manual_seed(0) and torch.nn.Sequential(") for code in (LOOP, KILLED)
    ]
    whole = losses(run(folder, seeded[0]))
    assert list(whole) == [10, 20, 30, 40]
    (folder / "checkpoint.pt").unlink()
    assert list(losses(run(folder, seeded[1]))) == [10, 20]
    assert losses(run(folder, seeded[0])) == {step: whole[step] for step in (30, 40)}


@pytest.mark.stacks
def test_the_loop_over_epochs_goes_on_exactly_after_a_kill(folder: Path) -> None:
    code = EPOCHS.replace("torch.nn.Sequential(", "torch.manual_seed(0) and torch.nn.Sequential(")
    whole = losses(run(folder, code))
    assert list(whole) == [10, 20, 30, 40, 50]  # epochs of 17 steps
    (folder / "epochs.pt").unlink()
    for step, printed in ((25, [10, 20]), (38, [30])):
        killed = code.replace(
            "        schedule.step()\n",
            f"        schedule.step()\n        schedule.last_epoch == {step} and os._exit(1)  # Killed\n",
        )
        assert list(losses(run(folder, killed))) == printed
    assert losses(run(folder, code)) == {step: whole[step] for step in (40, 50)}


@pytest.mark.stacks
def test_the_loop_goes_on_under_torchrun(folder: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    assert list(losses(run(folder, KILLED, *torchrun))) == [10, 20]
    # A thread of gloo may still free what it reduced, and aborts if Python ends first (pytorch#179291).
    assert list(losses(run(folder, f"{LOOP}\nimport time\ntime.sleep(1)\n", *torchrun))) == [30, 40]
    assert json.loads(torch.load(folder / "checkpoint.pt")["data"]["shape"])["lanes"] == 64
    assert torch.load(folder / "checkpoint.pt")["data"]["sequence_index"] == 40 * 8 * 2
