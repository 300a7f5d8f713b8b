"""All ranks take equally many steps, or the stream says why they cannot."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError
from tests.loaders import assert_raises

CURE = r"make the stream endless \(no epochs=\) and end it by \.take\(n\)"


def packed(dataset: Path, epochs: int | None = 1) -> pipeline.Stream:
    return pipeline.ShardDataset(dataset, epochs=epochs).shuffle(seed=1, lanes=6).pack(16)


def odd(items: Iterator[Any]) -> Iterator[Any]:
    """Drops by content: about half, unequally on the ranks."""
    for item in items:
        if int(item["input_ids"].sum()) % 2:
            yield item


def renamed(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        yield {**item, "seen": 1}


class Pairs:
    """Joins two items to one; the odd one out goes."""

    remembers = ("held",)

    def __init__(self) -> None:
        self.held: list[Any] = []

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            if self.held:
                self.held = []
                yield item
            else:
                self.held = item["input_ids"].tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda s: s.apply(odd).batch(2),
        lambda s: s.batch(2).apply(odd),
        lambda s: s.batch(2).apply(odd).map(dict),
        lambda s: s.map(dict).apply(Pairs()),
        lambda s: s.batch(2).take(9).apply(odd),
        lambda s: s.apply(odd).take(20).apply(Pairs()),
        lambda s: s.apply(odd).take(7).batch(2).apply(Pairs()),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stage_that_drops_from_a_bounded_stream_is_refused_on_several_ranks_with_the_cure(
    dataset: Path, make: Any, workers: int
) -> None:
    stream = make(packed(dataset))
    assert len(list(DataLoader(stream, batch_size=None, num_workers=workers))) > 0  # one rank may
    for rank in range(2):
        loader = DataLoader(stream.shard(rank, 2), batch_size=None, num_workers=workers)
        assert_raises(ConfigError, rf"drops or adds items of a bounded stream, so its 2 ranks.*{CURE}", loader)


def test_dropping_the_very_last_item_alone_is_noticed(dataset: Path) -> None:
    stream = packed(dataset).batch(2).shard(1, 2)
    count = len(list(stream))

    def all_but_the_last(items: Iterator[Any]) -> Iterator[Any]:
        for number, item in enumerate(items, 1):
            if number < count:
                yield item

    iterator = iter(stream.apply(all_but_the_last))
    assert len(list(islice(iterator, count - 1))) == count - 1
    with pytest.raises(ConfigError, match=CURE):
        next(iterator)


def test_dropping_after_a_take_of_an_endless_stream_is_refused_too(dataset: Path) -> None:
    stream = packed(dataset, None).apply(odd).take(20).apply(Pairs()).shard(0, 2)
    with pytest.raises(ConfigError, match=r"stage 2\.Pairs drops"):
        list(stream)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_endless_stream_ended_by_take_gives_every_rank_equally_many(dataset: Path, world_size: int) -> None:
    for rank in range(world_size):
        endless = packed(dataset, None).shard(rank, world_size)
        assert len(list(endless.apply(odd).batch(2).take(30))) == 30
        assert len(list(endless.batch(2).apply(odd).take(30))) == 30
        assert len(list(endless.apply(odd).take(30).batch(4))) == 8


def test_a_take_that_a_bounded_stream_cannot_fill_after_drops_is_refused(dataset: Path) -> None:
    counts = [len(list(packed(dataset).shard(rank, 2).take(10**6).apply(renamed))) for rank in range(2)]
    enough = min(counts) // 4
    for rank in range(2):
        stream = packed(dataset).apply(odd).shard(rank, 2)
        assert len(list(stream.take(enough))) == enough
        with pytest.raises(ConfigError, match=rf"of the 1000 items of \.take\(\) on rank {rank} of 2"):
            list(stream.take(1000))


class KeepsFew:
    """Lets every hundredth item through on rank 0, and all on the others."""

    remembers = ("seen",)

    def __init__(self, rank: int) -> None:
        self.seen = 0
        self.every = 1 if rank else 100

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.seen += 1
            if self.seen % self.every == 0:
                yield item


def test_dropping_99_of_100_on_one_rank_alone_leaves_steps_equal(dataset: Path) -> None:
    for rank in range(3):
        stream = packed(dataset, None).shard(rank, 3).apply(KeepsFew(rank)).batch(4).take(6)
        batches = list(stream)
        assert [batch["input_ids"].shape for batch in batches] == [(4, 16)] * 6
        assert stream.stats()["sequence_index"] == 6 * 4 * 3 * (1 if rank else 100)


def test_stages_that_give_one_for_one_or_end_by_themselves_are_left_alone(dataset: Path) -> None:
    def first_five(items: Iterator[Any]) -> Iterator[Any]:
        for number, item in enumerate(items):
            if number == 5:
                return
            yield item

    lengths = []
    for rank in range(3):
        stream = packed(dataset).shard(rank, 3)
        lengths.append(len(list(stream.apply(renamed).batch(2).apply(renamed))))
        assert len(list(stream.batch(2).apply(first_five))) == 5
        assert len(list(stream.batch(2).apply(lambda items: islice(items, 5)))) == 5
        assert len(list(stream.apply(renamed).batch(2).take(10**6))) == lengths[0]
    assert len(set(lengths)) == 1


def _train(rank: int, dataset: str, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        with pytest.raises(ConfigError, match="its 2 ranks would take unequally many steps"):
            list(packed(Path(dataset)).apply(odd).batch(2))
        steps = 0
        for _ in packed(Path(dataset), None).apply(odd).batch(2).take(12):
            dist.barrier()
            steps += 1
        assert steps == 12
    finally:
        dist.destroy_process_group()


def test_ranks_that_wait_for_each_other_at_every_step_do_not_hang(dataset: Path, tmp_path: Path) -> None:
    arguments = (str(dataset), str(tmp_path / "store"))
    mp.start_processes(_train, arguments, nprocs=2, start_method="forkserver")
