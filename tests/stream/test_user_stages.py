"""Stages of the user in a stream: samples and batches that are mapped, dropped, joined or remembered."""

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
from tests.shard_samples import write_dataset


def packed(dataset: Path, **options: Any) -> pipeline.Stream:
    return pipeline.ShardDataset(dataset, **options).shuffle(seed=1, lanes=6).pack(16)


def ids(items: Any) -> list[Any]:
    return [item["input_ids"].tolist() for item in items]


class EveryOther:
    """Keeps every second item, and remembers which half it is in."""

    remembers = ("seen",)

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.seen += 1
            if self.seen % 2:
                yield item


class Twice:
    """Gives every item two times, and remembers whether the second is owed."""

    remembers = ("owed",)

    def __init__(self) -> None:
        self.owed: list[int] = []

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        if self.owed:
            item = {"input_ids": torch.tensor(self.owed)}
            self.owed = []
            yield item
        for item in items:
            self.owed = item["input_ids"].tolist()
            yield item
            self.owed = []
            yield item


def resumes(make: Any, count: int) -> None:
    whole = ids(islice(make(), count))
    for stop in range(count):
        stream = make()
        seen = ids(islice(stream, stop))
        state = json.loads(json.dumps(stream.state_dict()))
        resumed = make()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert seen + ids(islice(resumed, count - stop)) == whole


def test_a_method_returns_a_new_stage_and_leaves_the_old_one_alone(dataset: Path) -> None:
    source = packed(dataset)
    before = ids(islice(source, 3))
    batched = source.batch(2)
    batched.set_epoch(1)
    assert ids(islice(source, 3)) == before
    assert isinstance(batched, torch.utils.data.IterableDataset)


def test_samples_before_batching_are_one_dimensional_and_this_ranks_own(dataset: Path) -> None:
    whole = ids(islice(packed(dataset), 12))
    assert all(len(row) == 16 for row in whole)
    for rank in range(3):
        assert ids(islice(packed(dataset).shard(rank, 3), 4)) == whole[rank::3]


def test_map_works_on_samples_and_on_batches_and_resumes(dataset: Path) -> None:
    def double(item: dict[str, Any]) -> dict[str, Any]:
        return {**item, "input_ids": item["input_ids"] * 2}

    plain = ids(islice(packed(dataset).batch(2), 4))
    expected = (np.array(plain) * 2).tolist()
    assert ids(islice(packed(dataset).map(double).batch(2), 4)) == expected
    assert ids(islice(packed(dataset).batch(2).map(double), 4)) == expected
    resumes(lambda: packed(dataset).map(double).batch(2), 5)


def test_mapped_samples_are_padded_like_others_at_the_end(dataset: Path) -> None:
    def length(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "length": len(sample["input_ids"]), "text": "x"}

    for world_size in (1, 2):
        for rank in range(world_size):
            plain = list(packed(dataset, epochs=1).shard(rank, world_size).batch(4))
            mapped = list(packed(dataset, epochs=1).map(length).shard(rank, world_size).batch(4))
            assert ids(plain) == ids(mapped)
            for a, b in zip(plain, mapped, strict=True):
                assert torch.equal(a["labels"], b["labels"])
                assert a["valid_tokens"] == b["valid_tokens"]
                assert b["length"].tolist() == [16] * 4
                assert b["text"] == ["x"] * 4


def test_a_generator_over_the_items_is_a_stage(dataset: Path) -> None:
    def first_tokens(samples: Any) -> Any:
        for sample in samples:
            yield {"input_ids": sample["input_ids"][:4]}

    assert ids(islice(packed(dataset).apply(first_tokens), 5)) == [row[:4] for row in ids(islice(packed(dataset), 5))]
    resumes(lambda: packed(dataset).apply(first_tokens).batch(3), 5)
    state = packed(dataset).apply(first_tokens).state_dict()
    packed(dataset).apply(first_tokens).shard(2, 3).load_state_dict(state)


def test_a_stage_that_remembers_resumes_with_its_fields_under_dotted_names(dataset: Path) -> None:
    make = lambda: packed(dataset).apply(EveryOther()).batch(2)  # noqa: E731
    resumes(make, 6)
    stream = make()
    next(iter(stream))
    (part,) = stream.state_dict()["rank_0"].values()
    assert json.loads(part["stages"]) == {"0.EveryOther": {"seen": 3}}
    resumes(lambda: packed(dataset).apply(Twice()), 7)


def test_iterators_of_a_remembering_stage_do_not_share_what_it_knows(dataset: Path) -> None:
    stream = packed(dataset).apply(EveryOther())
    assert ids(islice(stream, 3)) == ids(islice(stream, 3))


