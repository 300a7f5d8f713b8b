"""What an engine is: it runs unit functions over units, somewhere.

A unit function takes one unit, leaves its result in files that appear by rename, and returns something small. An
engine promises that every unit was run to its end at least once, and nothing about order: a result that depends on
the order of completion would depend on the machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self, TypeVar

Unit = TypeVar("Unit")
Result = TypeVar("Result")
Prepare = Callable[[], object]
"""Loads what unit functions share, such as models and compiled kernels."""

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

    @abstractmethod
    def map(self, function: Callable[[Unit], Result], units: Sequence[Unit]) -> Iterator[tuple[int, Result]]:
        """Yield ``(index of the unit, result)`` as units finish; the first exception of a unit ends the map."""

    def close(self) -> None:  # noqa: B027 - an engine without workers has nothing to end
        """End the workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
