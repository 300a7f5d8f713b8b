"""Streams over the small dataset of the tests, and their items as lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

import pipeline

NAMES = ("books", "code", "web")


def packed(dataset: Path | str, epochs: int | None = None, **options: Any) -> pipeline.Stream:
    """Return samples of 16 tokens."""
    return pipeline.ShardDataset(dataset, epochs=epochs).shuffle(seed=1, lanes=6).pack(16, **options)


def batched(dataset: Path | str, epochs: int | None = None, size: int = 2, **options: Any) -> pipeline.Stream:
    """Return batches of such samples."""
    return packed(dataset, epochs, **options).batch(size)


def sources(lengths: Mapping[str, list[int]]) -> dict[str, pipeline.Stream]:
    """Return sources of some of `NAMES`, whose tokens say which source they are of, and where in it they are."""
    return {
        name: pipeline.ShardDataset.from_tokens(
            np.arange(sum(each), dtype=np.uint16) + 20_000 * NAMES.index(name), lengths=each, eos_id=65_535
        )
        for name, each in lengths.items()
    }


def ids(items: Any) -> list[Any]:
    return [item["input_ids"].tolist() for item in items]


def odd(items: Iterator[Any]) -> Iterator[Any]:
    """A stage that drops about half of its items by their content, unequally on ranks."""
    yield from (item for item in items if int(item["input_ids"].sum()) % 2)


def assert_goes_on(make: Callable[[], Any], count: int, stops: Any = None, to_list: Callable[..., Any] = ids) -> None:
    """Assert that items after a resume at each of ``stops`` (default: all) equal the uninterrupted run's."""
    whole = to_list(islice(make(), count))
    for stop in range(len(whole)) if stops is None else stops:
        first, second = make(), make()
        seen = to_list(islice(first, stop)) if stop else []
        state = json.loads(json.dumps(first.state_dict()))
        del first
        second.load_state_dict(state)
        assert seen + to_list(islice(second, count - stop)) == whole, stop


def assert_goes_on_on_any_ranks(
    make: Callable[[int], pipeline.Stream], whole: list[Any], parts: Iterable[tuple[int, int]]
) -> None:
    """Assert that numbers of ranks read ``whole``, the sorted rows of each step, one after the other.

    ``parts`` are pairs of a number of ranks and of their steps; ``make`` returns the stream that so many ranks share.
    """
    states: list[dict[str, Any]] = []
    at = 0
    for ranks, steps in parts:
        streams = [make(ranks).shard(rank, ranks) for rank in range(ranks)]
        for stream in streams:
            if states:
                stream.load_state_dict(pipeline.merge_states(states))
        found = [ids(islice(stream, steps)) for stream in streams]
        assert [sorted(chain.from_iterable(step)) for step in zip(*found, strict=True)] == whole[at : at + steps]
        at += steps
        states = [json.loads(json.dumps(stream.state_dict())) for stream in streams]
