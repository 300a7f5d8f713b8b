"""After a load, passes follow one another as without it: none is lost, none comes twice, whoever iterates."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import pipeline
from pipeline.stream.iteration.worker_notes import WorkerNotes
from tests.stream.streams import batched, ids


def stateful(stream: pipeline.Stream, workers: int) -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(
        stream, batch_size=None, num_workers=workers
    )


def test_batches_are_counted_from_where_each_pass_began(small: Path) -> None:
    first = ids(batched(small, 1))
    stream = batched(small, 1)
    stream.load_state_dict(stream.state_dict(batches=4))
    source = DataLoader(stream, batch_size=None, num_workers=2)
    for begin in (4, 0, 0):
        for number, _ in enumerate(source, 1):
            if number in (1, 3, len(first) - begin):
                second = batched(small, 1)
                second.load_state_dict(stream.state_dict(batches=number))
                assert ids(second) == first[begin + number :]


def test_after_the_last_batch_of_the_rest_comes_the_whole_pass(small: Path) -> None:
    first = ids(batched(small, 1))
    stream = batched(small, 1)
    stream.load_state_dict(stream.state_dict(batches=4))
    assert ids(islice(stream, len(first) - 4)) == first[4:]
    assert ids(stream) == first


def test_a_pass_that_is_broken_off_keeps_the_position(small: Path) -> None:
    first = ids(batched(small, 1))
    stream = batched(small, 1)
    stream.load_state_dict(stream.state_dict(batches=4))
    for source in (stream, DataLoader(stream, batch_size=None), DataLoader(stream, batch_size=None, num_workers=2)):
        for _ in range(2):
            assert ids(islice(source, 3)) == first[4:7]


def test_a_late_worker_reads_the_rest_of_a_pass_that_has_the_seed_of_an_earlier_pass(
    small: Path,
) -> None:
    first = ids(batched(small, 1))
    stream = batched(small, 1)
    source = DataLoader(stream, batch_size=None, num_workers=2, worker_init_fn=lambda worker: time.sleep(worker / 2))
    for begin in (0, len(first) - 4):
        stream.load_state_dict(batched(small, 1).state_dict(batches=begin))
        torch.manual_seed(0)
        assert ids(source) == first[begin:]


def test_a_state_that_the_only_worker_loads_holds_in_the_next_pass(small: Path) -> None:
    stream = batched(small, 1)
    stream.set_epoch(2)
    expected = ids(stream)
    first, second = stateful(stream, 1), stateful(batched(small, 1), 1)
    begun = iter(first)
    assert ids(islice(begun, 3)) == expected[:3]
    second.load_state_dict(first.state_dict())
    assert [ids(second), ids(second)] == [expected[3:], expected]


@pytest.mark.parametrize(("batches", "read"), [(7, 1), (7, 2), (1, 1)])
def test_states_of_workers_in_two_passes_resume_exactly(batches: int, read: int) -> None:
    def make() -> pipeline.Stream:
        data = pipeline.ShardDataset.from_tokens(range(8 * batches), epochs=1)
        return data.shuffle(seed=0, lanes=2).pack(4).batch(2)

    passes = []
    for number in range(4):
        stream = make()
        stream.set_epoch(number)
        passes.append(ids(stream))
    assert len(passes[0]) == batches

    def after(state: dict[str, Any], epoch: int, count: int | None) -> tuple[list[Any], dict[str, Any]]:
        stream = make()
        loader = stateful(stream, 3)
        loader.load_state_dict(state)
        stream.set_epoch(epoch)
        iterator = iter(loader)
        return ids(islice(iterator, count)), loader.state_dict()

    first = stateful(make(), 3)
    iterator = iter(first)
    assert ids(islice(iterator, batches)) == passes[0]
    # Only workers that gave a batch are in the next pass, here and, if a pass has one batch, in three passes.
    got, state = after(first.state_dict(), 1, read)
    assert got == passes[1][:read]
    rest, state = after(state, 1 if read < batches else 2, read)
    assert rest == (passes[1] + passes[2])[read : 2 * read]
    assert after(state, 5, None)[0] == (passes[1][2 * read :] or passes[3])


def test_weights_set_inside_a_pass_hold_in_the_passes_after_it(small: Path) -> None:
    def mixed() -> pipeline.Stream:
        sources = {name: pipeline.ShardDataset(small) for name in "ab"}
        return pipeline.mix(sources, {"a": 1, "b": 1}).shuffle(lanes=2).pack(16).batch(2).take(6)

    stream = mixed()
    assert len(ids(islice(stream, 2))) == 2
    stream.set_weights({"a": 0, "b": 1})
    changed = [ids(stream) for _ in range(3)]
    assert [len(each) for each in changed] == [4, 6, 6]
    assert changed[1] == changed[2]
    assert changed[1][2:] == changed[0]


def test_a_forked_rank_neither_moves_nor_ends_the_pass_of_its_parent(small: Path) -> None:
    stream = batched(small, 1)
    stream.load_state_dict(stream.state_dict(batches=4))
    first = ids(batched(small, 1))
    for work in (_begin_again, _read_all):
        child = multiprocessing.get_context("fork").Process(target=work, args=(stream,))
        child.start()
        child.join()
        assert child.exitcode == 0
    assert ids(stream) == first[4:]


def _begin_again(stream: pipeline.Stream) -> None:
    stream.load_state_dict(stream.state_dict(batches=0) | {"sequence_index": 0})
    assert stream.state_dict()["sequence_index"] == 0


def _read_all(stream: Iterator[Any]) -> None:
    for _ in stream:
        pass


class _Writes(SimpleNamespace):
    """Notes of workers that keep what ``first`` and ``latest`` are after each single write."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self.__dict__.setdefault("seen", []).append((self.__dict__.get("first"), self.__dict__.get("latest")))


def test_no_write_of_a_worker_shows_the_latest_pass_without_the_first() -> None:
    notes = WorkerNotes()
    notes.memory = _Writes(first=0, latest=0, moves=0, workers=0, by_number=[])
    for number in (0, 1):
        notes.note_pass(number, whole=True)
    notes.note_later_pass(2)
    notes.forget()
    notes.note_pass(3, whole=False)
    notes.note_load(read_before=True, named=False, with_weights=False)
    assert {0, 1, 2, 3, 4} <= {latest for _, latest in notes.memory.seen}
    assert [(first, latest) for first, latest in notes.memory.seen if latest and not first] == []
