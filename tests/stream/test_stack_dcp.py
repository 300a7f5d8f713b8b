"""torch.distributed.checkpoint saves a stream as it saves a model: exact on the same ranks, and on others."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import pipeline
from pipeline.errors import StateError
from tests.helpers.shard_samples import make_documents, write_dataset
from tests.stream.ranks import run_ranks

pytestmark = pytest.mark.stacks
Rows = list[list[int]]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("dcp") / "data"
    write_dataset(directory, [make_documents(n, seed=n) for n in (30, 1, 25, 40)])
    write_dataset(directory / "other", [make_documents(60, seed=9)])
    return str(directory)


def odd_rows(items: Any) -> Any:
    yield from (item for item in items if int(item["input_ids"].sum()) % 2)


def passed_on(items: Any) -> Any:
    yield from items


def longer_than_five(ids: Any) -> bool:
    return len(ids) > 5


def make(dataset: str, kind: str) -> pipeline.Stream:
    if kind == "mix":
        sources = {"a": pipeline.ShardDataset(dataset), "b": pipeline.ShardDataset(f"{dataset}/other")}
        data = pipeline.mix(sources, weights={"a": 0.8, "b": 0.2})
        return data.shuffle(seed=1, lanes=6).pack(16).batch(2)
    data = pipeline.ShardDataset(dataset)
    if kind == "sequential":
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        return data.filter(longer_than_five).shuffle(seed=1, lanes=12).pack(16).batch(6 // ranks)
    packed = data.shuffle(seed=1, lanes=6).pack(16)
    if kind == "dropping":
        return packed.apply(odd_rows).batch(2)
    if kind == "generator":
        return packed.apply(passed_on).batch(2)
    return packed.batch(2)


def rows_of(batches: Any) -> Rows:
    return [row for batch in batches for row in batch["input_ids"].tolist()]


def run(dataset: str, kind: str, load: str | None, save: str | None, batches: int, weights: dict | None) -> Any:
    """Load, take some batches, set weights, take as many again, save; return the rows and the state."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    stream = make(dataset, kind)
    if load is not None:
        dcp.load({"data": stream}, checkpoint_id=load)
    rows = rows_of(islice(stream, batches))
    if weights is not None:
        stream.set_weights(weights)
        rows += rows_of(islice(stream, batches))
    if save is not None:
        dcp.save({"data": stream}, checkpoint_id=save)
    return rows, stream.state_dict()


def steps(ranks: list[Any], batch_size: int = 2) -> list[Rows]:
    """Return the rows of each global batch, whatever rank had them."""
    batches = [[rows[n : n + batch_size] for n in range(0, len(rows), batch_size)] for rows, _ in ranks]
    return [sorted(row for batch in step for row in batch) for step in zip(*batches, strict=True)]


def flat(found: list[Rows]) -> Rows:
    return sorted(row for step in found for row in step)


@pytest.mark.parametrize("kind", ["plain", "generator"])
def test_ranks_two_one_and_three_go_on_in_one_order(dataset: str, tmp_path: Path, kind: str) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    whole = rows_of(islice(make(dataset, kind), 3 * 2 + 4 + 3 * 2))
    counts = [2, 1] if kind == "generator" else [2, 1, 3]  # a stage of the user's own binds the keys to the ranks
    found: Rows = []
    for number, ranks in enumerate(counts):
        load, save = [(None, first), (first, second), (second, None)][number]
        part = flat(steps(run_ranks(run, ranks, dataset, kind, load, save, 2, None)))
        assert part == sorted(whole[len(found) : len(found) + len(part)])
        found += part


def test_weights_that_were_set_in_mid_run_survive(dataset: str, tmp_path: Path) -> None:
    ranks = (2, 1, 3)
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    before, after = {"a": 0.8, "b": 0.2}, {"a": 0.1, "b": 0.9}
    expected = make(dataset, "mix")
    rows = rows_of(islice(expected, 3 * ranks[0]))
    expected.set_weights(after)
    rows += rows_of(islice(expected, 3 * sum(ranks)))
    expected.set_weights(before)
    rows += rows_of(islice(expected, 3 * sum(ranks)))
    found: Rows = []
    for count, load, save, weights in (
        (ranks[0], None, first, after),
        (ranks[1], first, second, None),
        (ranks[2], second, None, None),
    ):
        part = flat(steps(run_ranks(run, count, dataset, "mix", load, save, 3, weights)))
        assert part == sorted(rows[len(found) : len(found) + len(part)])
        found += part


