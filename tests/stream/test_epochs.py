"""set_epoch and passes: frameworks count passes from 0 after every restart, and no resume is undone by that."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from pipeline.notices import say_once
from tests.stream.streams import batched, ids

SEQ_LEN, BATCH, STEPS = 16, 2, 5
Make = Callable[[], pipeline.Stream]


def epoch_ids(small: Path, epoch: int = 0) -> list[int]:
    """The tokens of an epoch that are not 0, which fills rows."""
    stream = pipeline.ShardDataset(small, epochs=1).shuffle(seed=1, lanes=6).documents()
    stream.set_epoch(epoch)
    return [token for row in stream for token in row["input_ids"].tolist() if token]


def epoch_tokens(small: Path) -> int:
    tokens = int(sum(len(row["input_ids"]) for row in pipeline.ShardDataset(small, epochs=1).documents()))
    assert tokens % SEQ_LEN, "the borders of epochs must lie inside sequences"
    return tokens


def bounds(small: Path, count: int = 8) -> list[int]:
    """Where the first epochs of an endless stream begin, in sequences."""
    return [-(-epoch * epoch_tokens(small) // SEQ_LEN) for epoch in range(count)]


def mixed(small: Path) -> pipeline.Stream:
    sources = {"a": pipeline.ShardDataset(small), "b": pipeline.ShardDataset(small)}
    return pipeline.mix(sources, {"a": 0.7, "b": 0.3}).shuffle(seed=2, lanes=2).pack(SEQ_LEN).batch(BATCH)


def text(texts: Path, epochs: int | None) -> pipeline.Stream:
    return pipeline.TextDataset(texts, "bytes", epochs=epochs).shuffle(seed=3, lanes=4).pack(24).batch(2)


def filtered(small: Path, **options: Any) -> pipeline.Stream:
    stream = pipeline.ShardDataset(small, epochs=1).shuffle(seed=3, lanes=4)
    return stream.filter(lambda document: len(document) % 3 != 0).pack(24, **options).batch(2)


KINDS: dict[str, Callable[[Path, Path], pipeline.Stream]] = {
    "epochs=1": lambda small, texts: batched(small, 1),
    "epochs=1, take": lambda small, texts: batched(small, 1).take(STEPS),
    "take": lambda small, texts: batched(small).take(STEPS),
    "mix, take": lambda small, texts: mixed(small).take(STEPS),
    "text": lambda small, texts: text(texts, 1),
    "filter": lambda small, texts: filtered(small),
    "best fit": lambda small, texts: filtered(small, best_fit=True),
}
LOADERS: dict[str, Callable[[pipeline.Stream], Any]] = {
    "bare": lambda stream: stream,
    "loader": lambda stream: stream.loader(),
    "workers": lambda stream: DataLoader(stream, batch_size=None, num_workers=2),
    "persistent": lambda stream: DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True),
}


def passes_of(make: Make, count: int) -> list[list[Any]]:
    """The batches of the first passes, each of a stream of its own."""
    found = []
    for number in range(count):
        stream = make()
        stream.set_epoch(number)
        found.append(ids(stream))
    return found


def saved(stream: pipeline.Stream, epoch: int, batches: int) -> dict[str, Any]:
    """The state of a run that called set_epoch, after some batches of that pass."""
    stream.set_epoch(epoch)
    assert len(list(islice(stream, batches))) == batches
    state: dict[str, Any] = json.loads(json.dumps(stream.state_dict()))
    return state


def test_each_pass_with_epochs_1_is_its_epoch_alone_cut_from_its_first_token(small: Path) -> None:
    tokens = epoch_tokens(small)
    size = -(-tokens // SEQ_LEN)
    for epoch, batches in enumerate(passes_of(lambda: batched(small, 1), 4)):
        rows = [row for batch in batches for row in batch]
        assert len(batches) == -(-size // BATCH)
        assert Counter(chain.from_iterable(rows)) - Counter({0: 10**6}) == Counter(epoch_ids(small, epoch))
        stream = batched(small, 1).take(STEPS)
        stream.set_epoch(epoch)
        assert stream.state_dict()["sequence_index"] == epoch * size
        assert ids(stream) == batches[:STEPS]
    assert ids(batched(small, 1)) == passes_of(lambda: batched(small, 1), 1)[0]  # if set_epoch is never called


@pytest.mark.parametrize(("kind", "steps"), [("mix", 5), ("shards", 5), ("shards", 60)])  # less than an epoch, and more
def test_pass_e_of_take_is_the_steps_from_e_n_on_so_passes_neither_overlap_nor_leave_anything_out(
    small: Path, kind: str, steps: int
) -> None:
    assert 5 * BATCH < bounds(small)[1] < 60 * BATCH
    endless = mixed if kind == "mix" else batched
    whole = ids(islice(endless(small), 4 * steps))
    stream = endless(small).take(steps)
    got = []
    for epoch in range(4):
        stream.set_epoch(epoch)
        assert stream.state_dict()["sequence_index"] == epoch * steps * BATCH
        assert len(stream) == steps
        got += ids(stream)
    assert got == whole


@pytest.mark.parametrize(
    ("kind", "loader"),
    [
        *((kind, "bare") for kind in KINDS),
        *(("epochs=1", loader) for loader in LOADERS if loader != "bare"),
        ("mix, take", "loader"),
        ("take", "persistent"),
    ],
)
def test_after_a_load_the_first_number_keeps_the_position_and_later_ones_count_on_from_its_pass(
    small: Path, texts: Path, kind: str, loader: str
) -> None:
    make = lambda: KINDS[kind](small, texts)  # noqa: E731
    whole = passes_of(make, 5)
    assert len({json.dumps(each) for each in whole}) == 5
    for number, batches, first in ((0, 3, 0), (2, 3, 0), (1, len(whole[1]), 7), (2, 0, 1)):
        stream = make()
        stream.load_state_dict(saved(make(), number, batches))
        source = LOADERS[loader](stream)
        expected = [each for each in (whole[number][batches:], *whole[number + 1 :]) if each]
        for offset in range(2):
            for _ in range(2):  # a second call changes nothing
                (source if loader == "loader" else stream).set_epoch(first + offset)
            assert ids(source) == expected[offset]
        (source if loader == "loader" else stream).set_epoch(first + 1)  # after a pass, it asks for the whole pass
        assert ids(source) == expected[1]


@pytest.mark.parametrize("loader", ["bare", "workers", "loader"])
def test_a_loop_that_names_the_epoch_after_each_pass_or_never_resumes_too(small: Path, loader: str) -> None:
    whole = passes_of(lambda: batched(small, 1), 5)
    stream = batched(small, 1)
    stream.load_state_dict(saved(batched(small, 1), 3, 2))
    source = LOADERS[loader](stream)
    assert ids(source) == whole[3][2:]
    if loader != "loader":
        stream.set_epoch(4)
    assert ids(source) == whole[4]


def test_a_state_in_data_epoch_3_of_an_endless_stream_stays_there_and_the_next_number_is_epoch_4(
    small: Path,
) -> None:
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
def test_passes_of_take_on_several_ranks_are_runs_of_the_global_order_for_any_number_that_resumes(
    small: Path, kind: str
) -> None:
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


def test_on_several_epochs_set_epoch_above_0_is_refused_and_names_the_cure(small: Path) -> None:
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


def test_set_epoch_changes_nothing_on_a_mix_without_take_and_says_so_once(
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


def test_a_lone_rank_of_a_sequential_stream_cannot_say_which_epoch_all_lanes_are_in(texts: Path) -> None:
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


@given(loaded=st.integers(0, 4), first=st.integers(0, 9), later=st.lists(st.integers(0, 9), max_size=4))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_numbers_after_a_load_differ_from_epochs_by_one_offset(
    small: Path, loaded: int, first: int, later: list[int]
) -> None:
    stream, size = batched(small, 1), bounds(small, 2)[1]
    stream.load_state_dict(saved(batched(small, 1), loaded, 1))
    index = stream.state_dict()["sequence_index"]
    for _ in range(2):
        stream.set_epoch(first)
        assert stream.state_dict()["sequence_index"] == index
    next(iter(stream))
    for number in later:
        if number + loaded - first >= 0:
            stream.set_epoch(number)
            assert stream.state_dict()["sequence_index"] == size * (number + loaded - first)
        else:
            with pytest.raises(ConfigError, match=rf"set_epoch\({number}\) is before the first epoch"):
                stream.set_epoch(number)
