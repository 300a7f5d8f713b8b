"""The user's stages in one iteration. A stage is refused if a resume would lose its items."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from ...errors import ConfigError
from ..position import Position, Topology
from ..sequential.lane_reader import LongSearch
from ..settings import Map, StreamSettings, Take, stage_name

Positioned = tuple[Position, Any]  # an item, with the position after it

_ITEMS_A_CHECK = 64  # items that a stage takes from one check of the epoch to the next
_EPOCHS_OF_A_PART = 8  # without an item on one of several ranks, which reads only a part of each epoch

log = logging.getLogger("pipeline")


class UserStages:
    """The user's stages in one iteration from the position ``start`` on.

    ``epoch_of`` returns the epoch of a position; it is None if the stream is bounded.
    """

    def __init__(
        self, settings: StreamSettings, start: Position, topology: Topology, epoch_of: Callable[[Position], int] | None
    ) -> None:
        self.start = start
        self.topology = topology
        self.epoch_of = epoch_of
        self.takes = settings.takes
        self.dropping: str | None = None  # a stage that yielded fewer or more items than it took

    def run(self, stages: tuple[Any, ...], first: int, items: Iterator[Positioned]) -> Iterator[Positioned]:
        """Return items after ``stages``, which are numbered from ``first`` on."""
        for number, stage in enumerate(stages, first):
            if isinstance(stage, Map):
                items = _mapped(stage.function, items)
            elif isinstance(stage, Take):
                items = self._counted(stage.limit, number, items)
            else:
                items = _AppliedStage(self, number, stage).run(items)
        return items

    def ranks_may_differ(self, number: int) -> bool:
        """Say whether several ranks may see unequally many items at a stage, since the stream or a ``take`` before it ends."""
        return self.topology.world_size > 1 and (self.epoch_of is None or any(take < number for take in self.takes))

    def _counted(self, count: int, number: int, items: Iterator[Positioned]) -> Iterator[Positioned]:
        """Yield items until ``count`` were yielded since the pass began. Too few items on one of several ranks are an error."""
        given = self.start.given.get(str(number), 0)
        while given < count:
            for position, item in islice(items, 1):
                given += 1
                yield replace(position, given={**position.given, str(number): given}), item
                break
            else:
                if self.dropping is not None and self.ranks_may_differ(number):
                    raise ConfigError(
                        f"the stream ended after {given} of the {count} items of .take() on rank {self.topology.rank} of "
                        f"{self.topology.world_size}, since stage {self.dropping} drops items and the stream is bounded; make "
                        "it endless (no epochs=), or take fewer, else ranks take unequally many steps"
                    )
                return


def _mapped(function: Callable[[Any], Any], items: Iterator[Positioned]) -> Iterator[Positioned]:
    for position, item in items:
        yield position, function(item)


class _AppliedStage:
    """A stage of the user in one iteration. Each item that it yields gets the position after the last item that it took.

    A state may be saved between any two items, so a stage that yields two items for one is an error. A resume loses the items
    that a stage took ahead; `assert_resumes` detects this. After a stage that drops items, a position belongs to one rank. On
    several ranks of a bounded stream, such a stage is an error: if a rank ends early, the others wait forever.
    """

    def __init__(self, stages: UserStages, number: int, stage: Any) -> None:
        self._stages = stages
        self._stage = stage
        self._name = stage_name(number, stage)
        self._position = self._gave_at = stages.start  # after the last item taken, and after the last item yielded
        self._items_taken = 0  # items since the last item yielded
        self._bound = stages.start.bound_to == self._name
        self._search = LongSearch()
        self._since: int | None = None  # the epoch of the last item yielded
        later = any(take > number for take in stages.takes)
        self._must_be_even = stages.ranks_may_differ(number) and not later

    def run(self, items: Iterator[Positioned]) -> Iterator[Positioned]:
        exhausted = False

        def feed() -> Iterator[Any]:
            nonlocal exhausted
            for self._position, item in items:
                self._items_taken += 1
                self._refuse_fruitless()
                yield item
            exhausted = True

        for item in self._stage(feed()):
            if self._items_taken == 0:
                raise ConfigError(
                    f"stage {self._name} gave two items for one, so a state saved between them would lose the second; yield one "
                    "item that holds both"
                )
            self._bound |= self._items_taken > 1  # ranks may have taken unequally many items to yield equally many
            if self._items_taken > 1:
                self._dropped()
            self._items_taken, self._gave_at, self._since = 0, self._position, None
            self._search.restart()
            position = replace(self._position, skip=0)
            yield replace(position, bound_to=self._name) if self._bound else position, item
        if self._items_taken and exhausted:  # a stage that stops by itself may stop equally on all ranks
            self._dropped()
            if self._gave_at is self._stages.start:
                log.warning("stage %s took all %d items that were left, and gave none", self._name, self._items_taken)

    def _dropped(self) -> None:
        """Note that items were dropped; ``ConfigError`` if ranks would then take unequally many steps."""
        self._stages.dropping = self._name
        if self._must_be_even:
            ranks = self._stages.topology.world_size
            raise ConfigError(
                f"stage {self._name} drops or adds items of a bounded stream, so its {ranks} ranks would take unequally many "
                "steps and some wait forever; make the stream endless (no epochs=) and end it by .take(n) after that stage, "
                "or use .filter() on documents"
            )

    def _refuse_fruitless(self) -> None:
        """Warn of a stage that yields nothing for seconds; ``ConfigError`` if it yields nothing for an epoch."""
        if self._items_taken % _ITEMS_A_CHECK:
            return
        if (seconds := self._search.overdue()) is not None:
            log.warning(
                "stage %s gave no item for %d seconds, in which it took %d", self._name, seconds, self._items_taken
            )
        if (epoch_of := self._stages.epoch_of) is None:
            return
        if self._since is None:  # items may begin in the middle of an epoch, which does not count then
            self._since = epoch_of(self._gave_at) - (self._gave_at.sequence_index == 0)
        patience = 1 if self._stages.topology.world_size == 1 else _EPOCHS_OF_A_PART
        if epoch_of(self._position) - self._since > patience:
            epochs = "a whole epoch" if patience == 1 else f"{patience} epochs"
            raise ConfigError(
                f"stage {self._name} took {self._items_taken} items, those of {epochs}, and gave none: it drops everything; "
                "loosen it, or end the stream by epochs="
            )
