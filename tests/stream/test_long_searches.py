"""No stream searches or ends in silence: long searches are logged, fruitless ones refused, errors raised again."""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.stream.streams import batched


class Clock:
    """A clock in place of the system's; what calls it lets some hundredths of a second pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def is_late(self, *_: Any) -> bool:
        """Say, of a document or an item, whether six seconds have passed."""
        self.now += 0.03
        return self.now > 6


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


def test_what_keeps_nothing_for_seconds_is_logged(small: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    data = pipeline.ShardDataset.from_texts([f"text {number}" for number in range(3000)], "bytes")
    stream = data.shuffle(seed=1, lanes=16).filter(clock.is_late, name="slow").documents().batch(2)
    with caplog.at_level(logging.WARNING, logger="pipeline"):
        assert len(next(iter(stream))["input_ids"]) == 2
    said, *_ = [record.message for record in caplog.records if record.message.startswith("no row for ")]
    assert (
        found := re.match(
            r"no row for (\d+) seconds: (\d+) documents were read so far, filters kept 0 .*\(and 0 bad", said
        )
    )
    assert int(found[1]) >= 5
    assert 100 < int(found[2]) < 3000

    clock.now = 0

    def slow(items: Iterator[Any]) -> Iterator[Any]:
        yield from filter(clock.is_late, items)

    mixed = pipeline.mix({"a": pipeline.ShardDataset(small)}, {"a": 1}).pack(8).apply(slow)  # has no epoch that ends it
    next(iter(mixed))
    said, *_ = [record.message for record in caplog.records if "gave no item for" in record.message]
    assert re.match(r"stage 0\.slow gave no item for \d+ seconds, in which it took \d+", said)


def drop_all(items: Iterator[Any]) -> Iterator[Any]:
    for _ in items:
        yield from ()


def endless(kind: str, small: Path, texts: Path) -> pipeline.Stream:
    if kind == "text":
        return pipeline.TextDataset(texts, "bytes").shuffle(seed=3, lanes=4).pack(24)
    if kind == "filter":
        return pipeline.ShardDataset(small).shuffle(seed=3, lanes=4).filter(len).pack(24)
    return pipeline.ShardDataset(small).shuffle(seed=3, lanes=4).pack(8)


@pytest.mark.parametrize("kind", ["shards", "filter", "text"])
def test_a_stage_that_drops_everything_is_an_error_after_an_epoch(small: Path, texts: Path, kind: str) -> None:
    for stream in (
        endless(kind, small, texts).apply(drop_all),
        endless(kind, small, texts).apply(drop_all).batch(4).take(9),
        endless(kind, small, texts).batch(2).apply(drop_all),
    ):
        stream.set_epoch(3)
        with pytest.raises(ConfigError, match=r"stage 0\.\w+ took \d+ items, .* epoch, and gave none"):
            next(iter(stream))
    on_two = endless(kind, small, texts).batch(2).apply(drop_all).shard(1, 2)
    with pytest.raises(ConfigError, match="those of 8 epochs, and gave none"):
        next(iter(on_two))


@pytest.mark.parametrize(("ranks", "epoch", "taken"), [(1, 0, 128), (1, 3, 256), (2, 0, 448), (2, 3, 512)])
def test_a_search_is_given_up_after_an_epoch_or_eight_of_a_ranks_part(ranks: int, epoch: int, taken: int) -> None:
    data = pipeline.ShardDataset.from_tokens(range(800), lengths=[800]).shuffle(seed=3, lanes=4)
    stream = data.pack(8).apply(drop_all).shard(0, ranks)
    stream.set_epoch(epoch)
    with pytest.raises(
        ConfigError, match=f"took {taken} items, those of {'a whole epoch' if ranks == 1 else '8 epochs'}, "
    ):
        next(iter(stream))


def test_a_stage_that_gives_one_item_of_an_epoch_is_left_alone(small: Path) -> None:
    tokens = Counter(int(t) for batch in batched(small, 1) for t in batch["input_ids"].flatten())
    rare = min(tokens, key=tokens.__getitem__)
    assert tokens[rare] == 1

    def with_a_rare_token(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if bool((batch["input_ids"] == rare).any()):
                yield batch

    assert len(list(batched(small).apply(with_a_rare_token).take(12))) == 12
    assert list(batched(small, 1).apply(drop_all)) == []
    assert list(batched(small).take(200).apply(drop_all)) == []


class FailsAtThird:
    """A function of an item that fails for the third."""

    def __init__(self) -> None:
        self.calls = count(1)

    def __call__(self, item: Any) -> Any:
        if next(self.calls) == 3:
            raise ValueError("the third")
        return item


class AsFilter(FailsAtThird):
    def __call__(self, item: Any) -> bool:
        return super().__call__(item) is item


def failing_stage(items: Iterator[Any]) -> Iterator[Any]:
    function = FailsAtThird()
    for item in items:
        yield function(item)


CHAINS: dict[str, Any] = {
    "map": lambda d: batched(d, 1).map(FailsAtThird()),
    "map of samples": lambda d: pipeline.ShardDataset(d, epochs=1).pack(8).map(FailsAtThird()).batch(2),
    "apply": lambda d: batched(d, 1).apply(failing_stage),
    "filter": lambda d: pipeline.ShardDataset(d, epochs=1).filter(AsFilter(), name="fails").pack(8).batch(2),
    "prefetch": lambda d: batched(d, 1).map(FailsAtThird()).prefetch(2),
    "device": lambda d: batched(d, 1).map(FailsAtThird()).to("cpu"),
    "loader": lambda d: batched(d, 1).map(FailsAtThird()).loader(),
    "repeat": lambda d: batched(d, 1).map(FailsAtThird()).loader(repeat=True),
    "DataLoader": lambda d: DataLoader(batched(d, 1).map(FailsAtThird()), batch_size=None),
    "workers": lambda d: DataLoader(batched(d, 1).map(FailsAtThird()), batch_size=None, num_workers=2),
}


def test_an_iterator_that_was_interrupted_says_so(small: Path) -> None:
    def interrupt(batch: Any) -> Any:
        raise KeyboardInterrupt

    iterator = iter(batched(small, 1).map(interrupt))
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    with pytest.raises(StateError, match=r"was interrupted; call iter\(\)"):
        next(iterator)


@pytest.mark.parametrize("kind", [*CHAINS, "StatefulDataLoader", "StatefulDataLoader with workers"])
def test_after_an_error_an_iterator_raises_it_again_instead_of_ending(small: Path, kind: str) -> None:
    if kind.startswith("Stateful"):
        stateful = pytest.importorskip("torchdata.stateful_dataloader")
        workers = 2 if kind.endswith("workers") else 0
        source = stateful.StatefulDataLoader(
            batched(small, 1).map(FailsAtThird()), batch_size=None, num_workers=workers
        )
    else:
        source = CHAINS[kind](small)
    iterator = iter(source)
    errors = []
    for _ in range(20):  # as a loop that skips what fails
        try:
            next(iterator)
        except ValueError as error:
            errors.append("".join([str(error), *getattr(error, "__notes__", ())]))
            traceback.clear_frames(
                error.__traceback__
            )  # which keep workers, whose end is waited for, until they are collected
    assert len(errors) > 5
    assert all("the third" in error and "raises it again" in error for error in errors)


def test_a_loader_goes_on_behind_a_batch_that_its_keys_fail_for(small: Path) -> None:
    whole = [batch["input_ids"].tolist() for batch in batched(small, 1)]
    batches = iter(batched(small, 1).loader(keys=FailsAtThird()))
    given = [next(batches) for _ in range(2)]
    with pytest.raises(ValueError, match="the third"):
        next(batches)
    assert [batch["input_ids"].tolist() for batch in [*given, *batches]] == whole[:2] + whole[3:]


def test_a_stage_that_gives_nothing_of_a_bounded_stream_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    stream = (
        pipeline.ShardDataset.from_tokens(range(64), epochs=1).pack(8).apply(lambda items: (i for i in items if not i))
    )
    with caplog.at_level(logging.WARNING, logger="pipeline"):
        assert list(stream) == []
    assert "took all 8 items that were left, and gave none" in caplog.text
