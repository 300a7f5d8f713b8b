"""The stages that users add to a stream, and what follows from them for counting and resuming."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

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


class HeldItems:
    """Finds a stage that keeps items from before the last one that it gave: a state that was saved there loses them.

    A stage that drops items, or joins several, keeps nothing: what it took for one item that it gives is gone when it gives
    the next. One array or tensor of each item tells this, by a weak reference, unless it was given itself.
    """

    def __init__(self) -> None:
        self._taken: list[tuple[int, weakref.ref[Any]]] = []
        self._given = 0
        self._limit = 16

    def take(self, item: object) -> None:
        """Note an item that the stage takes."""
        ids = item.get("input_ids") if isinstance(item, Mapping) else None  # others may be constants that a map added
        self._taken += [(self._given, weakref.ref(array)) for array in (_arrays([ids]) or _arrays(item))[:1]]
        if len(self._taken) > self._limit:  # of a stage that drops very many
            self._taken = [each for each in self._taken if each[1]() is not None]
            self._limit = 2 * len(self._taken) + 16

    def give(self, item: object) -> bool:
        """Note an item that the stage gives; say whether the stage keeps some from before the one that it gave last."""
        given = {id(array) for array in _arrays(item)}
        self._taken = [each for each in self._taken if (held := each[1]()) is not None and id(held) not in given]
        self._given += 1
        return any(number < self._given - 1 for number, _ in self._taken)


def _arrays(item: object) -> list[Any]:
    values = item.values() if isinstance(item, Mapping) else item if isinstance(item, list | tuple) else [item]
    return [value for value in values if isinstance(value, torch.Tensor | np.ndarray)]


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
