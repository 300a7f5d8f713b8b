"""The training script learns, and goes on with the same losses after a kill, on another number of ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.shards.manifest import Manifest, Split
from scripts import train_gpt
from tests.shard_samples import EOS, write_dataset, write_documents

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "scripts/train_gpt.py")
STEPS, SAVE_EVERY = 30, 5
SIZES = ["--seq-len", "16", "--global-batch", "8", "--layers", "1", "--width", "32", "--lr", "1e-2"]
SIZES += ["--steps", str(STEPS), "--device", "cpu"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents that count up from anywhere, so that there is something to learn."""
    directory = tmp_path_factory.mktemp("train") / "data"
    generator = np.random.default_rng(0)
    starts = generator.integers(0, 31, size=(4, 60))
    shards = [[np.append(1 + (s + np.arange(20)) % 31, EOS).astype("<u2") for s in shard] for shard in starts]
    write_dataset(directory, shards, vocab_size=32)
    return directory


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def losses_of(output: str) -> dict[int, float]:
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def train(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[int, float]:
    assert train_gpt.main([*arguments, *SIZES]) == 0
    return losses_of(capsys.readouterr().out)


def killed_on_its_way(dataset: Path, checkpoint: Path) -> int:
    """Train until some step after a checkpoint, kill the process there, and return that step."""
    command = [sys.executable, SCRIPT, str(dataset), *SIZES, "--checkpoint", str(checkpoint)]
    process = subprocess.Popen([*command, "--save-every", str(SAVE_EVERY)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    step = 0
    for line in process.stdout:
        step = max([step, *losses_of(line)])
        if step >= 2 * SAVE_EVERY + 2:
            break
    process.kill()
    assert process.wait() == -9
    return max([step, *losses_of(process.stdout.read())])


def test_losses_fall_and_are_the_same_when_killed_and_resumed_on_two_ranks(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = train(capsys, str(dataset))
    assert list(whole) == list(range(1, STEPS + 1))
    assert whole[STEPS] < 0.75 * whole[1]
    last = killed_on_its_way(dataset, tmp_path / "run.pt")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT]
    resumed = subprocess.run(
        [*torchrun, str(dataset), *SIZES, "--checkpoint", str(tmp_path / "run.pt")],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert resumed.returncode == 0, resumed.stderr
    rest = losses_of(resumed.stdout)
    first = min(rest)
    assert 2 * SAVE_EVERY < first <= last + 1
    assert first % SAVE_EVERY == 1
    assert list(rest) == list(range(first, STEPS + 1))
    for step, loss in rest.items():
        assert loss == pytest.approx(whole[step], abs=1e-4), step


def test_validation_is_on_the_split_val_and_training_on_train_alone(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def validated(*arguments: str) -> tuple[dict[int, float], dict[int, float]]:
        assert train_gpt.main([str(tmp_path / "data"), *SIZES, "--validate-every", "20", *arguments]) == 0
        output = capsys.readouterr().out
        lines = [json.loads(line) for line in output.splitlines() if "val_loss" in line]
        return losses_of(output), {line["step"]: line["val_loss"] for line in lines}

    shutil.copytree(dataset, tmp_path / "data")
    constant = [np.append(np.full(20, 31), EOS).astype("<u2")] * 3  # which training never shows
    info = write_documents(tmp_path / "data" / "val-000000.tar", constant, 10_000)
    manifest = Manifest.read(dataset)
    replace(manifest, splits={**manifest.splits, "val": Split((info,))}).write(tmp_path / "data")
    losses, val_losses = validated()
    assert losses == train(capsys, str(dataset))
    assert list(val_losses) == [20, 30]
    assert val_losses[30] > losses[30]
    assert validated("--val-batches", "1")[1] == val_losses  # one batch holds all
    learned = validated("--split", "val")
    assert learned[0][30] < 0.5
    assert learned[1] == {}


def test_a_run_that_is_done_takes_no_step_more(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "run.pt"
    train(capsys, str(dataset), "--checkpoint", str(checkpoint))
    before = checkpoint.read_bytes()
    assert train(capsys, str(dataset), "--checkpoint", str(checkpoint)) == {}
    assert checkpoint.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]


def test_a_global_batch_that_ranks_cannot_share_is_refused() -> None:
    assert train_gpt.share(8, 4) == 2
    with pytest.raises(SystemExit, match="--global-batch 8 cannot be shared evenly by 3 ranks"):
        train_gpt.share(8, 3)