def test_lanes_are_found_by_other_ranks_without_merging(dataset: str, tmp_path: Path) -> None:
    whole, _ = run_ranks(run, 1, dataset, "sequential", None, None, 7, None)[0]
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    found: Rows = []
    for ranks, load, save, batches in (
        (2, None, first, 2),
        (2, first, second, 1),
        (1, second, third, 3),
        (3, third, None, 1),
    ):
        parts = [rows for rows, _ in run_ranks(run, ranks, dataset, "sequential", load, save, batches, None)]
        share = 6 // ranks
        found += [row for step in range(batches) for rows in parts for row in rows[step * share : (step + 1) * share]]
    assert found == whole


def test_a_stage_that_drops_goes_on_on_the_same_ranks_alone(dataset: str, tmp_path: Path) -> None:
    saved = str(tmp_path / "saved")
    whole = [rows for rows, _ in run_ranks(run, 2, dataset, "dropping", None, None, 6, None)]
    first = [rows for rows, _ in run_ranks(run, 2, dataset, "dropping", None, saved, 3, None)]
    rest = [rows for rows, _ in run_ranks(run, 2, dataset, "dropping", saved, None, 3, None)]
    assert [a + b for a, b in zip(first, rest, strict=True)] == whole
    with pytest.raises(AssertionError, match=r"0\.odd_rows"):
        run_ranks(run, 1, dataset, "dropping", saved, None, 3, None)


@pytest.mark.parametrize("kind", ["mix", "sequential", "dropping"])
def test_a_state_that_dcp_gave_back_is_plain_json(dataset: str, tmp_path: Path, kind: str) -> None:
    saved = str(tmp_path / "saved")
    weights = {"a": 0.5, "b": 0.5} if kind == "mix" else None
    ((_, state),) = run_ranks(run, 1, dataset, kind, None, saved, 3, weights)
    loaded = {"data": make(dataset, kind).state_dict()}
    dcp.load(loaded, checkpoint_id=saved, no_dist=True)
    assert json.loads(json.dumps(loaded["data"])) == state
    resumed, expected = make(dataset, kind), make(dataset, kind)
    resumed.load_state_dict(loaded["data"])
    expected.load_state_dict(state)
    assert rows_of(islice(resumed, 3)) == rows_of(islice(expected, 3))


def test_a_checkpoint_of_another_shape_is_refused_naming_the_field(dataset: str, tmp_path: Path) -> None:
    saved = str(tmp_path / "saved")
    run_ranks(run, 1, dataset, "plain", None, saved, 3, None)
    bucketed = pipeline.ShardDataset(dataset).shuffle(seed=1, lanes=6).documents(bucket=4).batch(2)
    with pytest.raises(StateError, match=r"kind was 'pack' .* but is 'documents'"):
        dcp.load({"data": bucketed}, checkpoint_id=saved, no_dist=True)


class Titan:
    """What torchtitan does with a loader that its ``Config.build`` returns: steps, and a checkpoint of ``dataloader``."""

    def __init__(self, loader: Any) -> None:
        self.loader, self.step = loader, 0
        self.batches = iter(loader)

    def train(self, steps: int) -> Rows:
        found = []
        for _ in range(steps):
            inputs, labels = next(self.batches)
            assert inputs["input"].shape == inputs["positions"].shape == labels.shape
            assert torch.equal(inputs["input"].reshape(-1, 16)[:, 1:], labels.reshape(-1, 16)[:, :-1])
            found += inputs["input"].reshape(-1, 16).tolist()
            self.step += 1
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]

    def checkpoint(self) -> dict[str, Any]:
        return {"dataloader": self.loader, "train_state": self}


def run_titan(dataset: str, kind: str, load: str | None, save: str | None, steps: int) -> Any:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    loader = make(dataset, kind).loader(keys="torchtitan")
    titan = Titan(loader)
    if load is not None:
        dcp.load(titan.checkpoint(), checkpoint_id=load)
        titan.batches = iter(loader)
    rows = titan.train(steps)
    if save is not None:
        dcp.save(titan.checkpoint(), checkpoint_id=save)
    loader.close()
    return rows, titan.step


@pytest.mark.parametrize(("kind", "ranks", "others"), [("mix", 2, 2), ("plain", 2, 1)])
def test_torchtitans_protocol_resumes_a_loader_exactly(
    dataset: str, tmp_path: Path, kind: str, ranks: int, others: int
) -> None:
    saved = str(tmp_path / "saved")
    whole = rows_of(islice(make(dataset, kind), 3 * ranks + 2 * others))
    first = run_ranks(run_titan, ranks, dataset, kind, None, saved, 3)
    assert flat(steps(first)) == sorted(whole[: 3 * 2 * ranks])
    rest = run_ranks(run_titan, others, dataset, kind, saved, None, 2)
    assert [step for _, step in rest] == [5] * others
    assert flat(steps(rest)) == sorted(whole[3 * 2 * ranks :])
