"""Windows of documents of shards: each lane reads its own part of every epoch's shuffled documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...shards.extents.extent_table import running_sums
from ..lanes import WindowStart
from ..order import Shuffle
from ..windows.window import Key, Window, WindowCache, join_masks
from .lane import REJECTED_BY, SequentialWindow

_MOST_BYTES = 512 << 20  # of the windows that lanes need next


class ShardWindows:
    """Windows of about ``size`` documents. Lane ``l`` of ``lanes`` has the documents from ``l * D // lanes`` on, out of ``D``.

    The lanes of this process begin at ``starts``. ``filters`` choose documents. The stream ends after ``epochs`` (None: never).
    ``with_origins`` lists the shard and number of each document.
    """

    shared = False

    def __init__(
        self,
        loaded: WindowCache,
        order: Shuffle,
        *,
        lanes: int,
        size: int,
        starts: Mapping[int, WindowStart],
        filters: tuple[Callable[[Any], Any], ...],
        epochs: int | None,
        with_origins: bool = False,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._loaded = loaded
        self._order = order
        self._lanes = lanes
        self._size = size
        self._filters = filters
        self._epochs = epochs
        self._with_origins = with_origins
        self._needed = {lane: self._keys(lane, start) for lane, start in starts.items()}  # by each lane, next

    @property
    def bytes_read(self) -> int:
        """Bytes of documents read so far."""
        return self._loaded.bytes_read

    def make(self, lane: int, start: WindowStart) -> SequentialWindow | None:
        epoch, _, _ = start
        if self._epochs is not None and epoch >= self._epochs:
            return None
        first, stop, following = self._part(lane, start)
        self._needed[lane] = []
        # Windows of two epochs would take twice the memory, unless one window holds both epochs.
        if following[0] == epoch or self._loaded.maker.epochs > 1:
            here, needed = self._keys(lane, start), set(chain.from_iterable(self._needed.values()))
            has_room = len(needed) * self._order.blocks.bytes < _MOST_BYTES * self._order.windows
            self._needed[lane] = [key for key in self._keys(lane, following) if has_room or key in here]
        self._loaded.request(chain.from_iterable(self._needed.values()))
        origins = self._origins(epoch, first, stop) if self._with_origins else None
        made = self._keep(self._documents(epoch, first, stop), origins)
        self._loaded.keep(set(chain.from_iterable(self._needed.values())))
        return SequentialWindow(start, following, made)

    def _part(self, lane: int, start: WindowStart) -> tuple[int, int, WindowStart]:
        """Return a window's first and end document in the epoch's order (end exclusive), and the start of the next window."""
        epoch, _, number = start
        begin, end = (self._order.documents * n // self._lanes for n in (lane, lane + 1))
        count = max(1, (2 * (end - begin) + self._size) // (2 * self._size))  # windows of the lane's part
        first, stop = (begin + (end - begin) * min(n, count) // count for n in (number, number + 1))
        return first, stop, (epoch + 1, 0, 0) if number + 1 >= count else (epoch, 0, number + 1)

    def _keys(self, lane: int, start: WindowStart) -> list[Key]:
        """Return the keys of the cached windows that hold the documents of a lane's window."""
        first, stop, _ = self._part(lane, start)
        (epoch, begin), _ = self._window_of(start[0], first)
        (_, end), _ = self._window_of(start[0], stop - 1)
        return [(epoch, number) for number in range(begin, end + 1)]

    def _window_of(self, epoch: int, document: int) -> tuple[Key, int]:
        """Return the key of the cached window that holds a document of an epoch's order, and that window's first document."""
        if (epochs := self._loaded.maker.epochs) > 1:
            return (epoch - epoch % epochs, 0), -(epoch % epochs) * self._order.documents
        starts = self._order.epoch(epoch).document_starts
        number = int(starts.searchsorted(document, side="right")) - 1
        return (epoch, number), int(starts[number])

    def close(self) -> None:
        self._loaded.close()

    def _documents(self, epoch: int, first: int, stop: int) -> Window:
        """Return the documents ``first`` to ``stop`` (exclusive) of an epoch's order."""
        tokens, lengths, masks = [np.zeros(0, np.uint8)], [np.zeros(0, np.int64)], list[NDArray[np.uint8] | None]()
        while first < stop:
            key, begin = self._window_of(epoch, first)
            window = self._loaded.get(key)
            ends = window.ends[first - begin : stop - begin + 1]
            here = slice(ends[0], ends[-1])
            tokens.append(window.tokens[here])
            masks.append(None if window.mask is None else window.mask[here])
            lengths.append(np.diff(ends))
            first += len(ends) - 1
        joined = tokens[-1] if len(tokens) <= 2 else np.concatenate(tokens[1:])
        joined.flags.writeable = False
        self._loaded.bytes_read += joined.nbytes
        mask = join_masks(masks, map(len, tokens[1:]))
        return Window(joined, running_sums(np.concatenate(lengths)), mask=mask)

    def _origins(self, epoch: int, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the shard and number of each of these documents."""
        origins = list[tuple[int, int]]()
        while first < stop:
            key, begin = self._window_of(epoch, first)
            listing = self._loaded.maker.listing(*key)
            here = slice(first - begin, stop - begin)
            origins += zip(listing.shards[here].tolist(), listing.numbers[here].tolist(), strict=True)
            first = begin + min(len(listing.shards), stop - begin)
        return origins

    def _keep(self, window: Window, origins: list[tuple[int, int]] | None) -> Window:
        """Return the documents that pass the filters."""
        count = len(window.ends) - 1
        self.counts["documents"] += count
        if not self._filters:
            return window._replace(origins=origins)
        documents = map(window.document, range(count))
        kept = np.array([all(predicate(document) for predicate in self._filters) for document in documents], bool)
        rejected = int(np.count_nonzero(~kept))
        self.counts.update({"rejected": rejected, f"{REJECTED_BY}filter": rejected} if rejected else {})
        lengths = np.diff(window.ends)
        of_kept = np.repeat(kept, lengths)
        mask = None if window.mask is None else window.mask[of_kept]
        origins = None if origins is None else list(compress(origins, kept))
        return Window(window.tokens[of_kept], running_sums(lengths[kept]), mask=mask, origins=origins)
