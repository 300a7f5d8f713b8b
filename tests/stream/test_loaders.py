"""The global order is one, whoever loads: bare, DataLoader, StatefulDataLoader, ranks of torch.distributed."""

from __future__ import annotations

import json
import os
import pickle
from copy import deepcopy
from itertools import islice
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.loaders import assert_raises

BATCHES = 14


def make(dataset: Path, **options: Any) -> pipeline.Stream:
    return pipeline.ShardDataset(dataset, **options).shuffle(seed=1, lanes=6).pack(16).batch(2)


def ids(batches: Any) -> list[list[list[int]]]:
    return [batch["input_ids"].tolist() for batch in batches]


def drop_some(items: Any) -> Any:
    for item in items:
        if int(item["input_ids"][0]) % 3:
            yield item


def add_length(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "length": len(sample["input_ids"])}


@pytest.mark.parametrize(("start", "workers"), [("fork", 1), ("fork", 3), ("spawn", 2), ("forkserver", 3)])
def test_workers_of_any_start_method_give_the_order_without_workers(dataset: Path, start: str, workers: int) -> None:
    expected = ids(islice(make(dataset), BATCHES))
    stream = make(dataset).take(BATCHES)
    assert ids(DataLoader(stream, batch_size=None, num_workers=workers, multiprocessing_context=start)) == expected


