"""What frameworks take in place of a ``DataLoader``: left alone by Accelerate, and not read ahead by Lightning."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from ...errors import ConfigError
from ..config import StreamConfig
from ..iteration.iterator import RaisesAgain, StreamIterator
from ..iteration.stream_position import StreamPosition
from .key_maps import key_map

ENDLESS_LENGTH = 2**31  # what frameworks take for a length where a stream has none

log = logging.getLogger("pipeline")


class Loader:
    """Iterates a stream under the keys and by the protocol of a training framework.

    ``len()`` is the stream's own where it is known, else ``length``, else 2**31 of an endless stream. A pass over a stream that
    knows its length starts where the stream stands; when all its batches were handed out, the next pass is that of
    the next ``set_epoch``. A pass over any other stream goes on where the last was left. With ``repeat``, each pass is the
    stream from its start to its end, for evaluation: ``set_epoch`` and ``load_state_dict`` change nothing, and the stream
    that was given stays where it is.

    Raises ``ConfigError`` where ``keys`` or ``length`` do not suit the stream, where it ends after a number of batches that is
    unknown in advance and no ``length`` is stated, and for ``repeat`` of an endless stream.
    """

    def __init__(
        self,
        config: StreamConfig,
        position: StreamPosition,
        keys: str | Callable[[Any], Any] | None,
        length: int | None,
        repeat: bool = False,
    ) -> None:
        self._config = config
        self._position = StreamPosition(config) if repeat else position
        self._map = key_map(keys, config)
        self._length = length
        self._repeat = repeat
        self._items: StreamIterator | None = None  # the stream's iterator in the latest pass
        known, endless = self._known_length(), position.passes.endless
        if known is not None and length is not None:
            raise ConfigError(f"the stream knows its length, {known} batches; remove length={length}")
        if repeat and endless:
            raise ConfigError(
                "repeat=True gives the same batches in each pass, but this stream is endless; bound it by epochs=1 or .take(n)"
            )
        if known is None and length is None and not endless and config.layout is not None:
            raise ConfigError(
                "frameworks ask a loader for its length, but after how many batches this stream ends is unknown in advance; "
                "state it, .loader(length=n), or leave epochs out and end the stream by .take(n)"
            )

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches of a pass; it ends an earlier one."""
        if self._repeat:
            self.close()
        elif self._leave_pass():
            self._position.next_pass()
        self._items = self._position.iterate()
        return RaisesAgain(self._batches(self._items))

    def __len__(self) -> int:
        known = self._known_length()
        return (self._length or ENDLESS_LENGTH) if known is None else known

    def set_epoch(self, epoch: int) -> None:
        """Do what ``Stream.set_epoch`` does: the first call after a load keeps the position, others begin a pass."""
        if self._repeat:
            return
        ended = self._leave_pass()
        self._position.set_epoch(epoch)
        if ended and not self._position.passes.exist:
            self._position.next_pass()

    def state_dict(self) -> dict[str, Any]:
        """Return the stream's state after the batches handed out."""
        return self._position.save(None)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``; the next pass starts there, or is the one after where the state ended one."""
        self.close()
        if self._repeat:
            return
        self._position.load(state)

    def close(self) -> None:
        """End the running pass and stop its threads."""
        if self._items is not None:
            self._items.close()
            self._items = None

    def _batches(self, items: Iterator[Any]) -> Iterator[Any]:
        first = list(islice(items, 1))
        if not first and self._position.loaded and items is self._items:  # the state was saved at the end of a pass
            self._position.next_pass()
            self._items = items = self._position.iterate()
        for batch in chain(first, items):
            yield self._map(batch)

    def _known_length(self) -> int | None:
        try:
            return self._position.length()
        except TypeError:
            return None

    def _leave_pass(self) -> bool:
        """End the latest pass; say whether it handed out all its batches, even if nobody asked for one more."""
        items, self._items = self._items, None
        if items is None:
            return False
        if items.live and self._known_length() is None:
            state = self._position.save(None)
            items.close()
            self._position.load(state)
        elif items.live:
            # Epochs differ by a sequence, and a framework that asked for the length of one may stop a batch early.
            if len(list(islice(items, 2))) == 1 and items.progress.finished:
                log.warning("one batch of an epoch was left unread; the next pass is the next epoch")
            items.close()
        return (
            bool(items.progress.finished) and items.moved_by is None
        )  # else somebody said already what the next pass is
