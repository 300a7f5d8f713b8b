"""The windows of one stream: those in memory, those that threads load, and those whose blocks are asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...order import Epoch, Shuffle
from . import gather as kernels
from .block_pool import BlockPool
from .shuffle_window import ShuffleWindow
from .threads import Threads

Key = tuple[int, int]  # epoch, window


class EpochTable(NamedTuple):
    """What compiled loops need of an epoch: its order, and the table of its windows."""

    order: Epoch
    windows: NDArray[np.int64]


class LoadedWindows:
    """Windows of ``order`` out of ``pool``, loaded when they are read or before; ``aside`` stay that nothing needs."""

    def __init__(self, order: Shuffle, pool: BlockPool, aside: int) -> None:
        self.windows: OrderedDict[Key, ShuffleWindow] = OrderedDict()
        self.needed: set[Key] = set()  # windows that stay
        self.tables: dict[int, EpochTable] = {}
        self.pending: dict[Key, Future[ShuffleWindow]] = {}
        self.asked: dict[Key, Future[None]] = {}
        self.completing: dict[Key, Future[None]] = {}  # the blocks of windows that were loaded without them
        self.unfinished = False  # whether `continue_ahead` has something to do
        self._order = order
        self._pool = pool
        self._aside = aside
        # Both come once rows that are read first have been read: windows to be loaded, and to be asked for.
        self._near: list[Key] = []
        self._behind: list[Key] = []
        self._partial: dict[Key, Future[ShuffleWindow]] = {}  # windows that are loaded without their blocks
        self._threads = Threads(far=pool.coming is not None)

    def table(self, epoch: int) -> EpochTable:
        """Return the table of an epoch."""
        found = self.tables.get(epoch)
        if found is None:
            windows = np.zeros((self._order.windows, kernels.WINDOW_COLUMNS), np.int64)
            found = self.tables[epoch] = EpochTable(self._order.epoch(epoch), windows)
        return found

    def prepare(self, next_read: Mapping[Key, object], ahead: Mapping[Key, bool]) -> None:
        """Load the windows that are read next, and those ahead, in threads; give back all others.

        Those ahead that are marked True are only to be asked for. They, and the blocks of windows, come once some rows
        have been read and `continue_ahead` is called: the first rows come first.
        """
        near = {key for key, far in ahead.items() if not far}
        self.needed = {*next_read, *near}
        gone = [self._give_back(key) for key in [key for key in self.windows if key not in self.needed]]
        for key in [key for key in self.pending if key not in self.needed]:
            self.pending.pop(key).cancel()
        wanted = dict.fromkeys([*next_read, *ahead])
        for key in [key for key in self.asked if key not in wanted]:
            self.asked.pop(key).cancel()
        if not self._pool.waits:
            return
        new = [key for key in wanted if key in self.needed and key not in self.windows and key not in self.pending]
        if self._pool.coming is not None:
            self._near = [key for key in new if key not in next_read]
            new = [key for key in new if key in next_read]
            self._pool.announce(new)
        loads: dict[Key, Callable[[], ShuffleWindow]] = {}
        for key in new:
            whole = key not in next_read or not self._pool.source.rows_first
            loads[key] = partial(self._pool.load, *key, asked=key in self.asked, whole=whole)
        started = self._threads.start(loads, gone)
        self.pending |= started
        if self._pool.source.rows_first:
            self._partial |= {key: future for key, future in started.items() if key in next_read}
        # Where blocks come behind their windows, those of the windows that are loaded come by themselves.
        loaded = self.needed if self._pool.coming is not None else ()
        self._behind = [key for key in wanted if key not in self.asked and key not in loaded]
        self.unfinished = True

    def continue_ahead(self) -> None:
        """Load and ask for what `prepare` put off."""
        if self._pool.coming is None:
            self.unfinished = False
        else:
            self._pool.coming.start()
        near = [key for key in self._near if key not in self.windows and key not in self.pending]
        ahead: dict[Key, Future[ShuffleWindow]] = {key: Future() for key in near}
        for future in ahead.values():
            future.set_running_or_notify_cancel()  # nobody cancels it
        self.pending |= ahead
        self._threads.start({key: partial(self._pool.load_ahead, *key, future) for key, future in ahead.items()})
        self.asked |= self._threads.start({key: partial(self._pool.ask, *key) for key in self._behind})
        partly = {key: partial(self._pool.complete, *key, window) for key, window in self._partial.items()}
        self.completing |= self._threads.start(partly)
        self._near, self._behind, self._partial = [], [], {}

    def window(self, key: Key, *, whole: bool = False) -> ShuffleWindow:
        """Return a window from memory, from a thread, or loaded now: its blocks are asked for if it is read ``whole``."""
        window = self.windows.get(key)
        if window is not None:
            self.windows.move_to_end(key)
            return window
        ahead = self.pending.pop(key, None)
        if whole and ahead is None:
            self._pool.ask(*key)
        completed = key in self._partial or key in self.completing  # by a thread, from what this one loads
        if ahead is not None and not ahead.done():
            self._pool.hurry(*key)
        window = self._pool.load(*key) if ahead is None or (not completed and ahead.cancel()) else ahead.result()
        aside = [other for other in self.windows if other not in self.needed]
        for other in aside[: max(0, len(aside) + 1 - self._aside)]:
            self._give_back(other)
        self.windows[key] = window
        self.table(key[0]).windows[key[1]] = window.addresses
        return window

    def _give_back(self, key: Key) -> ShuffleWindow:
        window = self.windows.pop(key)
        self._pool.release(*key)
        self.completing.pop(key, None)
        self.tables[key[0]].windows[key[1]] = 0
        if not any(epoch == key[0] for epoch, _ in self.windows):
            del self.tables[key[0]]
        return window

    def close(self) -> None:
        """Stop threads and give back files."""
        self._threads.close()
        self._pool.close()
