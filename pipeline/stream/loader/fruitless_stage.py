"""A stage of the user that takes items and gives none: it is said after some seconds, and is an error after an epoch."""

from __future__ import annotations

import logging

from ...errors import ConfigError
from ..config import StreamConfig
from ..long_search import LongSearch
from .epochs import epoch_reached, steps_taken
from .position import Position

_CHECKED = 64  # items taken between two looks at the epoch
_EPOCHS_OF_A_PART = 8  # of which a rank, that sees a part of each, may give nothing

log = logging.getLogger("pipeline")


class FruitlessStage:
    """Watches the stage ``name`` from the position ``start`` on, on one of so many ``ranks``."""

    def __init__(self, config: StreamConfig, name: str, start: Position, ranks: int) -> None:
        self._config = config
        self._name = name
        self._patience = 1 if ranks == 1 else _EPOCHS_OF_A_PART
        self._endless = config.epochs is None and steps_taken(config, 1) is None
        self._search = LongSearch()
        self._at = start
        self._since: int | None = None  # the epoch that was under way when it last gave an item

    def gave(self, position: Position) -> None:
        """Note that the stage gave an item, after it took the one before ``position``."""
        self._search.found()
        self._at, self._since = position, None

    def took(self, count: int, position: Position) -> None:
        """Note how many items the stage took since it gave one; raises ``ConfigError`` after a whole epoch of them."""
        if count % _CHECKED:
            return
        if (seconds := self._search.overdue()) is not None:
            log.warning("stage %s gave no item for %d seconds, in which it took %d", self._name, seconds, count)
        if not self._endless:
            return
        if self._since is None:  # of the epoch that the search begins in, a part may be over
            self._since = epoch_reached(self._config, self._at) - (self._at.sequence_index == 0)
        if epoch_reached(self._config, position) - self._since > self._patience:
            epochs = "a whole epoch" if self._patience == 1 else f"{self._patience} epochs"
            raise ConfigError(
                f"stage {self._name} took {count} items, those of {epochs}, and gave none: it drops everything; loosen it, or "
                "end the stream by epochs="
            )
