"""The global order is one, whoever loads: bare, DataLoader, StatefulDataLoader, ranks of torch.distributed."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import re
from collections.abc import Callable, Iterator
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
from pipeline.stream.ranks import LAUNCHERS
from tests.stream.loaders import assert_raises
from tests.stream.streams import assert_goes_on, batched, ids, mixed, packed

BATCHES = 14


def stateful(stream: pipeline.Stream, **options: Any) -> Any:
    """Return torchdata's loader that saves the states of its workers."""
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(stream, **options)


@pytest.mark.parametrize(
    ("start", "workers"), [("fork", 2), pytest.param("spawn", 1, marks=pytest.mark.nightly), ("forkserver", 2)]
)
def test_workers_of_any_start_method_give_the_order_without_workers(dataset: Path, start: str, workers: int) -> None:
    stream = batched(dataset).take(BATCHES)
    assert ids(DataLoader(stream, batch_size=None, num_workers=workers, multiprocessing_context=start)) == ids(stream)


@pytest.mark.parametrize("last", ["pad", "drop"])
def test_more_ranks_times_workers_than_shards_take_equally_many_steps(dataset: Path, last: str) -> None:
    world_size = 3
    ranks = [
        ids(DataLoader(packed(dataset, 1).shard(r, world_size).batch(2, last=last), batch_size=None, num_workers=2))
        for r in range(world_size)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    rows = [row for step in zip(*([r for b in rank for r in b] for rank in ranks), strict=True) for row in step]
    whole = ids(packed(dataset, 1))
    kept = whole if last == "pad" else whole[: len(whole) // (2 * world_size) * 2 * world_size]
    # The last sequence is filled up with end-of-text ids, as are rows that pad the last batch.
    assert rows[: len(kept)] == kept
    assert not any(t for row in rows[len(kept) :] for t in row)


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_a_move_while_persistent_workers_live_is_refused_with_the_two_lines_that_work(start: str) -> None:
    def make() -> pipeline.Stream:
        sources = {name: pipeline.ShardDataset.from_tokens(range(600), lengths=[30] * 20) for name in "ab"}
        return pipeline.mix(sources, {"a": 1, "b": 1}).shuffle(seed=0, lanes=2).pack(10).batch(2).take(6)

    expected = make()
    passes = []
    for number in range(4):
        expected.set_epoch(number)
        passes.append(ids(expected))
    stream = make()
    options: dict[str, Any] = {"persistent_workers": True, "multiprocessing_context": start}
    loader = DataLoader(stream, batch_size=None, num_workers=2, **options)
    stream.set_epoch(0)
    assert ids(islice(loader, 2)) == passes[0][:2]
    for look in (DataLoader(stream, batch_size=None, num_workers=2), stream):
        assert ids(islice(look, 1)) == passes[0][:1]
    state = make().state_dict(batches=3)
    moves: dict[str, Callable[[], None]] = {
        "load_state_dict(state)": lambda: stream.load_state_dict(state),
        "set_epoch(0)": lambda: stream.set_epoch(0),
        "set_epoch(2)": lambda: stream.set_epoch(2),
        "skip(1)": lambda: stream.skip(1),
        "set_weights({'a': 0, 'b': 1})": lambda: stream.set_weights({"a": 0, "b": 1}),
    }
    for call, move in moves.items():
        with pytest.raises(StateError, match=rf"ignore .*\n *del loader .*\n *stream\.{re.escape(call)}"):
            move()
    assert ids(loader) == passes[1]  # as in stream.loader(), the next pass follows, without and with set_epoch
    assert stream.state_dict(batches=1)["sequence_index"] == 7 * 2
    for _ in range(2):
        stream.set_epoch(2)
    assert ids(loader) == passes[2]
    del loader
    stream.load_state_dict(state)
    assert ids(DataLoader(stream, batch_size=None, num_workers=2, **options)) == passes[0][3:]


def _set_and_send(stream: pipeline.Stream, moved: Any, connection: Any) -> None:
    moved.wait()
    inherited = stream.state_dict()["sequence_index"]
    stream.load_state_dict({**stream.state_dict(), "sequence_index": 18})
    connection.send([inherited, stream.state_dict()["sequence_index"]])


def test_a_fork_and_its_parent_move_apart(dataset: Path) -> None:
    stream, context = batched(dataset), multiprocessing.get_context("fork")
    stream.load_state_dict({**stream.state_dict(), "sequence_index": 2})
    moved, (receiver, sender) = context.Event(), context.Pipe()
    process = context.Process(target=_set_and_send, args=(stream, moved, sender))
    process.start()
    stream.load_state_dict({**stream.state_dict(), "sequence_index": 4})
    moved.set()
    assert receiver.recv() == [2, 18]
    process.join()
    assert stream.state_dict()["sequence_index"] == 4


def test_copies_stand_where_the_stream_stood_and_move_apart(dataset: Path) -> None:
    stream = batched(dataset)
    stream.load_state_dict(stream.state_dict(batches=3))
    twins = [copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))]
    stream.set_epoch(0)
    stream.set_epoch(1)
    for twin in twins:
        assert ids(islice(twin, 2)) == ids(islice(batched(dataset), 5))[3:]


