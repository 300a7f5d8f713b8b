"""Equal steps on every rank of a bounded stream, or an error: a rank that ends early leaves the others waiting forever.

Sequences are dealt evenly, and so are batches. Only a stage of the user's own can upset that, by giving fewer or more
items than it takes; that is seen where it happens.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import ConfigError
from ..config import StreamConfig
from .worker_context import WorkerContext


class EvenSteps:
    """Watches the stages of one iteration, by their numbers; ``takes`` are those that end after so many items."""

    def __init__(self, config: StreamConfig, takes: Sequence[int], context: WorkerContext) -> None:
        self._rank, self.ranks = context.rank, context.world_size
        self._bounded = any(bound is not None for bound in (config.epochs, config.take, config.take_batches))
        self._takes = takes
        self._upset_by: str | None = None

    def upset(self, name: str, number: int) -> None:
        """Note that a stage gave fewer or more items than it took; ``ConfigError`` where no ``take`` evens that out."""
        self._upset_by = name
        if self._may_differ(number) and not any(take > number for take in self._takes):
            raise ConfigError(
                f"stage {name} drops or adds items of a bounded stream, so its {self.ranks} ranks would take unequally "
                "many steps and some wait forever; make the stream endless (no epochs=) and end it by .take(n) after "
                "that stage, or use .filter() on documents"
            )

    def ended(self, number: int, taken: int, count: int) -> None:
        """Note that a ``take`` got no more items; ``ConfigError`` where these are too few and other ranks may get more."""
        if self._may_differ(number) and self._upset_by is not None and taken < count:
            raise ConfigError(
                f"the stream ended after {taken} of the {count} items of .take() on rank {self._rank} of {self.ranks}, "
                f"since stage {self._upset_by} drops items and the stream is bounded; make it endless (no epochs=), or "
                "take fewer, else ranks take unequally many steps"
            )

    def _may_differ(self, number: int) -> bool:
        """Say whether ranks may see unequally many items at a stage: there are several, and something ends before it."""
        return self.ranks > 1 and (self._bounded or any(take < number for take in self._takes))
