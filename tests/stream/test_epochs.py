"""set_epoch and passes: no resume is undone by a count from 0, and all passes of a bounded stream have one length."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

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
    assert state["start_epoch"] == epoch
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


def test_set_epoch_leaves_an_unread_iterator_of_the_same_pass_valid(small: Path) -> None:
    stream = batched(small, 1)
    whole = ids(stream)
    stream = batched(small, 1)
    unread = iter(stream)
    stream.set_epoch(0)
    assert ids(unread) == whole
    assert stream.state_dict()["sequence_index"] == 2 * len(whole)
    stream.set_epoch(1)  # so the end of the pass was noted
    assert stream.state_dict()["sequence_index"] == stream.state_dict(batches=0)["sequence_index"] > 0
    unread = iter(stream)
    stream.set_epoch(0)
    with pytest.raises(StateError, match="made before set_epoch"):
        next(unread)


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
        assert number == 0 or taken.state_dict()["sequence_index"] == 0
        assert len(list(taken)) == rest


def test_a_row_that_take_cut_off_inside_a_batch_is_read_later(texts: Path) -> None:
    def rows() -> pipeline.Stream:
        return pipeline.TextDataset(texts, "bytes").shuffle(seed=3, lanes=4).pack(24)

    whole = ids(islice(rows().batch(2), 6))
    cut = rows().take(7).batch(2)
    assert len(list(cut)) == 4
    later = rows().batch(2)
    later.load_state_dict(cut.state_dict())
    assert ids(islice(later, 2)) == [whole[4], [whole[5][0], whole[3][1]]]
    assert later.state_dict()["sequence_index"] == 12


def test_a_lone_rank_cannot_say_which_epoch_all_lanes_are_in(texts: Path) -> None:
    states = [saved(text(texts, None).shard(rank, 2), 0, 3) for rank in range(2)]
    stream = text(texts, None).shard(0, 2)
    stream.load_state_dict(states[0])
    stream.set_epoch(0)
    kept = ids(islice(stream, 3))
    for _ in range(2):  # however often it is called
        with pytest.raises(StateError, match=r"^set_epoch\(1\) .*merge_states"):
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
    with pytest.raises(ConfigError, match=r"set_epoch\(2\) is before .*set_epoch\(3\)"):
        stream.set_epoch(2)
    stream.set_epoch(6)
    assert stream.state_dict()["sequence_index"] == 3 * size
    many = pipeline.ShardDataset.from_tokens(np.zeros(1 << 23, np.uint8)).pack(1)
    with pytest.raises(
        ConfigError, match=rf"set_epoch\({2**31 - 1}\) moves to sequence {(2**31 - 1) << 23}, above the last, {2**53}"
    ):
        many.set_epoch(2**31 - 1)


# All passes of a bounded stream have one length.

# Epochs of 50, not of 64: cut one after the other, four passes had 16, 16, 15 and 16 batches.
UNEQUAL: dict[str, Any] = {"lengths": [50] * 20}


def unequal(batch: int | None = 1, **options: Any) -> pipeline.Stream:
    data = pipeline.ShardDataset.from_tokens(np.arange(1, 1001), epochs=1, **UNEQUAL)
    stream = data.shuffle(seed=3).pack(64, **options)
    return stream if batch is None else stream.batch(batch)


def passes(stream: pipeline.Stream, count: int) -> list[list[Any]]:
    found = []
    for number in range(count):
        stream.set_epoch(number)
        found.append(ids(stream))
    return found


def test_passes_have_one_length_and_hold_each_token_once() -> None:
    found = passes(unequal(), 4)
    assert [len(batches) for batches in found] == [16] * 4
    assert len({json.dumps(batches) for batches in found}) == 4
    for batches in found:
        tokens = sorted(token for [row] in batches for token in row if token)
        assert tokens == list(range(1, 1001))


@pytest.mark.parametrize("take", [None, 9])
def test_each_rank_gets_as_many_rows_in_every_pass_as_in_the_first(take: int | None) -> None:
    data = pipeline.ShardDataset.from_tokens(np.arange(50), epochs=None if take else 1)
    stream = data.shuffle(lanes=4).pack(4)  # 13 rows
    for rank, expected in enumerate([5, 4] if take else [7, 6]):
        part = (stream.take(take) if take else stream).shard(rank, 2)
        assert [len(rows) for rows in passes(part, 3)] == [expected] * 3 == [len(part)] * 3


def test_a_run_resumed_at_any_batch_of_three_passes_goes_on() -> None:
    whole = passes(unequal(2), 3)
    for number in range(3):
        for stop in range(len(whole[number])):
            first, stream = unequal(2), unequal(2)
            first.set_epoch(number)
            stream.load_state_dict(json.loads(json.dumps(first.state_dict(batches=stop))))
            rest = []
            for later in range(number, 3):
                stream.set_epoch(later)
                rest.append(ids(stream))
            assert rest == [whole[number][stop:], *whole[number + 1 :]], (number, stop)


def test_the_pass_after_several_epochs_has_the_epochs_after_them() -> None:
    def make(epochs: int) -> pipeline.Stream:
        data = pipeline.ShardDataset.from_tokens(np.arange(1, 1001), epochs=epochs, **UNEQUAL)
        return data.shuffle(seed=3).documents().batch(4)

    loader = make(2).loader()
    found = [ids(loader) for _ in range(2)]
    single = make(1)
    assert [batch for batches in found for batch in batches] == [batch for each in passes(single, 4) for batch in each]


@pytest.mark.parametrize(("start_epoch", "options"), [(1, {}), (0, {"shift": 63})])
def test_a_state_of_a_pass_that_was_cut_otherwise_is_refused(start_epoch: int, options: dict[str, Any]) -> None:
    state = {**unequal(**options).state_dict(batches=3), "version": 2, "start_epoch": start_epoch}
    with pytest.raises(StateError, match=rf"pass {start_epoch} .*set_epoch\({start_epoch}\)"):
        unequal(**options).load_state_dict(state)


def test_states_of_earlier_releases_go_on_if_their_pass_was_cut_alike() -> None:
    whole = passes(unequal(stride=50), 2)
    stream = unequal(stride=50)
    stream.set_epoch(1)
    for start_epoch, state in ((1, stream.state_dict(batches=3)), (None, unequal(stride=50).state_dict(batches=3))):
        resumed = unequal(stride=50)
        resumed.load_state_dict({**state, "version": 2, "start_epoch": start_epoch})
        assert ids(resumed) == whole[start_epoch or 0][3:]


def data_loader(stream: pipeline.Stream) -> Any:
    return DataLoader(stream, batch_size=None, num_workers=2)


AGAIN, NEXT, ON = "the same pass", "the next pass", "it goes on"
# The table of docs/train.md: what is iterated, whether set_epoch is called, and what follows a pass, whole or left in its middle.
FOLLOWS: list[tuple[Any, bool, str | None, str]] = [
    (lambda stream: stream, False, AGAIN, AGAIN),
    (data_loader, False, AGAIN, AGAIN),
    (lambda stream: stream, True, NEXT, NEXT),
    (data_loader, True, NEXT, NEXT),
    (lambda stream: stream.loader(), False, NEXT, NEXT),
    (lambda stream: stream.take(5).loader(), False, NEXT, NEXT),
    (lambda stream: stream.loader(repeat=True), False, AGAIN, AGAIN),
    (iter, False, None, ON),
]


@pytest.mark.parametrize(("make", "names", "whole", "left"), FOLLOWS)
def test_what_follows_a_pass_is_what_the_page_says(make: Any, names: bool, whole: str | None, left: str) -> None:
    first, second = passes(unequal(2), 2)
    for stop, expected in ((3, left), (None, whole)):
        if expected is None:
            continue
        stream = unequal(2)
        source = make(stream)
        size = stop or len(ids(iter(make(unequal(2)))))
        found = []
        for number in range(2):
            if names:
                stream.set_epoch(number)
            found.append(ids(source if stop is None else islice(source, stop)))
        assert found[0] == first[:size]
        assert found[1] == {AGAIN: first[:size], NEXT: second[:size], ON: first[size : 2 * size]}[expected]
