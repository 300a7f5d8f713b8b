"""What an engine is: it runs unit functions over units, somewhere.

A unit function takes one unit, leaves its result in files that appear by rename, and returns something small. An
engine promises that every unit was run to its end at least once, and nothing about order: results that depend on
completion order would depend on the machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

Unit = TypeVar("Unit")
Result = TypeVar("Result")
Prepare = Callable[[], object]
"""Loads what unit functions share, such as models and compiled kernels."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine runs. ``start_method`` is one of multiprocessing's; by default ``fork`` where that is safe."""

    workers: int = 1
    start_method: str | None = None
    ray_address: str | None = None


class Engine(ABC):
    """Runs units. Use it as a context manager: leaving ends its workers."""

    @abstractmethod
    def map(self, function: Callable[[Unit], Result], units: Sequence[Unit]) -> Iterator[tuple[int, Result]]:
        """Yield ``(index of the unit, result)`` as units finish; the first exception of a unit ends the map."""

    def close(self) -> None:  # noqa: B027 - an engine without workers has nothing to end
        """End the workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
