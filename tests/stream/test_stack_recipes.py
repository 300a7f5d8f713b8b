"""The recipes of the README, killed by SIGKILL and run again, go on with the very batches that were due."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.shard_samples import EOS, write_dataset
from tests.stream import recipes
from tests.stream.ranks import run_ranks
from tests.stream.recipes import RECIPES, VALIDATION_BATCHES, VOCABULARY, killed_and_resumed, make_stream, run_recipe

pytestmark = pytest.mark.stacks
BATCH = 2


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("recipes") / "data"
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 40, size=(3, 20))
    shards = [[np.append(generator.integers(1, VOCABULARY, n), EOS).astype("<u2") for n in some] for some in sizes]
    write_dataset(directory, shards, vocab_size=VOCABULARY)
    return str(directory)


def steps(rows: list[Any], world_size: int) -> list[list[Any]]:
    size = BATCH * world_size
    return [sorted(rows[n : n + size]) for n in range(0, len(rows), size)]


@pytest.mark.parametrize(("ranks", "others"), [pytest.param(1, 1, marks=pytest.mark.nightly), (2, 1)])
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_that_was_killed_goes_on_exactly(
    dataset: str, tmp_path: Path, name: str, ranks: int, others: int
) -> None:
    whole = [row for batch in islice(make_stream(dataset), 40) for row in batch["input_ids"].tolist()]
    others = ranks if name == "rows" else others  # a Trainer skips batches of its ranks
    killed, found = killed_and_resumed(name, dataset, tmp_path, 8, {}, {}, (ranks, others))
    assert killed == steps(whole, ranks)[:7]
    assert len(found) >= 3
    assert found == steps(whole[6 * ranks * BATCH :], others)[: len(found)]


def test_the_recipe_of_dcp_restores_the_moments_of_an_optimizer(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(folder: str, max_steps: int) -> list[torch.Tensor]:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        torch.manual_seed(0)
        model = recipes.plain_model(recipes.Recorder(tmp_path / "rows", None))
        around = {"stream": make_stream(dataset), "model": model, "optimizer": torch.optim.AdamW(model.parameters())}
        exec(RECIPES["dcp"], {**around, "max_steps": max_steps, "save_every": 2})
        return list(model.parameters())

    whole = train("whole", 8)
    train("resumed", 4)
    assert all(torch.equal(one, other) for one, other in zip(whole, train("resumed", 8), strict=True))


@pytest.mark.parametrize("name", ["trainer", "accelerate", "lightning"])
def test_each_evaluation_of_a_recipe_sees_the_same_batches_whole(dataset: str, tmp_path: Path, name: str) -> None:
    ranks = 2
    run_ranks(run_recipe, ranks, name, dataset, str(tmp_path), str(tmp_path), None, {})
    for rank in range(ranks):
        stream = make_stream(dataset, 1).take(VALIDATION_BATCHES).shard(rank, ranks)
        whole = [batch["input_ids"].tolist() for batch in stream]
        found = [json.loads(line) for line in (tmp_path / f"{rank}.evaluated").read_text().splitlines()]
        if name == "lightning":  # looks at two batches before it trains
            assert found[:2] == whole[:2]
            found = found[2:]
        assert len(found) >= 4 * len(whole)  # of 9 steps, every other one is followed by an evaluation
        assert found == whole * (len(found) // len(whole))
