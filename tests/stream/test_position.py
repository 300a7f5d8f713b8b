"""Positions and contexts of processes: no stale copy decides the rank, and any state reaches the workers of a loader."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import stat
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import StateError
from pipeline.stream.loader.position import Position, SharedPosition
from pipeline.stream.loader.state import part_of
from tests.loaders import assert_raises
from tests.shard_samples import make_documents, write_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("position") / "data"
    write_dataset(directory, [make_documents(n, seed=n) for n in (12, 1, 9)])
    return directory


def make(dataset: Path) -> pipeline.Stream:
    return pipeline.ShardDataset(dataset).shuffle(seed=1, lanes=6).pack(16).batch(2)


def ids(batches: Any) -> list[Any]:
    return [batch["input_ids"].tolist() for batch in batches]


@pytest.fixture
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a test a temporary folder that no other process uses."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def position_files() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("shardwright-position-*"))


def _rank(rank: int, stream: pipeline.Stream, store: str, out: str) -> None:
    pickled = pickle.loads(pickle.dumps(stream))
    copied = copy.deepcopy(stream)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    got = [
        ids(islice(DataLoader(each, batch_size=None, num_workers=1, multiprocessing_context="fork"), 3))
        for each in (stream, pickled, copied)
    ]
    Path(out, f"{rank}.json").write_text(json.dumps(got))
    dist.barrier()
    dist.destroy_process_group()


def test_a_stream_that_was_sent_to_its_rank_before_the_group_existed_reads_that_ranks_data_in_forked_workers(
    dataset: Path, tmp_path: Path
) -> None:
    stream = make(dataset)
    arguments = (stream, str(tmp_path / "store"), str(tmp_path))
    torch.multiprocessing.start_processes(_rank, arguments, nprocs=2, start_method="forkserver")
    for rank in range(2):
        expected = ids(islice(make(dataset).shard(rank, 2), 3))
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == [expected] * 3


class Remembers:
    """Keeps a value of many bytes in the state, and yields what it keeps."""

    remembers = ("kept",)

    def __init__(self, size: int) -> None:
        self.kept = "x" * size

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield {**batch, "kept": len(self.kept)}


@pytest.mark.parametrize("size", [10, 1 << 18, 1 << 20])
def test_a_state_of_any_size_loads_and_reaches_persistent_workers(dataset: Path, size: int) -> None:
    big = make(dataset).apply(Remembers(size))
    list(islice(big, 2))
    state = big.state_dict()
    assert len(json.dumps(state)) > size
    stream = make(dataset).apply(Remembers(0))
    loader = DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True)
    assert [batch["kept"] for batch in islice(loader, 3)] == [0] * 3
    stream.load_state_dict(state)
    batches = list(islice(loader, 3))
    assert [batch["kept"] for batch in batches] == [size] * 3
    assert ids(batches) == ids(islice(make(dataset), 5))[2:]
    stream.set_epoch(0)
    stream.load_state_dict(make(dataset).apply(Remembers(0)).state_dict())
    assert ids(islice(loader, 2)) == ids(islice(make(dataset), 2))


@pytest.mark.usefixtures("own_temporary_folder")
def test_the_file_of_a_position_is_private_whole_and_goes_with_its_stream() -> None:
    before = position_files()
    shared = SharedPosition(Position(0))
    assert position_files() == before  # none is needed until a position is set
    for index in range(3):
        shared.set(Position(index))
        (file,) = position_files() - before
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert json.loads(file.read_text())[1]["sequence_index"] == index
    if (child := os.fork()) == 0:  # a forked process takes nothing away
        del shared
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert file.exists()
    del shared
    gc.collect()
    assert position_files() == before


def test_what_a_process_sets_is_seen_by_those_it_forked_and_not_the_other_way_round() -> None:
    shared = SharedPosition(Position(1))
    ready, done = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        os.read(ready[0], 1)
        seen = shared.get().sequence_index
        shared.set(Position(9))
        os.write(done[1], bytes([seen, shared.get().sequence_index]))
        os._exit(0)
    shared.set(Position(2))
    os.write(ready[1], b"x")
    assert list(os.read(done[0], 2)) == [2, 9]
    os.waitpid(child, 0)
    assert shared.get().sequence_index == 2


def test_a_position_shares_nothing_with_the_state_it_came_from_or_gives(dataset: Path) -> None:
    stream = make(dataset).apply(Remembers(3))
    list(islice(stream, 2))
    state = stream.state_dict()
    whole = copy.deepcopy(state)
    stream.load_state_dict(state)
    part_of(state, 0)[1]["stages"] = part_of(state, 0)[1]["stages"].replace("kept", "other")
    given = stream.state_dict()
    assert given == whole
    part_of(given, 0)[1]["sequence_index"] = 99
    assert stream.state_dict() == whole


def test_a_look_before_a_loader_leaves_no_stale_state(dataset: Path) -> None:
    stream = make(dataset)
    next(iter(stream))
    loader = iter(DataLoader(stream, batch_size=None, num_workers=2))
    for _ in range(5):
        next(loader)
    with pytest.raises(StateError, match=r"state_dict\(batches=n\)"):
        stream.state_dict()
    assert stream.state_dict(batches=5)["sequence_index"] == 10
    del loader
    list(islice(stream, 3))  # the latest iterator is this one
    assert stream.state_dict()["sequence_index"] == 6


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_a_loader_makes_of_single_sequences_are_not_counted_but_refused_with_the_cure(
    dataset: Path, workers: int
) -> None:
    def single() -> pipeline.Stream:
        return pipeline.ShardDataset(dataset).shuffle(seed=1, lanes=6).pack(16)

    stream = single()
    assert len(list(islice(DataLoader(stream, batch_size=4, num_workers=workers), 3))) == 3
    with pytest.raises(StateError, match=r"add \.batch\(size\).*batch_size=None"):
        stream.state_dict(batches=3)
    # The cure, and the other one.
    cured = single().batch(4)
    whole = ids(islice(single().batch(4), 6))
    assert ids(islice(DataLoader(cured, batch_size=None, num_workers=workers), 3)) == whole[:3]
    resumed = single().batch(4)
    resumed.load_state_dict(cured.state_dict(batches=3))
    assert ids(islice(resumed, 3)) == whole[3:]
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    rows = ids(islice(stateful.StatefulDataLoader(single(), batch_size=4, num_workers=workers), 8))
    saving = stateful.StatefulDataLoader(single(), batch_size=4, num_workers=workers)
    assert ids(islice(saving, 3)) == rows[:3]
    loading = stateful.StatefulDataLoader(single(), batch_size=4, num_workers=workers)
    loading.load_state_dict(saving.state_dict())
    assert ids(islice(loading, 5)) == rows[3:]


@pytest.mark.parametrize(("saved", "loaded"), [(2, 3), (2, 1)])
def test_a_state_of_other_workers_is_refused_naming_both_numbers_and_the_cure(
    dataset: Path, saved: int, loaded: int
) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    first = stateful.StatefulDataLoader(make(dataset), batch_size=None, num_workers=saved)
    list(islice(first, 3))
    second = stateful.StatefulDataLoader(make(dataset), batch_size=None, num_workers=loaded)
    second.load_state_dict(first.state_dict())
    assert_raises(StateError, rf"of {saved} workers .* with {loaded}; load it with num_workers={saved}", second)