def test_the_position_of_a_plain_loader_is_counted_by_batches(dataset: Path) -> None:
    stream = batched(dataset).prefetch(3)
    next(iter(stream))  # a look before the loader
    loader = iter(DataLoader(stream, batch_size=None, num_workers=2, prefetch_factor=6))
    for _ in range(5):
        next(loader)
    with pytest.raises(StateError, match=r"use state_dict\(batches=n\)"):
        stream.state_dict()
    state = stream.state_dict(batches=5)
    del loader
    resumed = batched(dataset)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    assert ids(islice(resumed, 4)) == ids(islice(batched(dataset), 9))[5:]
    list(islice(stream, 3))  # the latest iterator is this one
    assert stream.state_dict()["sequence_index"] == 6


@pytest.mark.parametrize("persistent", [False, True])
def test_what_counts_from_a_position_that_workers_hide_is_refused_with_the_lines_that_work(persistent: bool) -> None:
    def make() -> pipeline.Stream:
        sources = {name: pipeline.ShardDataset.from_tokens(range(600), lengths=[30] * 20) for name in "ab"}
        return pipeline.mix(sources, {"a": 1, "b": 1}).shuffle(seed=0, lanes=2).pack(10).batch(2).take(20)

    stream = make()
    loader = iter(DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=persistent))
    ids(islice(loader, 5))
    begin = r"del loader, stream\.load_state_dict\(stream\.state_dict\(batches=n\)\), then stream\."
    for call, lines in (
        (lambda: stream.skip(2), rf"{begin}skip\(2\)"),
        (lambda: stream.set_weights({"a": 0, "b": 1}), rf"{begin}set_weights\({{'a': 0, 'b': 1}}\)"),
        (lambda: stream.seen("3"), r"seen\(document, steps=n\)"),
    ):
        with pytest.raises(StateError, match=f"hidden by its prefetching; .*{lines}"):
            call()
    assert stream.seen("3", steps=5) == make().seen("3", steps=5)
    del loader
    stream.load_state_dict(stream.state_dict(batches=5))
    stream.skip(2)
    assert ids(stream) == ids(make())[7:]


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "snapshot_every_n_steps": 3, "prefetch_factor": 6}])
def test_stateful_data_loader_resumes_after_any_batch(dataset: Path, options: dict[str, Any]) -> None:
    count = len(batched(dataset, 1))
    make = lambda: stateful(batched(dataset, 1).prefetch(2), batch_size=None, **options)  # noqa: E731
    assert_goes_on(make, count, (4, count - 1) if options else (0, 1, 4, count - 1))


@pytest.mark.parametrize("persistent", [False, True])
def test_after_the_rest_that_a_stateful_loader_loaded_comes_a_whole_pass(dataset: Path, persistent: bool) -> None:
    def loader() -> Any:
        stream = batched(dataset).take(6)
        return stateful(stream, batch_size=None, num_workers=2, persistent_workers=persistent)

    whole, first, second = ids(islice(batched(dataset), 12)), loader(), loader()
    assert ids(islice(first, 4)) == whole[:4]
    second.load_state_dict(first.state_dict())
    assert ids(second) == whole[4:6]
    assert ids(second) == (whole[6:] if persistent else whole[:6])


