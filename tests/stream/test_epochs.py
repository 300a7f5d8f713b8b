"""set_epoch and passes: frameworks count passes from 0 after every restart, and no resume is undone by that."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.errors import ConfigError, StateError
from pipeline.notices import say_once
from tests.stream.streams import batched, ids, mixed, text

SEQ_LEN, BATCH = 16, 2


def bounds(small: Path, count: int = 8) -> list[int]:
    """Where the first epochs of an endless stream begin, in sequences."""
    tokens = sum(len(row["input_ids"]) for row in pipeline.ShardDataset(small, epochs=1).documents())
    assert tokens % SEQ_LEN, "the borders of epochs must lie inside sequences"
    return [-(-epoch * tokens // SEQ_LEN) for epoch in range(count)]


def saved(stream: pipeline.Stream, epoch: int, batches: int) -> dict[str, Any]:
    """The state of a run that called set_epoch, after some batches of that pass."""
    stream.set_epoch(epoch)
    assert len(list(islice(stream, batches))) == batches
    state: dict[str, Any] = json.loads(json.dumps(stream.state_dict()))
    return state


def test_a_state_in_epoch_3_of_an_endless_stream_stays_and_4_is_next(small: Path) -> None:
    begins = bounds(small)
    reference = batched(small)
    stream = batched(small)
    stream.load_state_dict(reference.state_dict(batches=(begins[3] + 4) // BATCH))
    stream.set_epoch(0)
    rows = [row for batch in ids(islice(reference, begins[3])) for row in batch]
    index = stream.state_dict()["sequence_index"]
    assert begins[3] < index < begins[4]
    assert [row for batch in ids(islice(stream, 3)) for row in batch] == rows[index : index + 3 * BATCH]
    stream.set_epoch(1)
    assert stream.state_dict()["sequence_index"] == begins[4]


@pytest.mark.parametrize("kind", ["mix", "shards"])
def test_passes_of_take_on_any_ranks_are_runs_of_the_global_order(small: Path, kind: str) -> None:
    endless = mixed if kind == "mix" else batched
    rows = [row for batch in ids(islice(endless(small), 120)) for row in batch]

    def global_rows(world_size: int, state: Any, numbers: range) -> tuple[list[Any], int]:
        ranks, index = [], 0
        for rank in range(world_size):
            stream = endless(small).take(4).shard(rank, world_size)
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
        state = saved(endless(small).take(4).shard(0, before), 3, 1)
        found, index = global_rows(after, state, range(2))
        assert index == state["sequence_index"] == (3 * 4 + 1) * before * BATCH
        size = 4 * after * BATCH  # of a pass of so many ranks: the one that holds the position, and the next
        assert found == sorted(rows[index : (index // size + 2) * size])


def test_passes_of_a_mix_keep_the_weights_that_were_set(small: Path) -> None:
    reference, stream = mixed(small), mixed(small).take(6)
    for each in (reference, stream):
        each.set_weights({"a": 0, "b": 1})
    whole = ids(islice(reference, 12))
    stream.set_epoch(1)
    assert ids(stream) == whole[6:]
    assert stream.stats()["sources"]["b"]["served"] == 1


def test_set_epoch_above_0_is_refused_on_several_epochs(small: Path) -> None:
    stream = batched(small, 2)
    whole = ids(stream)
    with pytest.raises(ConfigError, match=r"set_epoch\(1\) on a stream with epochs=2.*use epochs=1"):
        stream.set_epoch(1)
    stream.set_epoch(0)
    assert ids(stream) == whole
    stream.load_state_dict(stream.state_dict(batches=4))
    for rest in (whole[4:], whole):
        stream.set_epoch(0)
        assert ids(stream) == rest


def test_set_epoch_of_a_mix_without_take_changes_nothing_and_says_so(
    small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    say_once.cache_clear()
    whole = ids(islice(mixed(small), 8))
    stream = mixed(small)
    stream.load_state_dict(mixed(small).state_dict(batches=3))
    for epoch in (0, 1, 5):
        stream.set_epoch(epoch)
        stream.take(2).set_epoch(epoch)
        assert ids(islice(stream, 5)) == whole[3:]
    (said,) = [record.getMessage() for record in caplog.records if "set_epoch()" in record.getMessage()]
    assert said.endswith(".take(n), before any .apply(), gives it passes of n steps")


def test_lanes_of_an_endless_text_begin_each_pass_together(texts: Path) -> None:
    taken = text(texts, None).take(3)
    taken.load_state_dict(saved(text(texts, None).take(3), 1, 2))
    for number, rest in enumerate((1, 3, 3)):
        taken.set_epoch(number)
        assert len(list(taken)) == rest


def test_a_lone_rank_cannot_say_which_epoch_all_lanes_are_in(texts: Path) -> None:
    states = [saved(text(texts, None).shard(rank, 2), 0, 3) for rank in range(2)]
    stream = text(texts, None).shard(0, 2)
    stream.load_state_dict(states[0])
    stream.set_epoch(0)
    kept = ids(islice(stream, 3))
    for _ in range(2):  # however often it is called
        with pytest.raises(StateError, match="merge_states"):
            stream.set_epoch(1)
    stream.load_state_dict(pipeline.merge_states(states))
    stream.set_epoch(0)
    assert ids(islice(stream, 3)) == kept
    stream.set_epoch(1)
    assert {cursor[0] for cursor in stream.state_dict()["lanes"].values()} == {1}


def test_a_number_before_the_first_epoch_is_refused(small: Path) -> None:
    stream, size = batched(small, 1), bounds(small, 2)[1]
    stream.load_state_dict(saved(batched(small, 1), 2, 1))
    stream.set_epoch(5)  # names epoch 2
    next(iter(stream))
    stream.set_epoch(3)
    assert stream.state_dict()["sequence_index"] == 0
    with pytest.raises(ConfigError, match=r"set_epoch\(2\) is before the first epoch"):
        stream.set_epoch(2)
    stream.set_epoch(6)
    assert stream.state_dict()["sequence_index"] == 3 * size
