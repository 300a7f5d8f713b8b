"""The stages that users add to a stream, and what follows from them for counting and resuming."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from ..config import StreamConfig


class Map:
    """A function of one item, as a stage."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function


class Take:
    """The first ``count`` items, where stages before may drop some, so that they must be counted."""

    remembers = ("taken",)
    per_rank = False

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        while self.taken < self.count:
            for item in islice(items, 1):
                self.taken += 1
                yield item
                break
            else:
                return


def remembering(config: StreamConfig) -> dict[str, Any]:
    """Return the stages that keep something in the state, by the name that it has there."""
    steps = (*config.steps, *config.batch_steps)
    return {f"{n}.{type(step).__name__}": step for n, step in enumerate(steps) if getattr(step, "remembers", ())}


def initial_takes(config: StreamConfig) -> dict[str, Any]:
    """Return what each ``Take`` keeps in the state at the start of a pass, by its name there."""
    return {name: {"taken": 0} for name, step in remembering(config).items() if isinstance(step, Take)}


def counts_items(config: StreamConfig) -> bool:
    """Say whether positions follow from counts of items: every stage gives one item for each that it takes."""
    return all(isinstance(step, Map) for step in (*config.steps, *config.batch_steps))
