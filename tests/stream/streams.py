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


def mixed(dataset: Path) -> pipeline.Stream:
    """Return batches of a mix of two sources."""
    sources = {"a": pipeline.ShardDataset(dataset), "b": pipeline.ShardDataset(dataset)}
    return pipeline.mix(sources, {"a": 0.7, "b": 0.3}).shuffle(seed=2, lanes=2).pack(16).batch(2)


def text(texts: Path, epochs: int | None) -> pipeline.Stream:
    return pipeline.TextDataset(texts, "bytes", epochs=epochs).shuffle(seed=3, lanes=4).pack(24).batch(2)


def filtered(dataset: Path, **options: Any) -> pipeline.Stream:
    stream = pipeline.ShardDataset(dataset, epochs=1).shuffle(seed=3, lanes=4)
    return stream.filter(lambda document: len(document) % 3 != 0).pack(24, **options).batch(2)


# Streams with passes, each of which ends at a place of its own.
KINDS: dict[str, Callable[[Path, Path], pipeline.Stream]] = {
    "epochs=1": lambda small, texts: batched(small, 1),
    "epochs=1, take": lambda small, texts: batched(small, 1).take(5),
    "take": lambda small, texts: batched(small).take(5),
    "mix, take": lambda small, texts: mixed(small).take(5),
    "text": lambda small, texts: text(texts, 1),
    "filter": lambda small, texts: filtered(small),
    "best fit": lambda small, texts: filtered(small, best_fit=True),
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
    make: Callable[[int], pipeline.Stream], whole: list[Any], parts: Iterable[tuple[int, int]], order: Any = list
) -> None:
    """Assert that numbers of ranks read ``whole``, the rows of each step, one after the other.

    ``parts`` are pairs of a number of ranks and of their steps; ``make`` returns the stream that so many ranks share. Ranks
    of a sequential stream have their rows one rank after the other; else ``whole`` holds the rows ``sorted``, as ``order`` says.
    """
    states: list[dict[str, Any]] = []
    at = 0
    for ranks, steps in parts:
        streams = [make(ranks).shard(rank, ranks) for rank in range(ranks)]
        for stream in streams:
            if states:
                stream.load_state_dict(pipeline.merge_states(states))
        found = [ids(islice(stream, steps)) for stream in streams]
        assert [order(chain.from_iterable(step)) for step in zip(*found, strict=True)] == whole[at : at + steps]
        at += steps
        states = [json.loads(json.dumps(stream.state_dict())) for stream in streams]