@pytest.mark.parametrize("persistent", [False, True])
def test_after_a_break_in_the_rest_that_a_stateful_loader_loaded_a_mix_begins_again(
    dataset: Path, persistent: bool
) -> None:
    def loader() -> Any:
        return stateful(mixed(dataset), batch_size=None, num_workers=2, persistent_workers=persistent)

    whole, first, second = ids(islice(mixed(dataset), 8)), loader(), loader()
    assert ids(islice(first, 3)) == whole[:3]
    second.load_state_dict(first.state_dict())
    assert ids(islice(second, 4)) == whole[3:7]
    assert ids(islice(second, 4)) == whole[:4]


def test_batches_that_a_loader_makes_of_sequences_are_not_counted(dataset: Path) -> None:
    stream = packed(dataset)
    assert len(list(islice(DataLoader(stream, batch_size=4, num_workers=2), 3))) == 3
    with pytest.raises(StateError, match=r"add \.batch\(size\).*batch_size=None"):
        stream.state_dict(batches=3)
    assert_goes_on(lambda: stateful(packed(dataset), batch_size=4, num_workers=2), 8, [3])


def test_a_state_of_other_workers_is_refused_with_the_cure(dataset: Path) -> None:
    first = stateful(batched(dataset), batch_size=None, num_workers=2)
    list(islice(first, 3))
    second = stateful(batched(dataset), batch_size=None, num_workers=1)
    second.load_state_dict(first.state_dict())
    assert_raises(StateError, r"of 2 workers .* with 1; load it with num_workers=2", second)


# Which part of the stream a process reads


@pytest.mark.parametrize("start", [None, "forkserver"])
def test_launched_processes_without_a_group_are_an_error(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, start: str | None
) -> None:
    expected = ids(islice(batched(dataset), 3))
    forkserver.ensure_running()  # before, so that its processes do not see the variables, as a server of other tests would
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")

    def read(stream: pipeline.Stream) -> Any:
        workers = 0 if start is None else 1
        return DataLoader(stream.take(3), batch_size=None, num_workers=workers, multiprocessing_context=start)

    assert_raises(
        ConfigError,
        r"WORLD_SIZE is 2 .* each of the 2 processes .*init_process_group.*\.shard\(rank, world_size\).*\.shard\(0, 1\)",
        read(batched(dataset)),
    )
    assert "ShardDataset" in repr(batched(dataset))
    assert ids(read(batched(dataset).shard(0, 1))) == expected


