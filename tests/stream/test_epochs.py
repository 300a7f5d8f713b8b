"""set_epoch and passes: frameworks count passes from 0 after every restart, and no resume is undone by that."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.stream.streams import batched, ids, small_dataset, small_texts

ROOT = Path(__file__).resolve().parents[2]
SEQ_LEN, BATCH = 16, 2


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_dataset(tmp_path_factory.mktemp("epochs") / "data")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_texts(tmp_path_factory.mktemp("epochs") / "a.jsonl")


def bounds(dataset: Path, count: int = 8) -> list[int]:
    """Where the first epochs begin, in sequences."""
    tokens = int(sum(len(row["input_ids"]) for row in pipeline.ShardDataset(dataset, epochs=1).documents()))
    assert tokens % SEQ_LEN, "the borders of epochs must lie inside sequences"
    return [-(-epoch * tokens // SEQ_LEN) for epoch in range(count)]


def pass_of(dataset: Path, epoch: int, epochs: int | None = 1) -> list[Any]:
    stream = batched(dataset, epochs)
    stream.set_epoch(epoch)
    return ids(stream)


def saved(stream: pipeline.Stream, epoch: int, batches: int) -> dict[str, Any]:
    """The state of a run that called set_epoch, after some batches of that pass."""
    stream.set_epoch(epoch)
    assert len(list(islice(stream, batches))) == batches
    return json.loads(json.dumps(stream.state_dict()))


def loaders(stream: pipeline.Stream, kind: str) -> Any:
    options: dict[str, Any] = {
        "bare": {},
        "workers 2": {"num_workers": 2},
        "persistent": {"num_workers": 2, "persistent_workers": True},
    }[kind]
    return stream if kind == "bare" else DataLoader(stream, batch_size=None, **options)


def test_a_pass_with_epochs_1_yields_the_epoch_that_set_epoch_names_alone_and_uncut(dataset: Path) -> None:
    begins = bounds(dataset)
    endless = batched(dataset)
    endless = [row for batch in ids(islice(endless, begins[5])) for row in batch]
    for epoch in range(4):
        rows = [row for batch in pass_of(dataset, epoch) for row in batch]
        count = begins[epoch + 1] - begins[epoch]
        assert rows[:count] == endless[begins[epoch] : begins[epoch + 1]]  # the last one whole
        assert not any(token for row in rows[count:] for token in row)
    cut = [row for batch in ids(batched(dataset, 1)) for row in batch]
    assert [row for row in cut if any(row)] != endless[: begins[1]]  # where set_epoch was never called


@pytest.mark.parametrize(
    ("kind", "epoch", "batches"),
    [("bare", 0, 2), ("bare", 3, 2), ("workers 2", 1, 0), ("persistent", 3, 2)],
)
def test_set_epoch_after_a_load_keeps_the_position_and_counts_on_from_its_epoch(
    dataset: Path, kind: str, epoch: int, batches: int
) -> None:
    whole = [pass_of(dataset, each) for each in range(epoch, epoch + 3)]
    state = saved(batched(dataset, 1), epoch, batches)
    stream = batched(dataset, 1)
    stream.load_state_dict(state)
    loader = loaders(stream, kind)
    got = []
    for number in range(3):  # a framework counts from 0 after a restart
        stream.set_epoch(number)
        got.append(ids(loader))
    assert got == [whole[0][batches:], *whole[1 : len(got)]]


@pytest.mark.parametrize(("kind", "first"), [("bare", 0), ("bare", 7), ("workers 2", 2)])
def test_a_state_at_the_end_of_an_epoch_goes_on_with_the_next_whatever_number_names_it(
    dataset: Path, kind: str, first: int
) -> None:
    stream = batched(dataset, 1)
    stream.load_state_dict(saved(batched(dataset, 1), 1, len(pass_of(dataset, 1))))
    got = []
    for number in (first, first + 1):
        stream.set_epoch(number)
        got.append(ids(loaders(stream, kind)))
    assert got == [pass_of(dataset, 2), pass_of(dataset, 3)]


def test_a_state_in_data_epoch_3_of_an_endless_stream_stays_there_and_the_next_number_is_epoch_4(
    dataset: Path,
) -> None:
    begins = bounds(dataset)
    reference = batched(dataset)
    stream = batched(dataset)
    stream.load_state_dict(reference.state_dict(batches=(begins[3] + 4) // BATCH))
    stream.set_epoch(0)
    rows = [row for batch in ids(islice(reference, begins[3])) for row in batch]
    index = stream.state_dict()["sequence_index"]
    assert begins[3] < index < begins[4]
    assert [row for batch in ids(islice(stream, 3)) for row in batch] == rows[index : index + 3 * BATCH]
    stream.set_epoch(1)
    assert stream.state_dict()["sequence_index"] == begins[4]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_set_epoch_twice_changes_nothing(dataset: Path, workers: int) -> None:
    whole = pass_of(dataset, 2)
    stream = batched(dataset, 1)
    stream.load_state_dict(saved(batched(dataset, 1), 2, 3))
    loader = DataLoader(stream, batch_size=None, num_workers=workers)
    for number, expected in ((0, whole[3:]), (1, pass_of(dataset, 3))):
        for _ in range(3):
            stream.set_epoch(number)
        assert ids(loader) == expected
    stream.set_epoch(1)  # after a pass of it, the number asks for the whole epoch
    assert ids(loader) == pass_of(dataset, 3)


@pytest.mark.parametrize("kind", ["bare", "workers 2"])
def test_a_loop_that_names_the_epoch_after_each_pass_resumes_too(dataset: Path, kind: str) -> None:
    stream = batched(dataset, 1)
    stream.load_state_dict(saved(batched(dataset, 1), 3, 2))
    loader = loaders(stream, kind)
    got = [ids(loader)]
    stream.set_epoch(4)
    got.append(ids(loader))
    assert got == [pass_of(dataset, 3)[2:], pass_of(dataset, 4)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_loads_states_when_it_begins_keeps_them_and_counts_on(dataset: Path, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader(stream: pipeline.Stream) -> Any:
        return stateful.StatefulDataLoader(stream, batch_size=None, num_workers=workers)

    first = batched(dataset, 1)
    first.set_epoch(2)
    running = loader(first)
    assert len(ids(islice(running, 3))) == 3
    second = batched(dataset, 1)
    resumed = loader(second)
    resumed.load_state_dict(running.state_dict())
    got = []
    for number in range(2):
        second.set_epoch(number)
        got.append(ids(resumed))
    assert got == [pass_of(dataset, 2)[3:], pass_of(dataset, 3)]


def test_take_with_epochs_1_gives_the_first_steps_of_the_epoch_that_set_epoch_names(dataset: Path) -> None:
    begins = bounds(dataset)
    stream = batched(dataset, 1).take(5)
    for epoch in (1, 3):
        stream.set_epoch(epoch)
        assert stream.state_dict()["sequence_index"] == begins[epoch]
        whole = ids(stream)
        assert whole == pass_of(dataset, epoch)[:5]
        state = saved(batched(dataset, 1).take(5), epoch, 2)
        assert state["start_epoch"] == epoch
        resumed = batched(dataset, 1).take(5)
        resumed.load_state_dict(state)
        assert ids(resumed) == whole[2:]
        resumed = batched(dataset, 1).take(5)
        resumed.load_state_dict(state)
        got = []
        for number in range(2):
            resumed.set_epoch(number)
            got.append(ids(resumed))
        assert got == [whole[2:], pass_of(dataset, epoch + 1)[:5]]


def mixed(dataset: Path) -> pipeline.Stream:
    sources = {"a": pipeline.ShardDataset(dataset), "b": pipeline.ShardDataset(dataset)}
    return pipeline.mix(sources, {"a": 0.7, "b": 0.3}).shuffle(seed=2, lanes=2).pack(SEQ_LEN).batch(BATCH)


def endless(dataset: Path, kind: str) -> pipeline.Stream:
    return mixed(dataset) if kind == "mix" else batched(dataset)


@pytest.mark.parametrize(("kind", "steps"), [("mix", 5), ("shards", 5), ("shards", 60)])  # less than an epoch, and more
def test_pass_e_of_take_is_the_steps_from_e_n_on_so_passes_neither_overlap_nor_leave_anything_out(
    dataset: Path, kind: str, steps: int
) -> None:
    assert 5 * BATCH < bounds(dataset)[1] < 60 * BATCH
    whole = ids(islice(endless(dataset, kind), 4 * steps))
    stream = endless(dataset, kind).take(steps)
    got = []
    for epoch in range(4):
        stream.set_epoch(epoch)
        assert stream.state_dict()["sequence_index"] == epoch * steps * BATCH
        assert len(stream) == steps
        got += ids(stream)
    assert got == whole
    by_sequence = endless(dataset, kind).take(steps)  # counted before .batch, a pass may end inside a batch
    by_sequence.set_epoch(2)
    assert ids(by_sequence) == whole[2 * steps : 3 * steps]


@pytest.mark.parametrize(
    ("kind", "loader"),
    [("mix", "bare"), ("shards", "persistent"), ("mix", "loader"), ("shards", "loader without set_epoch")],
)
def test_after_a_resume_in_mid_pass_that_pass_ends_where_it_would_have_and_later_ones_are_whole(
    dataset: Path, kind: str, loader: str
) -> None:
    steps = 5
    whole = ids(islice(endless(dataset, kind), 5 * steps))
    for epoch, done in ((0, 3), (2, 3), (1, steps)):
        stream = endless(dataset, kind).take(steps)
        stream.load_state_dict(saved(endless(dataset, kind).take(steps), epoch, done))
        source: Any = stream.loader() if loader.startswith("loader") else loaders(stream, loader)
        got = []
        for number in range(2):
            if loader != "loader without set_epoch":
                (source if loader == "loader" else stream).set_epoch(number)
            got.append(ids(source))
        begin, end = epoch * steps + done, (epoch + 1) * steps
        passes = [whole[begin:end], whole[end : end + steps], whole[end + steps : end + 2 * steps]]
        assert got == [each for each in passes if each][:2]


@pytest.mark.parametrize("kind", ["mix", "shards"])
def test_passes_of_take_on_several_ranks_are_runs_of_the_global_order_for_any_number_that_resumes(
    dataset: Path, kind: str
) -> None:
    rows = [row for batch in ids(islice(endless(dataset, kind), 120)) for row in batch]

    def global_rows(world_size: int, state: Any, numbers: range) -> tuple[list[Any], int]:
        ranks, index = [], 0
        for rank in range(world_size):
            stream = endless(dataset, kind).take(4).shard(rank, world_size)
            if state is not None:
                stream.load_state_dict(state)
            found = []
            for number in numbers:
                stream.set_epoch(number)
                index = index or stream.state_dict()["sequence_index"]
                found += [row for batch in ids(stream) for row in batch]
            ranks.append(found)
        return sorted(row for found in ranks for row in found if any(row)), index  # but for rows that fill a last step

    assert global_rows(3, None, range(2))[0] == sorted(rows[: 2 * 4 * 3 * BATCH])
    for before, after in ((2, 1), (1, 2), (2, 3)):
        state = saved(endless(dataset, kind).take(4).shard(0, before), 3, 1)
        found, index = global_rows(after, state, range(2))
        assert index == state["sequence_index"] == (3 * 4 + 1) * before * BATCH
        size = 4 * after * BATCH  # of a pass of so many ranks: the one that holds the position, and the next
        assert found == sorted(rows[index : (index // size + 2) * size])


def test_a_state_at_the_end_of_a_take_goes_on_with_the_next_steps(dataset: Path) -> None:
    whole = ids(islice(batched(dataset), 9))
    stream = batched(dataset).take(3)
    stream.load_state_dict(saved(batched(dataset).take(3), 1, 3))
    assert ids(stream) == []
    stream.load_state_dict(saved(batched(dataset).take(3), 1, 3))
    stream.set_epoch(0)
    assert ids(stream) == whole[6:9]


def test_passes_of_a_mix_keep_the_weights_that_were_set(dataset: Path) -> None:
    reference, stream = mixed(dataset), mixed(dataset).take(6)
    for each in (reference, stream):
        each.set_weights({"a": 0, "b": 1})
    whole = ids(islice(reference, 12))
    stream.set_epoch(1)
    assert ids(stream) == whole[6:]
    assert stream.stats()["sources"]["b"]["served"] == 1


def test_a_resumed_run_of_several_ranks_goes_on_as_the_uninterrupted_one(dataset: Path) -> None:
    begins = bounds(dataset)

    def rows(state: dict[str, Any] | None, world_size: int, passes: int) -> list[Any]:
        streams = [batched(dataset, 1).shard(rank, world_size) for rank in range(world_size)]
        got = []
        for number in range(passes):
            ranks = []
            for stream in streams:
                if state is not None and number == 0:
                    stream.load_state_dict(state)
                stream.set_epoch(number)
                index = stream.state_dict()["sequence_index"]
                ranks.append([row for batch in ids(stream) for row in batch])
            order = [ranks[i % world_size] for i in range(index, index + world_size)]
            merged = [row for step in zip(*order, strict=True) for row in step]
            got.append([row for row in merged if any(row)])
        return got

    whole = rows(None, 1, 3)
    state = saved(batched(dataset, 1).shard(1, 2), 1, 2)
    assert rows(state, 3, 2) == [whole[1][state["sequence_index"] - begins[1] :], whole[2]]


def test_on_several_epochs_set_epoch_above_0_is_refused_and_names_the_cure(dataset: Path) -> None:
    stream = batched(dataset, 2)
    whole = ids(stream)
    with pytest.raises(ConfigError, match=r"set_epoch\(1\) on a stream of epochs=2.*use epochs=1"):
        stream.set_epoch(1)
    stream.set_epoch(0)
    assert ids(stream) == whole
    stream.load_state_dict(stream.state_dict(batches=4))
    stream.set_epoch(0)
    assert ids(stream) == whole[4:]
    stream.set_epoch(0)
    assert ids(stream) == whole


def test_set_epoch_changes_nothing_on_a_mix_without_take(dataset: Path) -> None:
    whole = ids(islice(mixed(dataset), 8))
    stream = mixed(dataset)
    stream.load_state_dict(mixed(dataset).state_dict(batches=3))
    for epoch in (0, 1, 5):
        stream.set_epoch(epoch)
        assert ids(islice(stream, 5)) == whole[3:]


def test_a_mix_without_take_says_once_that_set_epoch_changes_nothing() -> None:
    code = """
