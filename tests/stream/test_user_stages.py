"""Stages of the user map, drop or join items; what a resume or other ranks would lose is refused."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.stream.order_samples import numbered, written
from tests.stream.streams import assert_goes_on, batched, ids, odd, packed

REPAIR = r"make the stream endless \(no epochs=\) and end it by \.take\(n\)"


def renamed(items: Iterator[Any]) -> Iterator[Any]:
    yield from ({**item, "seen": 1} for item in items)


def pairs(items: Iterator[Any]) -> Iterator[Any]:
    for one, two in zip(items, items, strict=False):
        yield {"input_ids": torch.cat([torch.as_tensor(each["input_ids"]) for each in (one, two)])}


def twice(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        yield item
        yield item


def test_a_method_returns_a_new_stage_of_this_ranks_rows(dataset: Path) -> None:
    source = packed(dataset)
    whole = ids(islice(source, 12))
    assert all(len(row) == 16 for row in whole)
    later = source.batch(2)
    later.set_epoch(1)
    assert ids(islice(source, 12)) == whole
    assert isinstance(later, torch.utils.data.IterableDataset)
    for rank in range(3):
        assert ids(islice(packed(dataset).shard(rank, 3), 4)) == whole[rank::3]


def test_map_works_on_samples_and_on_batches_and_pads_as_without_it(dataset: Path) -> None:
    def longer(item: dict[str, Any]) -> dict[str, Any]:
        return {**item, "input_ids": item["input_ids"] * 2, "length": item["input_ids"].shape[-1], "text": "x"}

    for rank in range(2):
        plain = list(packed(dataset, 1).shard(rank, 2).batch(4))
        on_batches = list(packed(dataset, 1).shard(rank, 2).batch(4).map(longer))
        on_samples = list(packed(dataset, 1).map(longer).shard(rank, 2).batch(4))
        assert ids(on_samples) == ids(on_batches) == (2 * np.array(ids(plain))).tolist()
        for a, b in zip(plain, on_samples, strict=True):
            assert torch.equal(a["labels"], b["labels"])
            assert (a["valid_tokens"], b["length"].tolist(), b["text"]) == (b["valid_tokens"], [16] * 4, ["x"] * 4)
    assert_goes_on(lambda: packed(dataset).map(longer).batch(2), 5)
    assert list(batched(dataset).map(lambda batch: batch["valid_tokens"]).take(2)) == [32, 32]


def test_batches_of_mapped_samples_are_on_the_cpu_whatever_the_default_device_is(dataset: Path) -> None:
    torch.set_default_device("meta")
    try:
        stream = pipeline.ShardDataset(dataset).pack(8, boundaries=True).map(lambda sample: {**sample, "weight": 0.5})
        batch = next(iter(stream.batch(2)))
    finally:
        torch.set_default_device(None)
    assert {value.device.type for value in batch.values() if isinstance(value, torch.Tensor)} == {"cpu"}


def test_stages_that_change_or_drop_samples_keep_the_order_in_workers(dataset: Path) -> None:
    for stream in (packed(dataset).map(dict).apply(odd).batch(2).take(8), batched(dataset).apply(renamed).take(5)):
        assert ids(DataLoader(stream, batch_size=None, num_workers=3)) == ids(stream)


def test_a_generator_is_a_stage_whose_state_goes_to_other_ranks(dataset: Path) -> None:
    def first_tokens(samples: Any) -> Any:
        for sample in samples:
            yield {"input_ids": sample["input_ids"][:4]}

    make = lambda: packed(dataset).apply(first_tokens)  # noqa: E731
    assert ids(islice(make(), 5)) == [row[:4] for row in ids(islice(packed(dataset), 5))]
    assert_goes_on(lambda: make().batch(3), 5)
    stream = make().shard(0, 1)
    list(islice(stream, 6))
    make().shard(2, 3).load_state_dict(stream.state_dict())


@pytest.mark.parametrize("stage", [odd, pairs])
def test_a_state_after_a_stage_that_drops_belongs_to_its_rank(dataset: Path, stage: Any) -> None:
    assert_goes_on(lambda: packed(dataset).apply(stage).batch(2), 5)
    stream = packed(dataset).shard(0, 2).apply(stage)
    list(islice(stream, 4))
    packed(dataset).shard(0, 2).apply(stage).load_state_dict(stream.state_dict())
    with pytest.raises(StateError, match=r"^stage 0\.\w+ drops items.* state 0 belongs to its rank.*cannot be merged"):
        pipeline.merge_states([stream.state_dict()])
    with pytest.raises(StateError, match=r"batches cannot be counted past it; .* StatefulDataLoader"):
        stream.state_dict(batches=1)
    for rank, world_size in ((1, 2), (0, 1)):
        with pytest.raises(StateError, match=rf"0\.\w+ .* rank 0 of 2, .* rank {rank} of {world_size}"):
            packed(dataset).shard(rank, world_size).apply(stage).load_state_dict(stream.state_dict())


def test_a_stage_that_drops_goes_on_in_workers_of_a_stateful_loader(dataset: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    stream = batched(dataset).apply(odd).take(9)
    assert ids(stateful(stream, batch_size=None, num_workers=2)) == ids(stream)
    assert_goes_on(lambda: stateful(batched(dataset).apply(odd).take(9), batch_size=None, num_workers=2), 9, [4])


def test_take_ends_after_so_many_global_sequences_or_batches_of_a_rank(dataset: Path) -> None:
    assert [len(ids(packed(dataset).take(7).shard(rank, 3))) for rank in range(3)] == [3, 2, 2]
    for rank in range(3):
        for stream in (
            batched(dataset).take(5),
            packed(dataset).apply(odd).batch(2).take(5),
            packed(dataset).batch(2).apply(odd).take(5),
            packed(dataset).apply(odd).take(17).batch(4),
        ):
            assert len(ids(stream.shard(rank, 3))) == 5
    assert_goes_on(lambda: batched(dataset).take(5), 9)
    assert_goes_on(lambda: packed(dataset).apply(odd).batch(2).take(5), 9)


def test_drop_gives_full_batches_and_reports_the_rest(dataset: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = ids(packed(dataset, 1))
    with caplog.at_level(logging.WARNING, "pipeline"):
        batches = ids(packed(dataset, 1).batch(4, last="drop"))
        filtered = pipeline.ShardDataset(dataset, epochs=1).filter(len, name="all").pack(16)
        counted = len(ids(filtered))
        for samples in (filtered, filtered.map(dict)):
            assert len(list(samples.batch(4, last="drop"))) == counted // 4
    assert [row for batch in batches for row in batch] == whole[: len(whole) // 4 * 4]
    said = (
        f"last='drop' drops the last {len(whole) % 4} of {len(whole)} sequences, {len(batches)} batches a rank remain"
    )
    short = f"last='drop' drops the last {counted % 4} sequences, short of a batch"
    assert [record.message for record in caplog.records] == [said, short, short]


def test_reading_ahead_changes_nothing_and_leaves_no_thread(dataset: Path) -> None:
    before = set(threading.enumerate())
    plain, ahead = batched(dataset, 1), batched(dataset, 1).prefetch(3)
    for a, b in zip(plain, ahead, strict=True):
        assert torch.equal(a["input_ids"], b["input_ids"])
        assert plain.state_dict() == ahead.state_dict()
    assert_goes_on(lambda: batched(dataset).prefetch(3), 4)
    iterator = iter(batched(dataset).prefetch(2))
    next(iterator)
    del iterator
    started = set(threading.enumerate()) - before
    for thread in started:
        thread.join(40)
    assert not any(thread.is_alive() for thread in started)


def test_stats_count_what_was_handed_out_and_name_the_position(dataset: Path) -> None:
    running = batched(dataset, 2)
    iterator = iter(running)
    next(iterator)
    stats = running.stats()
    assert stats["seconds"] > 0
    assert stats["tokens_per_second"] == stats["tokens"] / stats["seconds"] > 0
    stream = batched(dataset, 2).numpy()
    assert (stream.stats()["items"], stream.stats()["seconds"]) == (0, 0)
    batches = list(stream)
    assert all(isinstance(batch["input_ids"], np.ndarray) for batch in batches)
    assert ids(batches) == ids(batched(dataset, 2))
    stats = stream.stats()
    assert stats["items"] == len(batches)
    assert stats["tokens"] == sum(batch["valid_tokens"] for batch in batches)
    assert stats["sequence_index"] == stream.state_dict()["sequence_index"]
    assert stats["epoch"] == 2
    assert stats["bytes_read"] >= 2 * stats["tokens"]
    assert 0 < stats["waited_seconds"] <= stats["seconds"]
    assert stats["waited_share"] == stats["waited_seconds"] / stats["seconds"]


def shuffle_buffer(items: Iterator[Any]) -> Iterator[Any]:
    buffer, generator = list(islice(items, 5)), np.random.default_rng(0)
    for item in items:
        k = int(generator.integers(len(buffer)))
        buffer[k], given = item, buffer[k]
        yield given


def ahead(items: Iterator[Any]) -> Iterator[Any]:
    buffer = list(islice(items, 2))
    for item in items:
        buffer.append(item)
        yield buffer.pop(0)


def overlapping(items: Iterator[Any]) -> Iterator[Any]:
    for one, two in itertools.pairwise(items):
        yield {**two, "input_ids": one["input_ids"] + two["input_ids"]}


def in_order_of_sums(items: Iterator[Any]) -> Iterator[Any]:
    while group := list(islice(items, 4)):
        yield from sorted(group, key=lambda item: int(item["input_ids"].sum()))


KINDS: dict[str, Any] = {
    "samples": lambda source, stage: source.apply(stage),
    "batches": lambda source, stage: source.batch(3).apply(stage).map(dict),
    "numpy": lambda source, stage: source.batch(3).numpy().apply(stage).prefetch(2),
    "maps": lambda source, stage: source.map(lambda item: {**item, "mask": _MASK}).apply(stage).batch(2),
}
_MASK = torch.ones(3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_that_gives_two_items_for_one_is_an_error(dataset: Path, kind: str) -> None:
    for stage in (in_order_of_sums, twice):
        found = []
        with pytest.raises(ConfigError, match=r"stage [01]\.\w+ gave two items for one"):
            found += islice(KINDS[kind](packed(dataset), stage), 2)
        assert len(found) <= 1


@pytest.mark.parametrize("stage", [shuffle_buffer, ahead, overlapping])
def test_the_check_of_resumes_finds_a_stage_that_keeps_items_ahead(dataset: Path, stage: Any) -> None:
    with pytest.raises(AssertionError, match="resumed after"):
        pipeline.assert_resumes(lambda: packed(dataset).batch(3).apply(stage))


def largest_of_four(items: Iterator[Any]) -> Iterator[Any]:
    while group := list(islice(items, 4)):
        yield max(group, key=lambda item: int(item["input_ids"].sum()))


def rare(items: Iterator[Any]) -> Iterator[Any]:
    for number, item in enumerate(items):
        if number % 35 == 34:
            yield {key: value + 0 for key, value in item.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_stages_that_drop_or_join_keep_nothing_and_are_no_error(dataset: Path, kind: str) -> None:
    for stage in (odd, pairs, largest_of_four, rare):
        assert len(list(islice(KINDS[kind](packed(dataset), stage), 8))) == 8


# All ranks take equally many steps, or the stream says why they cannot.


@pytest.mark.parametrize(
    "make",
    [
        lambda s: s.apply(odd).batch(2).prefetch(2),
        lambda s: s.batch(2).apply(odd).map(dict),
        lambda s: s.map(dict).apply(pairs),
        lambda s: s.batch(2).take(9).apply(odd),
        lambda s: s.apply(odd).take(7).batch(2).apply(pairs),
    ],
)
def test_a_stage_that_drops_from_a_bounded_stream_is_refused_on_ranks(dataset: Path, make: Any) -> None:
    stream = make(packed(dataset, 1))
    assert len(list(stream)) > 0  # one rank may
    for rank in range(2):
        with pytest.raises(ConfigError, match=rf"bounded stream.* 2 ranks.*{REPAIR}"):
            list(stream.shard(rank, 2))


def test_dropping_the_very_last_item_alone_is_noticed(dataset: Path) -> None:
    stream = batched(dataset, 1).shard(1, 2)
    count = len(list(stream))

    def all_but_the_last(items: Iterator[Any]) -> Iterator[Any]:
        yield from (item for number, item in enumerate(items, 1) if number < count)

    iterator = iter(stream.apply(all_but_the_last))
    assert len(list(islice(iterator, count - 1))) == count - 1
    with pytest.raises(ConfigError, match=REPAIR):
        next(iterator)


def test_a_take_that_ranks_cannot_all_fill_after_drops_is_refused(dataset: Path) -> None:
    with pytest.raises(ConfigError, match=r"stage 2\.pairs drops"):
        list(packed(dataset).apply(odd).take(20).apply(pairs).shard(0, 2))
    for rank in range(2):
        stream = packed(dataset, 1).apply(odd).shard(rank, 2)
        assert len(list(stream.take(5))) == 5
        with pytest.raises(
            ConfigError, match=rf"after \d\d of the 1000 items .*rank {rank} of 2, since stage 0\.odd drops"
        ):
            list(stream.take(1000))


def test_dropping_99_of_100_on_one_rank_alone_leaves_steps_equal(dataset: Path) -> None:
    def few(items: Iterator[Any]) -> Iterator[Any]:
        yield from islice(items, 99, None, 100)

    for rank in range(3):
        source = packed(dataset).shard(rank, 3)
        stream = (source if rank else source.apply(few)).batch(4).take(6)
        assert [batch["input_ids"].shape for batch in stream] == [(4, 16)] * 6
        assert stream.stats()["sequence_index"] == 6 * 4 * 3 * (1 if rank else 100)


def five(items: Iterator[Any]) -> Iterator[Any]:
    """Give five items, and take a sixth to end."""
    for number, item in enumerate(items):
        if number == 5:
            return
        yield item


def test_stages_that_give_one_for_one_or_end_are_left_alone(dataset: Path) -> None:
    lengths = []
    for rank in range(3):
        stream = packed(dataset, 1).shard(rank, 3)
        lengths.append(len(list(stream.apply(renamed).batch(2).apply(renamed))))
        assert len(list(stream.batch(2).apply(lambda items: islice(items, 5)))) == 5
        assert len(list(stream.batch(2).apply(five))) == 5
        assert len(list(stream.apply(renamed).batch(2).take(10**6))) == lengths[0]
    assert len(set(lengths)) == 1


# A state inside a step goes on under its own ranks and batches.


def without_a_third(items: Iterator[Any]) -> Iterator[Any]:
    """Drop about a third of the rows, so that batches end inside steps."""
    for item in items:
        if int(item["input_ids"].sum()) % 3:
            yield item


@pytest.mark.parametrize("kind", ["packed", "samples", "mix"])
def test_a_state_inside_a_step_goes_on_under_its_ranks_and_batches(tmp_path: Path, kind: str) -> None:
    for name, first in (("one", 1), ("two", 20_000)):
        written(tmp_path / name, numbered([[n % 40 for n in range(size)] for size in (30, 0, 8, 1, 21)], first))

    def make(ranks: int = 1, batch: int = 4) -> pipeline.Stream:
        one, two = (pipeline.ShardDataset(tmp_path / name) for name in ("one", "two"))
        source = pipeline.mix({"one": one, "two": two}, [(0, {"one": 1, "two": 2}), (77, {"one": 5, "two": 1})])
        stream = {
            "packed": one.shuffle(seed=3, lanes=4).pack(8, stride=7),
            "samples": one.shuffle(seed=3).sample(8),
            "mix": source.shuffle(seed=3, lanes=4).pack(8),
        }[kind]
        return stream.apply(without_a_third).shard(0, ranks).batch(batch)

    stream, whole, inside = make(), ids(islice(make(), 12)), 0
    for done in range(1, 9):
        assert ids(islice(stream, done)) == whole[:done]
        state = json.loads(json.dumps(stream.state_dict()))
        again = make()
        again.load_state_dict(state)
        assert ids(islice(again, 12 - done)) == whole[done:]
        if state["rank_0"]["0.without_a_third"].get("step") is not None:
            inside += 1
            for ranks, batch, reason in (
                (2, 4, "without_a_third"),
                (
                    1,
                    8,
                    "saved inside a step.*batch_size was 4 when it was saved, but is 8 in this stream; load it",
                ),
            ):
                with pytest.raises(StateError, match=reason):
                    make(ranks, batch).load_state_dict(state)
    assert inside >= 2
