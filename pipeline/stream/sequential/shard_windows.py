"""Windows of documents of shards: each lane reads its own part of every epoch's shuffled documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import chain, compress, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...shards.extents.extent_table import running_sums
from ..lanes import WindowStart
from ..order import Shuffle
from ..windows.held_source import HeldSource
from ..windows.window import Key, Window, WindowCache, join_masks
from .lane import REJECTED_BY, SequentialWindow

_MOST_BYTES = 512 << 20  # of the windows that lanes need next
_HELD_ORDERS = 4  # of windows of a held source, whose lanes may be in several epochs


class ShardWindows:
    """Windows of about ``size`` documents. Lane ``l`` of ``lanes`` has the documents from ``l * D // lanes`` on, out of ``D``.

    The lanes of this process begin at ``starts``. ``filters`` choose documents. The stream ends after ``epochs`` (None: never).
    ``with_origins`` lists the shard and number of each document. Documents come from ``held`` if the source is small, else from
    the windows ``loaded``. A lane's window is made in pieces of about ``most_bytes``, or of one window of ``loaded``, because 64
    long documents for each lane would take much memory (None: in one piece, which best fit needs).
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
        held: HeldSource | None = None,
        most_bytes: int | None = None,
        with_origins: bool = False,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._loaded = loaded
        self._order = order
        self._lanes = lanes
        self._size = size
        self._filters = filters
        self._epochs = epochs
        self._held, self._most_bytes = held, most_bytes
        self._with_origins = with_origins
        self._numbers = lru_cache(_HELD_ORDERS)(partial(_numbers, held, order))
        self._needed = {
            lane: self._keys(start[0], *self._part(lane, start)[:2]) for lane, start in starts.items()
        }  # by each lane, next

    @property
    def bytes_read(self) -> int:
        """Bytes of documents read so far."""
        return self._loaded.bytes_read

    def make(self, lane: int, start: WindowStart) -> Iterator[SequentialWindow] | None:
        if self._epochs is not None and start[0] >= self._epochs:
            return None
        if self._held is not None:
            self._held.begin(start[0])
        first, stop, following = self._part(lane, start)
        is_whole = self._most_bytes is None or self._order.blocks.bytes <= self._most_bytes
        cuts = [first, stop] if is_whole else self._cuts(start[0], first, stop)
        return map(partial(self._piece, lane, start, following), pairwise(cuts), [*cuts[2:], None])

    def _cuts(self, epoch: int, first: int, stop: int) -> list[int]:
        """Return where to cut the documents ``first`` to ``stop`` (exclusive) of an epoch into pieces that need little memory."""
        if self._held is not None:
            assert self._most_bytes is not None
            return [first + at for at in self._held.cuts(self._held_numbers(epoch, first, stop), self._most_bytes)]
        starts = self._order.epoch(epoch).document_starts
        return [first, *starts[(starts > first) & (starts < stop)].tolist(), stop]

    def _piece(
        self, lane: int, start: WindowStart, following: WindowStart, cuts: tuple[int, int], next_cut: int | None
    ) -> SequentialWindow:
        (first, stop), epoch = cuts, start[0]
        if self._held is not None:
            made = self._held.window(self._held_numbers(epoch, first, stop), with_origins=self._with_origins)
        else:
            self._request(lane, epoch, cuts, following, next_cut)
            made = self._documents(epoch, first, stop)
            if self._with_origins:
                made = made._replace(origins=self._origins(epoch, first, stop))
            self._loaded.keep(set(chain.from_iterable(self._needed.values())))
        self._loaded.bytes_read += made.tokens.nbytes
        return SequentialWindow(start, following if next_cut is None else None, self._keep(made))

    def _request(
        self, lane: int, epoch: int, cuts: tuple[int, int], following: WindowStart, next_cut: int | None
    ) -> None:
        """Request the windows of a piece, and of the piece after it if there is room."""
        self._needed[lane] = []
        # Windows of two epochs would take twice the memory.
        if next_cut is not None or following[0] == epoch:
            here, needed = self._keys(epoch, *cuts), set(chain.from_iterable(self._needed.values()))
            has_room = len(needed) * self._order.blocks.bytes < _MOST_BYTES * self._order.windows
            first, stop, _ = (cuts[1], next_cut, None) if next_cut is not None else self._part(lane, following)
            if self._most_bytes is not None:
                stop = first + 1  # its first piece
            self._needed[lane] = [key for key in self._keys(epoch, first, stop) if has_room or key in here]
        self._loaded.request(chain.from_iterable(self._needed.values()))

    def _part(self, lane: int, start: WindowStart) -> tuple[int, int, WindowStart]:
        """Return a window's first and end document in the epoch's order (end exclusive), and the start of the next window."""
        epoch, _, number = start
        begin, end = (self._order.documents * n // self._lanes for n in (lane, lane + 1))
        count = max(1, (2 * (end - begin) + self._size) // (2 * self._size))  # windows of the lane's part
        first, stop = (begin + (end - begin) * min(n, count) // count for n in (number, number + 1))
        return first, stop, (epoch + 1, 0, 0) if number + 1 >= count else (epoch, 0, number + 1)

    def _keys(self, epoch: int, first: int, stop: int) -> list[Key]:
        """Return the keys of the cached windows that hold the documents ``first`` to ``stop`` (exclusive) of an epoch."""
        if self._held is not None:
            return []
        begin, end = (self._window_of(epoch, document)[0] for document in (first, max(first, stop - 1)))
        return [(epoch, number) for number in range(begin, end + 1)]

    def _window_of(self, epoch: int, document: int) -> tuple[int, int]:
        """Return the number of the window that holds a document of an epoch's order, and the window's first document."""
        starts = self._order.epoch(epoch).document_starts
        number = int(starts.searchsorted(document, side="right")) - 1
        return number, int(starts[number])

    def _held_numbers(self, epoch: int, first: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers in the held source of the documents ``first`` to ``stop`` (exclusive) of an epoch's order."""
        numbers = [np.zeros(0, np.int64)]
        while first < stop:
            window, begin = self._window_of(epoch, first)
            numbers.append(self._numbers(epoch, window)[first - begin : stop - begin])
            first += len(numbers[-1])
        return np.concatenate(numbers)

    def close(self) -> None:
        self._loaded.close()

    def _documents(self, epoch: int, first: int, stop: int) -> Window:
        """Return the documents ``first`` to ``stop`` (exclusive) of an epoch's order."""
        tokens, lengths, masks = [np.zeros(0, np.uint8)], [np.zeros(0, np.int64)], list[NDArray[np.uint8] | None]()
        while first < stop:
            number, begin = self._window_of(epoch, first)
            window = self._loaded.get((epoch, number))
            ends = window.ends[first - begin : stop - begin + 1]
            here = slice(ends[0], ends[-1])
            tokens.append(window.tokens[here])
            masks.append(None if window.mask is None else window.mask[here])
            lengths.append(np.diff(ends))
            first += len(ends) - 1
            # A view keeps the whole window in memory.
            is_view = len(tokens) == 2 and first >= stop and 2 * len(tokens[-1]) >= len(window.tokens)
        joined = tokens[-1] if len(tokens) == 1 or is_view else np.concatenate(tokens[1:])
        joined.flags.writeable = False
        mask = join_masks(masks, map(len, tokens[1:]))
        return Window(joined, running_sums(np.concatenate(lengths)), mask=mask)

    def _origins(self, epoch: int, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the shard and number of each of these documents."""
        origins = list[tuple[int, int]]()
        while first < stop:
            number, begin = self._window_of(epoch, first)
            listing = self._loaded.maker.listing(epoch, number)
            here = slice(first - begin, stop - begin)
            origins += zip(listing.shards[here].tolist(), listing.numbers[here].tolist(), strict=True)
            first = begin + min(len(listing.shards), stop - begin)
        return origins

    def _keep(self, window: Window) -> Window:
        """Return the documents that pass the filters."""
        count = len(window.ends) - 1
        self.counts["documents"] += count
        if not self._filters:
            return window
        documents = map(window.document, range(count))
        kept = np.array([all(predicate(document) for predicate in self._filters) for document in documents], bool)
        rejected = int(np.count_nonzero(~kept))
        self.counts.update({"rejected": rejected, f"{REJECTED_BY}filter": rejected} if rejected else {})
        lengths = np.diff(window.ends)
        of_kept = np.repeat(kept, lengths)
        mask = None if window.mask is None else window.mask[of_kept]
        origins = None if window.origins is None else list(compress(window.origins, kept))
        return Window(window.tokens[of_kept], running_sums(lengths[kept]), mask=mask, origins=origins)


def _numbers(held: HeldSource | None, order: Shuffle, epoch: int, window: int) -> NDArray[np.int64]:
    assert held is not None
    return held.numbers(order, epoch, window)
