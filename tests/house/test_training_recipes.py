"""Every program of docs/recipes.md that trains, and the notebook, runs as it stands, and its losses fall."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.documentation import ROOT, blocks_of, run_block
from tests.helpers.shard_samples import write_dataset

pytestmark = pytest.mark.stacks

MASKING, LOOP, TENSORBOARD, WANDB, CHART, ONLINE = (block for _, block in blocks_of("docs/recipes.md")[-6:])
LOGGED = {"loss", "data/tokens", "data/tokens_per_second", "data/waited_share"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a dataset in which each token follows from the one before."""
    tokens = (np.arange(20_000) * 7 % 49 + 1).astype("<u2")
    write_dataset(tmp_path / "shards", [list(tokens.reshape(200, -1))], vocab_size=50)
    return tmp_path


def run(program: str, folder: Path) -> str:
    return run_block("python", program, folder, MPLBACKEND="Agg")


def test_masks_are_alike_after_a_resume_and_on_other_ranks(folder: Path) -> None:
    checks = """
def rows(*streams):
    batches = [batch for each in streams for batch in each]
    return sorted(row for batch in batches for row in zip(batch["input_ids"].tolist(), batch["labels"].tolist()))


pipeline.assert_resumes(lambda: stream.map(mask).take(12))
whole, (first, second) = stream.map(mask).take(4), (stream.map(mask).shard(rank, 2).take(2) for rank in range(2))
assert rows(whole) == rows(first, second)
counted = (batch["labels"] != -100).float().mean().item()
masked = (batch["input_ids"] == mask_id)[batch["labels"] != -100].float().mean().item()
print(loss.item(), counted, masked)
"""
    loss, counted, masked = map(float, run(MASKING + checks, folder).split())
    assert loss < np.log(51)
    assert 0.1 < counted < 0.2
    assert 0.65 < masked < 0.95


def test_tensorboard_gets_the_loss_and_the_counts_of_each_step(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    run(LOOP + TENSORBOARD, folder)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "logs"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == LOGGED
    losses = events.Scalars("loss")
    assert [event.step for event in losses] == list(range(1, 21))
    assert losses[-1].value < losses[0].value - 0.5
    assert [event.value for event in events.Scalars("data/tokens")] == [1024.0 * step for step in range(1, 21)]


@pytest.mark.nightly
def test_wandb_logs_offline(folder: Path) -> None:
    pytest.importorskip("wandb")
    run(LOOP + WANDB, folder)
    (written,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    assert b"data/waited_share" in written.read_bytes()


def test_the_chart_of_a_mix_shows_the_shares_that_the_weights_ask_for(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    shares = json.loads(run(CHART + "\nprint(json.dumps({name: list(own) for name, own in shares.items()}))", folder))
    assert len(shares["web"]) == 7
    assert np.mean(shares["web"][:3]) == pytest.approx(0.9, abs=0.1)
    assert np.mean(shares["web"][-3:]) == pytest.approx(0.5, abs=0.1)
    assert (folder / "mix.png").stat().st_size > 5_000


def test_weights_that_follow_the_losses_go_on_exactly_after_kills(folder: Path) -> None:
    noise = np.random.default_rng(0).integers(1, 50, (200, 100)).astype("<u2")
    write_dataset(folder / "noise", [list(noise)], vocab_size=50)
    sources = 'web, code = pipeline.ShardDataset("shards"), pipeline.ShardDataset("noise")'
    split = 'web, code = pipeline.ShardDataset("shards").split(val=0.5)'
    assert split in ONLINE
    program = ONLINE.replace(split, sources) + "\nprint(step, sums.tolist(), model[1].weight.sum().item())"
    whole = run(program, folder)
    changes = [ast.literal_eval(line.partition("} ")[2]) for line in whole.splitlines()[:-1]]
    assert len(changes) == 3
    assert all(shares["code"] > shares["web"] > 0.05 for shares in changes)
    (folder / "online.pt").unlink()
    save = '    os.replace("online.tmp", "online.pt")\n'
    killed = save + '    if step in (100, 250):\n        print(end="", flush=True)\n        os._exit(0)\n'
    parts = [run(program.replace(save, killed), folder) for _ in range(3)]
    assert "".join(parts) == whole
    assert [len(part.splitlines()) for part in parts] == [0, 2, 2]


def test_the_notebook_goes_from_text_to_a_plot_of_the_loss(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    notebook = json.loads((ROOT / "docs/examples.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    program = "\n".join("".join(cell["source"]) for cell in cells)
    shown = program.replace("pyplot.show()", "pyplot.savefig('loss.png')\nprint(losses[0], losses[-1], validated[100])")
    first, last, validated = map(float, run(shown, tmp_path).split())
    assert max(last, validated) < first - 1
    assert (tmp_path / "loss.png").stat().st_size > 5_000