@pytest.mark.parametrize("size", LAUNCHERS)
def test_processes_of_any_launcher_without_a_group_are_an_error(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(size, "4")
    cure = rf'\.shard\(int\(os\.environ\["{LAUNCHERS[size]}"\]\), 4\)'
    assert_raises(ConfigError, rf"{size} is 4 .*{cure}", batched(dataset))
    assert_raises(
        ConfigError, rf"{size} is 4 .*torchrun or accelerate", DataLoader(packed(dataset).rows(), batch_size=2)
    )
    read = ids(islice(DataLoader(packed(dataset).shard(0, 1).rows(), batch_size=2), 3))
    assert read == ids(islice(batched(dataset).shard(0, 1), 3))


def test_environment_variables_alone_never_decide_the_rank(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ids(islice(batched(dataset), 3))
    for size in ("1", "", "two"):
        for name, value in {"RANK": "1", "WORLD_SIZE": size, "SLURM_NTASKS": "4", "SLURM_PROCID": "1"}.items():
            monkeypatch.setenv(name, value)
        assert ids(islice(batched(dataset), 3)) == expected


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_batches_in_the_order_in_which_workers_finish_are_refused(dataset: Path, start: str) -> None:
    def read(workers: int, **options: Any) -> DataLoader[Any]:
        return DataLoader(batched(dataset).take(3), batch_size=None, num_workers=workers, in_order=False, **options)

    refused = r"no state says which batches .* remove in_order=False"
    assert_raises(ConfigError, refused, read(2, multiprocessing_context=start))
    assert ids(read(1)) == ids(read(0)) == ids(batched(dataset).take(3))


class _MadeInWorker(IterableDataset[Any]):
    """A dataset of the user, which makes its stream where it is iterated."""

    def __init__(self, dataset: Path, *topology: int) -> None:
        self.dataset, self.topology = dataset, topology

    def __iter__(self) -> Iterator[Any]:
        stream = batched(self.dataset).take(3)
        return iter(stream.shard(*self.topology) if self.topology else stream)


def test_a_worker_that_cannot_see_its_parents_group_is_an_error(dataset: Path) -> None:
    expected = ids(islice(batched(dataset), 3))

    def read(start: str, *topology: int) -> DataLoader[Any]:
        made = _MadeInWorker(dataset, *topology)
        return DataLoader(made, batch_size=None, num_workers=1, multiprocessing_context=start)

    assert_raises(
        ConfigError, r"cannot see whether its parent has a process group.*\.shard\(0, 1\)", read("forkserver")
    )
    assert ids(read("forkserver", 0, 1)) == ids(read("fork")) == expected


def _rank(rank: int, world_size: int, dataset: str, sent: pipeline.Stream, folder: str) -> None:
    """Write what a rank reads in every way, and what it says to a group that comes after an iteration began."""
    early, pickled = iter(batched(dataset)), pickle.loads(pickle.dumps(sent))
    next(early)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    try:
        next(early)
        error = ""
    except ConfigError as refused:
        error = str(refused)
    stream = batched(dataset, 1)
    read = {"bare": ids(stream), "index": stream.state_dict()["sequence_index"], "error": error}
    others = [("forkserver", batched(dataset).take(3))] if rank else []  # starts a server that imports torch
    for start, source in [("fork", sent), ("fork", pickled), *others]:
        loader = DataLoader(source, batch_size=None, num_workers=1, multiprocessing_context=start)
        read[f"{start} {len(read)}"] = ids(islice(loader, 3))
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    read["stated"] = ids(islice(DataLoader(batched(dataset).shard(0, 1), batch_size=None, num_workers=1), 3))
    Path(folder, f"{rank}.json").write_text(json.dumps(read))
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_share_the_global_order_in_every_kind_of_worker(dataset: Path, tmp_path: Path) -> None:
    arguments = (2, str(dataset), batched(dataset).take(3), str(tmp_path))
    torch.multiprocessing.start_processes(_rank, arguments, nprocs=2, start_method="forkserver")
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    rows = [row for step in zip(*([r for b in each["bare"] for r in b] for each in ranks), strict=True) for row in step]
    whole = [row for batch in ids(batched(dataset, 1)) for row in batch]
    assert [row for row in rows if any(row)] == [row for row in whole if any(row)]
    assert ranks[0]["index"] == ranks[1]["index"]
    for rank, read in enumerate(ranks):
        assert (
            f"began as rank 0 of 1, but torch.distributed was initialised later, as rank {rank} of 2" in read["error"]
        )
        own = ids(islice(batched(dataset).shard(rank, 2), 3))
        assert [value for key, value in read.items() if key.startswith("fork")] == [own] * (2 + (rank > 0))
        assert read["stated"] == ids(islice(batched(dataset), 3))  # peers, as in tensor parallelism


def test_a_mesh_or_process_group_states_the_topology(dataset: Path, tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        expected = ids(islice(batched(dataset), 2))
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        assert ids(islice(batched(dataset).shard(mesh), 2)) == expected
        assert ids(islice(batched(dataset).shard(dist.group.WORLD), 2)) == expected
        with pytest.raises(ConfigError, match=r"a mesh of 2 dimensions: give .*mesh\['dp'\]"):
            batched(dataset).shard(torch.distributed.device_mesh.init_device_mesh("cpu", (1, 1)))
    finally:
        dist.destroy_process_group()


# An iterator belongs to the process that began it.


def _go_on(iterator: Any, stream: pipeline.Stream, found: Any) -> None:
    try:
        next(iterator)
    except StateError as error:
        found.put(str(error))
    found.put(next(iter(stream))["input_ids"].tolist())


@pytest.mark.parametrize("ahead", [0, 3])
def test_an_iterator_begun_before_a_fork_is_refused_after_it(dataset: Path, ahead: int) -> None:
    stream = batched(dataset).prefetch(ahead)
    first = ids([next(iter(stream))])[0]
    iterator = iter(stream)
    next(iterator)
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    child = context.Process(target=_go_on, args=(iterator, stream, found))
    child.start()
    assert "lacks its threads and files: call iter() there" in found.get(timeout=60)
    assert found.get(timeout=60) == first
    child.join(60)
    assert child.exitcode == 0
    assert next(iterator)["input_ids"].tolist() != first  # the parent goes on


@pytest.mark.parametrize("function", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_of_an_iterator_are_refused_naming_the_state(dataset: Path, function: Callable[[Any], Any]) -> None:
    with pytest.raises(StateError, match=r"save stream\.state_dict\(\)"):
        function(iter(batched(dataset)))
