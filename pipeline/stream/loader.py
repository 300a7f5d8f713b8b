"""The loader that training frameworks take in place of a ``DataLoader``: ``stream.loader()``.

It is no ``DataLoader``, so ``accelerator.prepare`` leaves it alone, and it has a length, so Lightning reads nothing ahead of
the state that it saves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .key_maps import key_map

if TYPE_CHECKING:
    from .stages import Stream

ENDLESS = 2**31  # what frameworks take for a length where a stream has none

log = logging.getLogger("pipeline")


class Loader:
    """Iterates a stream under the keys and by the protocol of a training framework.

    ``len()`` is that of a whole pass: the stream's own where it is known, else ``length``, else 2**31. A pass over a
    stream that knows its length starts where the stream stands; when all its batches were handed out, the next pass is
    the next epoch. A pass over any other stream goes on where the pass before was left. Raises ``ConfigError`` where
    ``length`` is given for a stream that knows its own, and where ``keys`` do not suit the stream.
    """

    def __init__(self, stream: Stream, keys: str | Callable[[Any], Any] | None, length: int | None) -> None:
        self.stream = stream
        self._map = key_map(keys, stream._plan)
        self._length = length
        self._items: Any = None  # the stream's iterator in the latest pass
        self._loaded = False
        if length is not None and self._known_length() is not None:
            raise ConfigError(
                f"the stream knows its length, {len(stream)} batches; remove length={length}, or use .take"
            )

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches of a pass; it ends an earlier one."""
        self._leave_pass()
        self._items = iter(self.stream)
        return self._batches(self._items)

    def __len__(self) -> int:
        known = self._known_length()
        return known if known is not None else self._length or ENDLESS

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of ``epoch``, as ``Stream.set_epoch`` does: the first call after a load keeps the position."""
        self._leave_pass()
        self.stream.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's state after the batches handed out."""
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``; the next pass starts there, or with the next epoch where the state ended one."""
        self.close()
        self.stream.load_state_dict(state)
        self._loaded = True

    def close(self) -> None:
        """End the running pass and stop its threads; the stream stays at its position."""
        if self._items is not None:
            self._items.close()
            self._items = None

    def _batches(self, items: Iterator[Any]) -> Iterator[Any]:
        loaded, self._loaded = self._loaded, False
        first = list(islice(items, 1))
        if not first and loaded and items is self._items:
            self._items = items = iter(self.stream)
        for batch in chain(first, items):
            yield self._map(batch)

    def _known_length(self) -> int | None:
        try:
            return len(self.stream)
        except TypeError:
            return None

    def _leave_pass(self) -> None:
        """Bring the latest pass to its end, if all its batches were handed out, as frameworks stop there without asking."""
        if self._items is None or not self._items.live:
            return
        if self._known_length() is None:
            state = self.stream.state_dict()
            self.close()
            self.stream.load_state_dict(state)
            return
        # Epochs differ by a sequence, and a framework that asked for the length of the first may stop a batch early.
        if len(list(islice(self._items, 2))) == 1:
            log.warning("the framework left the last batch of an epoch unread; the next pass is the next epoch")
        self.close()