@pytest.mark.parametrize("after_drop", [False, True])
def test_the_state_of_a_stage_that_remembers_or_drops_belongs_to_its_rank(dataset: Path, after_drop: bool) -> None:
    def drop(items: Any) -> Any:
        for number, item in enumerate(items):
            if number % 3:
                yield item

    def make(rank: int, world_size: int) -> pipeline.Stream:
        source = packed(dataset).shard(rank, world_size)
        return source.apply(drop if after_drop else EveryOther())

    stream = make(0, 2)
    list(islice(stream, 4))
    state = stream.state_dict()
    make(0, 2).load_state_dict(state)
    name = "0.function" if after_drop else "0.EveryOther"
    with pytest.raises(StateError, match=rf"stage {name} .* rank 0 of 2, but this is rank 1 of 2"):
        make(1, 2).load_state_dict(state)


def test_a_stage_that_adds_items_without_remembering_is_refused(dataset: Path) -> None:
    def twice(items: Any) -> Any:
        for item in items:
            yield item
            yield item

    with pytest.raises(ConfigError, match=r"0\.function gave two items for one"):
        ids(islice(packed(dataset).apply(twice), 4))


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_take_ends_after_so_many_global_sequences_or_batches_of_a_rank(dataset: Path, world_size: int) -> None:
    samples = [ids(packed(dataset).take(7).shard(rank, world_size)) for rank in range(world_size)]
    assert sum(map(len, samples)) == 7
    for rank in range(world_size):
        assert len(ids(packed(dataset).batch(2).take(5).shard(rank, world_size))) == 5
        assert len(ids(packed(dataset).shard(rank, world_size).batch(2).take(5))) == 5
        assert len(ids(packed(dataset).apply(EveryOther()).batch(2).take(5).shard(rank, world_size))) == 5
    resumes(lambda: packed(dataset).batch(2).take(5), 5)
    resumes(lambda: packed(dataset).apply(EveryOther()).batch(2).take(5), 5)


