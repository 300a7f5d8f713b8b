"""All passes of a bounded stream have one length, which len() tells whatever was read, loaded or called before."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import StateError
from tests.stream.streams import ids

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