import pipeline
mixed = pipeline.mix({"a": pipeline.ShardDataset.from_tokens(range(64))}, {"a": 1}).pack(8)
for epoch in range(3):
    mixed.set_epoch(epoch)
    mixed.take(2).set_epoch(epoch)
"""
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stderr
    assert said.count("set_epoch() changes nothing on a mix") == 1
    assert ".take(n), before any .apply(), gives it passes of n steps" in said


@pytest.mark.parametrize("kind", ["text", "filter", "best_fit"])
def test_set_epoch_moves_all_lanes_of_a_sequential_stream_but_not_straight_after_a_load(
    dataset: Path, texts: Path, kind: str
) -> None:
    def sequential(epochs: int | None = 1) -> pipeline.Stream:
        if kind == "text":
            source: Any = pipeline.TextDataset(texts, "bytes", epochs=epochs)
        else:
            source = pipeline.ShardDataset(dataset, epochs=epochs)
        source = source.shuffle(seed=3, lanes=4)
        if kind == "filter":
            source = source.filter(lambda document: len(document) % 3 != 0)
        return source.pack(24, best_fit=kind == "best_fit").batch(2)

    def one(epoch: int) -> list[Any]:
        stream = sequential()
        stream.set_epoch(epoch)
        return ids(stream)

    passes = [one(epoch) for epoch in range(4)]
    assert passes[0] == ids(sequential())
    assert len({json.dumps(each) for each in passes}) == 4
    assert len({json.dumps(sorted(t for b in each for row in b for t in row if t > 0)) for each in passes}) == 1
    for stop in (2, len(passes[1])):  # inside of epoch 1, and at its end
        stream = sequential()
        stream.load_state_dict(saved(sequential(), 1, stop))
        got = []
        for number in range(2):
            stream.set_epoch(number)
            got.append(ids(stream))
        assert got == ([passes[1][2:], passes[2]] if stop == 2 else [passes[2], passes[3]])
    taken = sequential(None).take(3)
    taken.load_state_dict(saved(sequential(None).take(3), 1, 2))
    for number, rest in enumerate((1, 3, 3)):
        taken.set_epoch(number)
        assert len(list(taken)) == rest


def test_a_lone_rank_of_a_sequential_stream_cannot_say_which_epoch_all_lanes_are_in(texts: Path) -> None:
    def ranks(rank: int) -> pipeline.Stream:
        return pipeline.TextDataset(texts, "bytes").shuffle(seed=3, lanes=4).pack(24).batch(2).shard(rank, 2)

    states = [saved(ranks(rank), 0, 3) for rank in range(2)]
    stream = ranks(0)
    stream.load_state_dict(states[0])
    stream.set_epoch(0)
    kept = ids(islice(stream, 3))
    with pytest.raises(StateError, match="merge_states"):
        stream.set_epoch(1)
    stream.load_state_dict(pipeline.merge_states(states))
    stream.set_epoch(0)
    assert ids(islice(stream, 3)) == kept
    stream.set_epoch(1)
    assert {cursor[0] for cursor in stream.state_dict()["lanes"].values()} == {1}


@given(loaded=st.integers(0, 4), first=st.integers(0, 9), later=st.lists(st.integers(0, 9), max_size=4))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_numbers_after_a_load_differ_from_epochs_by_one_offset(
    dataset: Path, loaded: int, first: int, later: list[int]
) -> None:
    stream, begins = batched(dataset, 1), bounds(dataset, 16)
    stream.load_state_dict(saved(batched(dataset, 1), loaded, 1))
    index = stream.state_dict()["sequence_index"]
    for _ in range(2):
        stream.set_epoch(first)
        assert stream.state_dict()["sequence_index"] == index
    next(iter(stream))
    for number in later:
        if number + loaded - first >= 0:
            stream.set_epoch(number)
            assert stream.state_dict()["sequence_index"] == begins[number + loaded - first]
        else:
            with pytest.raises(ConfigError, match=rf"set_epoch\({number}\) lies before the first epoch"):
                stream.set_epoch(number)
