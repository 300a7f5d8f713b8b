"""Streams over the small dataset of the tests, and their items as lists."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pipeline


def packed(dataset: Path | str, epochs: int | None = None, **options: Any) -> pipeline.Stream:
    """Return samples of 16 tokens."""
    return pipeline.ShardDataset(dataset, epochs=epochs).shuffle(seed=1, lanes=6).pack(16, **options)


def batched(dataset: Path | str, epochs: int | None = None, size: int = 2, **options: Any) -> pipeline.Stream:
    """Return batches of such samples."""
    return packed(dataset, epochs, **options).batch(size)


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
