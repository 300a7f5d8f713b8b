"""Two epochs are two epochs in Trainer, Accelerate and Lightning, also when resumed inside one or at its end."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from tests.helpers.shard_samples import EOS, write_dataset
from tests.stream.ranks import run_ranks
from tests.stream.recipes import VOCABULARY, killed_and_resumed, make_stream, recorded, run_recipe

pytestmark = pytest.mark.stacks
IMPORT = "from torchdata.stateful_dataloader import StatefulDataLoader"
TRAINER = [("max_steps=max_steps", "num_train_epochs=epochs_to_train")]
LIGHTNING = [("max_steps=max_steps", "max_epochs=epochs_to_train")]
ACCELERATE = [
    (
        "accelerator, loader = Accelerator(), stream.loader()",
        "accelerator, loader = Accelerator(), stream.loader()\nstep = 0",
    ),
    (
        "for step, batch in zip(range(1, max_steps + 1), loader):\n",
        "for epoch, batch in ((epoch, batch) for epoch in epochs_of_loop for batch in starting(loader, epoch)):\n    step += 1\n",
    ),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One rank takes 7 batches of an epoch. Of epochs cut one after the other, each second would have 6."""
    directory = tmp_path_factory.mktemp("epochs") / "data"
    generator = np.random.default_rng(0)
    lengths = [10] * 20
    shards = [[np.append(generator.integers(1, VOCABULARY, size=n - 1), EOS).astype("<u2") for n in lengths]]
    write_dataset(directory, shards, vocab_size=VOCABULARY)
    return str(directory)


def starting(loader: Any, epoch: int) -> Any:
    loader.set_epoch(epoch)
    return loader


def epochs(dataset: str, count: int, world_size: int) -> list[list[Any]]:
    """Return the rows of each step of each epoch, whatever rank has them."""
    found = []
    streams = [make_stream(dataset, 1).shard(rank, world_size) for rank in range(world_size)]
    for epoch in range(count):
        for stream in streams:
            stream.set_epoch(epoch)
        ranks = [[batch["input_ids"].tolist() for batch in stream] for stream in streams]
        found.append([sorted(row for batch in step for row in batch) for step in zip(*ranks, strict=True)])
    return found


def changes(name: str, count: int, save_every: int) -> dict[str, Any]:
    replace = {"trainer": TRAINER, "lightning": LIGHTNING, "accelerate": ACCELERATE}[name]
    found: dict[str, Any] = {"epochs": 1, "epochs_to_train": count, "save_every": save_every, "replace": replace}
    if name == "accelerate":
        found |= {"epochs_of_loop": range(count), "starting": starting}
    return found


@pytest.mark.parametrize("name", ["trainer", "lightning", "accelerate"])
def test_epochs_follow_one_another(dataset: str, tmp_path: Path, name: str) -> None:
    world_size = 2
    expected = epochs(dataset, 3, world_size)
    assert expected[0] != expected[1] != expected[2]
    run_ranks(run_recipe, world_size, name, dataset, str(tmp_path), str(tmp_path), None, changes(name, 3, 100))
    assert recorded(tmp_path, world_size) == [step for epoch in expected for step in epoch]


def test_lightning_reads_the_next_epoch_after_limit_train_batches(dataset: str, tmp_path: Path) -> None:
    expected = [step for epoch in epochs(dataset, 3, 1) for step in epoch[:3]]
    limited = changes("lightning", 3, 100)
    limited["replace"] = [("max_steps=max_steps", "max_epochs=epochs_to_train, limit_train_batches=3")]
    run_ranks(run_recipe, 1, "lightning", dataset, str(tmp_path), str(tmp_path), None, limited)
    assert recorded(tmp_path, 1) == expected


@pytest.mark.parametrize(
    ("name", "saved", "why"),
    [
        *((name, 24, "in epoch 3") for name in ("trainer", "lightning", "accelerate")),
        ("lightning", 28, "at the end of epoch 3"),
        *(
            pytest.param(name, 28, "at the end of epoch 3", marks=pytest.mark.nightly)
            for name in ("trainer", "accelerate")
        ),
    ],
)
def test_a_run_killed_in_an_epoch_or_at_its_end_goes_on(
    dataset: str, tmp_path: Path, name: str, saved: int, why: str
) -> None:
    expected = [step for epoch in epochs(dataset, 6, 1) for step in epoch]
    assert len(expected) == 6 * 7
    count = 5
    again = changes(name, count, 100)
    if name == "accelerate":  # a loop that counts its passes from 0 after every restart, as frameworks do
        again["epochs_of_loop"] = range(count - saved // 7)
    killed, resumed = killed_and_resumed(name, dataset, tmp_path, saved + 2, changes(name, count, saved), again)
    assert killed == expected[: saved + 1]
    assert resumed == expected[saved : count * 7], why


def test_trainer_counts_max_steps_over_the_epochs_of_a_bounded_stream(dataset: str, tmp_path: Path) -> None:
    saved = 7
    expected = [step for epoch in epochs(dataset, 3, 1) for step in epoch]
    first = {"epochs": 1, "max_steps": 20, "save_every": saved}
    _, resumed = killed_and_resumed("trainer", dataset, tmp_path, saved + 2, first, first | {"save_every": 100})
    assert resumed == expected[saved:20]


@pytest.mark.parametrize(("name", "saved"), [("lightning", 7), ("accelerate", 3)])
def test_passes_of_a_mix_are_whole_after_a_run_was_killed_in_one(
    dataset: str, tmp_path: Path, name: str, saved: int
) -> None:
    sources = {each: pipeline.ShardDataset(dataset) for each in "ab"}
    mixed = pipeline.mix(sources, {"a": 1, "b": 2}).shuffle(seed=1, lanes=6).pack(16).batch(2)
    expected = [sorted(batch["input_ids"].tolist()) for batch in islice(mixed, 21)]
    taken = {"stream": mixed.take(7)}
    again = changes(name, 3, 100) | taken
    if name == "accelerate":
        again["epochs_of_loop"] = range(3 - saved // 7)
    killed, resumed = killed_and_resumed(name, dataset, tmp_path, saved + 2, changes(name, 3, saved) | taken, again)
    assert killed == expected[: saved + 1]
    assert resumed == expected[saved:]


@pytest.mark.parametrize(
    ("loader", "saved"),
    [("stream", 6), ("StatefulDataLoader(stream, batch_size=None, num_workers=2)", 3)],
)
def test_lightning_loses_no_batch_without_the_loader(dataset: str, tmp_path: Path, loader: str, saved: int) -> None:
    (expected,) = epochs(dataset, 1, 1)
    code = [("stream.loader()", loader), ("import pytorch_lightning", f"{IMPORT}\nimport pytorch_lightning")]
    bounded = {"epochs": 1, "max_steps": 7, "save_every": saved, "replace": code}
    _, resumed = killed_and_resumed("lightning", dataset, tmp_path, saved + 1, bounded, bounded)
    assert resumed == expected[saved:]


@pytest.mark.parametrize(
    "loader",
    ["stream", "StatefulDataLoader(stream, None, num_workers=2)"],
)
def test_lightning_is_refused_a_loader_without_a_length(dataset: str, tmp_path: Path, loader: str) -> None:
    code = [("stream.loader()", loader), ("import pytorch_lightning", f"{IMPORT}\nimport pytorch_lightning")]
    with pytest.raises(AssertionError, match=r"would lose a batch .* stream\.loader\(\)"):
        run_ranks(run_recipe, 1, "lightning", dataset, str(tmp_path), str(tmp_path), None, {"replace": code})