@pytest.mark.parametrize(("factor", "ahead"), [(1, 0), (1, 3), (6, 0), (6, 3)])
def test_neither_order_nor_state_depends_on_how_far_workers_read_ahead(dataset: Path, factor: int, ahead: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    whole = ids(islice(make(dataset), 9))
    options = {"batch_size": None, "num_workers": 2, "prefetch_factor": factor}
    plain = make(dataset).prefetch(ahead)
    assert ids(islice(DataLoader(plain, **options), 5)) == whole[:5]
    bare = make(dataset)
    assert ids(islice(bare, 5)) == whole[:5]
    assert plain.state_dict(batches=5) == bare.state_dict()
    saving = stateful.StatefulDataLoader(make(dataset).prefetch(ahead), **options)
    assert ids(islice(saving, 5)) == whole[:5]
    # Saved with this much read ahead, gone on with none.
    resumed = stateful.StatefulDataLoader(make(dataset), batch_size=None, num_workers=2)
    resumed.load_state_dict(json.loads(json.dumps(saving.state_dict())))
    assert ids(islice(resumed, 4)) == whole[5:]


@pytest.mark.parametrize("last", ["pad", "drop"])
def test_more_ranks_times_workers_than_shards_take_equally_many_steps(dataset: Path, last: str) -> None:
    def stream() -> pipeline.Stream:
        return pipeline.ShardDataset(dataset, epochs=1).shuffle(seed=1, lanes=6).pack(16)

    world_size = 3
    ranks = [
        ids(DataLoader(stream().shard(r, world_size).batch(2, last=last), batch_size=None, num_workers=2))
        for r in range(world_size)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    rows = [row for step in zip(*([r for b in rank for r in b] for rank in ranks), strict=True) for row in step]
    whole = ids(stream())
    kept = whole if last == "pad" else whole[: len(whole) // (2 * world_size) * 2 * world_size]
    # The last sequence is filled up with end-of-text ids, as are rows that pad the last batch.
    assert rows[: len(kept)] == kept
    assert not any(t for row in rows[len(kept) :] for t in row)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_bounded_stream_ends_at_the_same_batch_for_any_number_of_workers(dataset: Path, workers: int) -> None:
    loader = DataLoader(make(dataset, epochs=1), batch_size=None, num_workers=workers)
    assert ids(loader) == ids(make(dataset, epochs=1))


@pytest.mark.parametrize("workers", [1, 3])
def test_stages_that_change_or_drop_samples_keep_the_order_in_workers(dataset: Path, workers: int) -> None:
    def stream() -> pipeline.Stream:
        source = pipeline.ShardDataset(dataset).shuffle(seed=1, lanes=6).pack(16)
        return source.map(add_length).apply(drop_some).batch(2).take(8)

    loader = DataLoader(stream(), batch_size=None, num_workers=workers)
    assert ids(loader) == ids(stream())
    mapped = make(dataset).map(add_length).take(5)
    assert ids(DataLoader(mapped, batch_size=None, num_workers=workers)) == ids(mapped)


def test_persistent_workers_see_a_place_that_is_set_between_epochs(dataset: Path) -> None:
    stream = make(dataset)
    loader = DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True)
    assert ids(islice(loader, 3)) == ids(islice(make(dataset), 3))
    stream.set_epoch(2)
    expected = make(dataset)
    expected.set_epoch(2)
    assert ids(islice(loader, 3)) == ids(islice(expected, 3))
    state = stream.state_dict(batches=3)
    stream.load_state_dict(state)
    assert ids(islice(loader, 4)) == ids(islice(expected, 7))[3:]
    assert ids(islice(loader, 4)) == ids(islice(expected, 7))[3:]


def test_the_place_behind_a_plain_loader_is_counted_by_batches_and_refused_otherwise(dataset: Path) -> None:
    stream = make(dataset)
    assert stream.state_dict()["sequence_index"] == 0
    loader = iter(DataLoader(stream, batch_size=None, num_workers=2, prefetch_factor=4))
    for _ in range(5):
        next(loader)
    with pytest.raises(StateError, match=r"batches=n"):
        stream.state_dict()
    state = stream.state_dict(batches=5)
    del loader
    resumed = make(dataset)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    assert ids(islice(resumed, 4)) == ids(islice(make(dataset), 9))[5:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("every", [1, 3])
def test_stateful_data_loader_resumes_after_any_batch(dataset: Path, workers: int, every: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader() -> Any:
        return stateful.StatefulDataLoader(
            make(dataset, epochs=1), batch_size=None, num_workers=workers, snapshot_every_n_steps=every
        )

    whole = ids(make(dataset, epochs=1))
    for stop in (0, 1, 4, 5, len(whole) - 1):
        first = loader()
        seen = ids(islice(first, stop)) if stop else []
        state = deepcopy(first.state_dict())
        del first
        second = loader()
        second.load_state_dict(state)
        assert seen + ids(second) == whole, stop


def test_stateful_data_loader_starts_its_next_epoch_at_the_place_not_at_the_offset(dataset: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader() -> Any:
        stream = make(dataset).take(6)
        return stateful.StatefulDataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True)

    whole = ids(make(dataset).take(6))
    first = loader()
    assert ids(islice(first, 4)) == whole[:4]
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert ids(second) == whole[4:]
    assert ids(second) == whole


def test_stages_that_remember_resume_in_the_workers_of_a_stateful_data_loader(dataset: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader() -> Any:
        stream = make(dataset).apply(drop_some_batches).take(9)
        return stateful.StatefulDataLoader(stream, batch_size=None, num_workers=2)

    whole = ids(make(dataset).apply(drop_some_batches).take(9))
    first = loader()
    seen = ids(islice(first, 4))
    second = loader()
    second.load_state_dict(first.state_dict())
    assert seen + ids(second) == whole


def drop_some_batches(batches: Any) -> Any:
    for batch in batches:
        if int(batch["input_ids"][0, 0]) % 3:
            yield batch


def test_copies_and_pickles_stand_where_the_stream_stood_and_move_apart(dataset: Path) -> None:
    stream = make(dataset)
    stream.set_epoch(1)
    for twin in (deepcopy(stream), pickle.loads(pickle.dumps(stream))):
        assert ids(islice(twin, 2)) == ids(islice(stream, 2))
        twin.set_epoch(3)
    assert stream.state_dict(batches=0)["sequence_index"] == make_epoch_start(dataset, 1)


def make_epoch_start(dataset: Path, epoch: int) -> int:
    stream = make(dataset)
    stream.set_epoch(epoch)
    return stream.state_dict()["sequence_index"]


@pytest.mark.parametrize("start", [None, "fork", "forkserver"])
def test_several_launched_processes_without_a_group_are_an_error_that_names_every_cure(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, start: str | None
) -> None:
    expected = ids(islice(make(dataset), 3))
    forkserver.ensure_running()  # before, so that its processes do not see the variables, as a server of other tests would
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    def read(stream: pipeline.Stream) -> Any:
        workers = 0 if start is None else 1
        return DataLoader(stream.take(3), batch_size=None, num_workers=workers, multiprocessing_context=start)

    assert_raises(
        ConfigError,
        r"WORLD_SIZE is 2 .*init_process_group.*\.shard\(rank, world_size\).*\.shard\(0, 1\)",
        read(make(dataset)),
    )
    assert "ShardDataset" in repr(make(dataset))
    assert ids(read(make(dataset).shard(0, 1))) == expected


@pytest.mark.parametrize("size", ["1", "", "two"])
def test_environment_variables_alone_never_decide_the_rank(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    expected = ids(islice(make(dataset), 3))
    for name, value in {"RANK": "1", "WORLD_SIZE": size, "SLURM_NTASKS": "4", "SLURM_PROCID": "1"}.items():
        monkeypatch.setenv(name, value)
    assert ids(islice(make(dataset), 3)) == expected


class _MadeInWorker(IterableDataset[Any]):
    """A dataset of the user, which makes its stream where it is iterated."""

    def __init__(self, dataset: Path, *topology: int) -> None:
        self.dataset, self.topology = dataset, topology

    def __iter__(self) -> Any:
        stream = make(self.dataset).take(3)
        return iter(stream.shard(*self.topology) if self.topology else stream)


def test_a_stream_made_in_a_worker_that_cannot_see_its_parents_group_is_an_error(dataset: Path) -> None:
    expected = ids(islice(make(dataset), 3))
    options: dict[str, Any] = {"batch_size": None, "num_workers": 1}
    loader = DataLoader(_MadeInWorker(dataset), multiprocessing_context="forkserver", **options)
    assert_raises(ConfigError, r"cannot see whether its parent has a process group.*\.shard\(0, 1\)", loader)
    made = _MadeInWorker(dataset, 0, 1)
    assert ids(DataLoader(made, multiprocessing_context="forkserver", **options)) == expected
    assert ids(DataLoader(_MadeInWorker(dataset), multiprocessing_context="fork", **options)) == expected


def _rank_with_a_late_group(rank: int, dataset: str, store: str, out: str) -> None:
    stream = make(Path(dataset))
    early = iter(stream)
    next(early)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        next(early)
        error = ""
    except ConfigError as refused:
        error = str(refused)
    Path(out, f"{rank}.json").write_text(json.dumps([error, ids(islice(stream, 2))]))
    dist.barrier()
    dist.destroy_process_group()


def test_a_group_that_comes_after_an_iteration_began_ends_that_iteration(dataset: Path, tmp_path: Path) -> None:
    arguments = (str(dataset), str(tmp_path / "store"), str(tmp_path))
    torch.multiprocessing.start_processes(_rank_with_a_late_group, arguments, nprocs=2, start_method="forkserver")
    for rank in range(2):
        error, batches = json.loads((tmp_path / f"{rank}.json").read_text())
        assert f"began as rank 0 of 1, but torch.distributed is initialised since, as rank {rank} of 2" in error
        assert batches == ids(islice(make(dataset).shard(rank, 2), 2))


def _rank(rank: int, world_size: int, dataset: str, store: str, out: str, start: str | None) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    stream = make(Path(dataset), epochs=1)
    source: Any = stream
    if start is not None:
        source = DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context=start)
    got = ids(source)
    state = stream.state_dict(batches=len(got))
    Path(out, f"{rank}.json").write_text(json.dumps([got, state["sequence_index"]]))
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize(("world_size", "start"), [(3, None), (2, "forkserver")])
def test_ranks_of_torch_distributed_share_the_global_order(
    dataset: Path, tmp_path: Path, world_size: int, start: str | None
) -> None:
    store = tmp_path / "store"
    arguments = (world_size, str(dataset), str(store), str(tmp_path), start)
    torch.multiprocessing.start_processes(_rank, arguments, nprocs=world_size, start_method="forkserver")
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(world_size)]
    got = [[row for batch in batches for row in batch] for batches, _ in ranks]
    rows = [row for step in zip(*got, strict=True) for row in step]
    whole = [row for batch in ids(make(dataset, epochs=1)) for row in batch]
    assert [row for row in rows if any(row)] == [row for row in whole if any(row)]
    assert len({len(batches) for batches, _ in ranks}) == 1
    assert len({i for _, i in ranks}) == 1


def _tensor_parallel_peer(rank: int, dataset: str, store: str, out: str) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    stream = make(Path(dataset)).shard(0, 1)
    loader = DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="fork")
    Path(out, f"{rank}.json").write_text(json.dumps([ids(islice(stream, 4)), ids(islice(loader, 4))]))
    dist.barrier()
    dist.destroy_process_group()


def test_peers_that_state_the_same_part_get_the_same_batches_inside_a_process_group(
    dataset: Path, tmp_path: Path
) -> None:
    arguments = (str(dataset), str(tmp_path / "store"), str(tmp_path))
    torch.multiprocessing.start_processes(_tensor_parallel_peer, arguments, nprocs=2, start_method="forkserver")
    expected = ids(islice(make(dataset), 4))
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == [expected, expected]


def test_a_mesh_or_process_group_states_the_topology(dataset: Path, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        expected = ids(islice(make(dataset), 2))
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        assert ids(islice(make(dataset).shard(mesh), 2)) == expected
        assert ids(islice(make(dataset).shard(dist.group.WORLD), 2)) == expected
    finally:
        dist.destroy_process_group()