@pytest.mark.parametrize("world_size", [1, 3])
def test_drop_gives_all_ranks_equal_full_batches_and_reports_the_rest(
    dataset: Path, world_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = ids(packed(dataset, epochs=1))
    with caplog.at_level(logging.WARNING, "pipeline"):
        ranks = [ids(packed(dataset, epochs=1).batch(4, last="drop").shard(r, world_size)) for r in range(world_size)]
    count = len(whole) // (4 * world_size)
    assert [len(batches) for batches in ranks] == [count] * world_size
    rows = [row for step in zip(*([r for b in rank for r in b] for rank in ranks), strict=True) for row in step]
    assert rows == whole[: count * 4 * world_size]
    assert f"drops the last {len(whole) - len(rows)} of {len(whole)} sequences" in caplog.text


def test_reading_ahead_changes_neither_order_nor_state(dataset: Path) -> None:
    plain, ahead = packed(dataset, epochs=1).batch(2), packed(dataset, epochs=1).batch(2).prefetch(3)
    for a, b in zip(plain, ahead, strict=True):
        assert torch.equal(a["input_ids"], b["input_ids"])
        assert plain.state_dict() == ahead.state_dict()
    resumes(lambda: packed(dataset).batch(2).prefetch(3), 4)


def test_dropping_an_iterator_half_way_leaves_no_thread(dataset: Path) -> None:
    before = set(threading.enumerate())
    for _ in range(3):
        iterator = iter(packed(dataset).batch(2).prefetch(2))
        next(iterator)
        del iterator
    started = set(threading.enumerate()) - before
    for thread in started:
        thread.join(5)
    assert not any(thread.is_alive() for thread in started)


def test_an_error_in_a_stage_reaches_the_consumer_also_from_a_thread(dataset: Path) -> None:
    def fail(batch: Any) -> Any:
        raise RuntimeError("no such word")

    for stream in (packed(dataset).batch(2).map(fail), packed(dataset).batch(2).map(fail).prefetch(2)):
        with pytest.raises(RuntimeError, match="no such word"):
            next(iter(stream))
        stream.load_state_dict(stream.state_dict())


def test_numpy_gives_the_same_batches_as_arrays(dataset: Path) -> None:
    for a, b in zip(packed(dataset).batch(2).take(3), packed(dataset).batch(2).take(3).numpy(), strict=True):
        assert isinstance(b["input_ids"], np.ndarray)
        assert a["input_ids"].tolist() == b["input_ids"].tolist()


def test_stats_tell_what_was_handed_out_and_where_it_stands(dataset: Path) -> None:
    stream = packed(dataset, epochs=2).batch(2)
    assert stream.stats()["items"] == 0
    batches = list(stream)
    stats = stream.stats()
    assert stats["items"] == len(batches)
    assert stats["tokens"] == sum(batch["valid_tokens"] for batch in batches)
    assert stats["sequence_index"] == stream.state_dict()["sequence_index"]
    assert stats["epoch"] == 2
    assert stats["bytes_read"] >= 2 * stats["tokens"]
    assert 0 < stats["waited_seconds"] <= stats["seconds"]


def test_a_stream_without_a_kind_of_sample_says_what_is_missing(dataset: Path) -> None:
    with pytest.raises(ConfigError, match=r"add \.pack\(seq_len\) or \.documents\(\)"):
        iter(pipeline.ShardDataset(dataset))


def test_an_epoch_that_a_bounded_stream_does_not_have_is_refused(dataset: Path) -> None:
    with pytest.raises(ConfigError, match="epochs=2"):
        packed(dataset, epochs=2).set_epoch(2)


def test_a_stage_after_the_device_is_refused(dataset: Path) -> None:
    moved = packed(dataset).batch(2).to("cpu")
    for late in (lambda: moved.map(dict), lambda: moved.numpy(), lambda: moved.apply(iter)):
        with pytest.raises(ConfigError, match=r"comes before \.to"):
            late()


def test_a_split_without_tokens_is_an_error_not_an_endless_loop(tmp_path: Path) -> None:
    write_dataset(tmp_path / "empty", [[]])
    with pytest.raises(ConfigError, match="holds no tokens"):
        iter(pipeline.ShardDataset(tmp_path / "empty").pack(8))
    with pytest.raises(ConfigError, match="holds no documents"):
        iter(pipeline.ShardDataset(tmp_path / "empty").documents())


def shuffle_buffer(items: Iterator[Any]) -> Iterator[Any]:
    held, generator = list(islice(items, 5)), np.random.default_rng(0)
    for item in items:
        k = int(generator.integers(len(held)))
        held[k], given = item, held[k]
        yield given


def ahead(items: Iterator[Any]) -> Iterator[Any]:
    held = list(islice(items, 2))
    for item in items:
        held.append(item)
        yield held.pop(0)


def overlapping(items: Iterator[Any]) -> Iterator[Any]:
    for one, two in itertools.pairwise(items):
        yield {**two, "input_ids": one["input_ids"] + two["input_ids"]}


def in_order_of_length(items: Iterator[Any]) -> Iterator[Any]:
    while held := list(islice(items, 4)):
        yield from sorted(held, key=lambda item: int(item["input_ids"].sum()))


BUFFERS = [shuffle_buffer, ahead, overlapping, in_order_of_length]


@pytest.mark.parametrize("stage", BUFFERS)
@pytest.mark.parametrize("kind", ["samples", "batches", "numpy", "maps", "workers"])
def test_a_stage_that_keeps_items_ahead_is_an_error_by_its_second_item(dataset: Path, stage: Any, kind: str) -> None:
    streams = {
        "samples": lambda: packed(dataset).apply(stage),
        "batches": lambda: packed(dataset).batch(2).apply(stage),
        "numpy": lambda: packed(dataset).batch(2).numpy().apply(stage),
        "maps": lambda: packed(dataset).map(lambda item: {**item, "n": 1}).apply(stage).batch(2),
        "workers": lambda: DataLoader(packed(dataset).batch(2).apply(stage), batch_size=None, num_workers=1),
    }
    found = []
    with pytest.raises(
        ConfigError, match=r"stage [01]\.function .*(takes items ahead|gave two items).*`remembers` names"
    ):
        found += islice(streams[kind](), 2)
    assert len(found) <= 1


def test_a_stage_that_says_that_it_needs_nothing_may_keep_items(dataset: Path) -> None:
    class Ahead:
        remembers = ()

        def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
            yield from ahead(items)

    assert ids(islice(packed(dataset).apply(Ahead()), 6)) == ids(islice(packed(dataset), 6))


def odd_sums(items: Iterator[Any]) -> Iterator[Any]:
    yield from (item for item in items if int(item["input_ids"].sum()) % 2)


def pairs(items: Iterator[Any]) -> Iterator[Any]:
    for one, two in zip(items, items, strict=False):
        yield {**one, "input_ids": torch.cat([torch.as_tensor(each["input_ids"]) for each in (one, two)])}


def largest_of_four(items: Iterator[Any]) -> Iterator[Any]:
    while held := list(islice(items, 4)):
        yield max(held, key=lambda item: int(item["input_ids"].sum()))


def joined(items: Iterator[Any]) -> Iterator[Any]:
    held = []
    for item in items:
        held.append(torch.as_tensor(item["input_ids"]))
        if len(held) == 3:
            yield {"input_ids": torch.stack(held)}
            held = []


def rare(items: Iterator[Any]) -> Iterator[Any]:
    for number, item in enumerate(items):
        if number % 35 == 34:
            yield {key: value + 0 for key, value in item.items()}


@pytest.mark.parametrize("stage", [odd_sums, pairs, largest_of_four, joined, rare])
@pytest.mark.parametrize("kind", ["samples", "batches", "numpy", "maps"])
def test_stages_that_drop_or_join_keep_nothing_and_are_no_error(dataset: Path, stage: Any, kind: str) -> None:
    mask = torch.ones(3)
    streams = {
        "samples": lambda: packed(dataset).apply(stage),
        "batches": lambda: packed(dataset).batch(3).apply(stage).map(dict),
        "numpy": lambda: packed(dataset).batch(3).numpy().apply(stage).prefetch(2),
        "maps": lambda: packed(dataset).map(lambda item: {**item, "mask": mask}).apply(stage).batch(2),
    }
    assert len(list(islice(streams[kind](), 8))) == 8
