"""What an engine is: it runs unit functions over units, somewhere.

A unit function takes one unit, leaves its result in files that appear by rename, and returns something small. An
engine promises that every unit was run to its end at least once, and nothing about order: a result that depends on
the order of completion would depend on the machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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


_sinks: list[Callable[[int], object]] = []


def report_progress(amount: int) -> None:
    """Tell the engine how much more of the present unit is done; a unit function may call it any number of times."""
    if _sinks:
        _sinks[-1](amount)


@contextmanager
def progress_to(sink: Callable[[int], object]) -> Iterator[None]:
    """Send what `report_progress` is told in the block to ``sink``."""
    _sinks.append(sink)
    try:
        yield
    finally:
        _sinks.pop()


class Engine(ABC):
    """Runs units. Use it as a context manager: leaving ends its workers.

    ``on_progress(index of the unit, amount)`` is called while units run, where the engine learns of it. A unit that is
    run again after its worker died reports again.
    """

    on_progress: Callable[[int, int], object] = staticmethod(lambda index, amount: None)

    def start(self, units: int) -> None:  # noqa: B027 - an engine without workers has none to start
        """Start the workers for that many units, which `map` does where it was not done."""

    @abstractmethod
    def map(self, function: Callable[[Unit], Result], units: Sequence[Unit]) -> Iterator[tuple[int, Result]]:
        """Yield ``(index of the unit, result)`` as units finish; the first exception of a unit ends the map."""

    def close(self) -> None:  # noqa: B027 - an engine without workers has nothing to end
        """End the workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
