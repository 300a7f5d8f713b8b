"""The windows of a stream that are in memory, or on their way there."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial

from ...daemon_threads import DaemonThreads
from .window import Window, WindowMaker

Key = tuple[int, int]  # epoch, number of the window in it

_SMALL = 256 << 10  # bytes of a window that is made in less time than a thread takes to begin


class WindowCache:
    """Windows that ``maker`` makes, in threads or when they are read; ``spare`` of those that nothing needs stay.

    The ``sources`` of a mix share the threads that one of them would have: each keeps memory of its own.
    """

    def __init__(self, maker: WindowMaker, spare: int, sources: int = 1) -> None:
        self.bytes_read = 0
        self.maker = maker
        self._spare = spare
        self._needed: set[Key] = set()
        self._ready: dict[Key, Window] = {}  # the most recently made last
        self._pending: dict[Key, Future[Window]] = {}
        source = maker.source
        self._threads = (
            DaemonThreads(max(1, source.threads // sources), "windows")
            if source.threads > 4 or maker.mean_bytes > _SMALL
            else None
        )

    def request(self, keys: Iterable[Key]) -> None:
        """Have windows made soon, the first of them first."""
        if self._threads is None:
            return
        for key in keys:
            if key not in self._ready and key not in self._pending:
                self._pending[key] = self._threads.submit(partial(self.maker.make, *key))

    def keep(self, keys: set[Key]) -> None:
        """Forget all windows but these, which stay until the next call."""
        self._needed = keys
        for key in self._pending.keys() - keys:
            self._pending.pop(key).cancel()
        for key in self._ready.keys() - keys:
            del self._ready[key]

    def get(self, key: Key) -> Window:
        """Return a window, which is made now if no thread has begun to."""
        window = self._ready.get(key)
        if window is not None:
            return window
        pending = self._pending.pop(key, None)
        window = self.maker.make(*key) if pending is None or pending.cancel() else pending.result()
        spare = [other for other in self._ready if other not in self._needed]
        for other in spare[: max(0, len(spare) + 1 - self._spare)]:
            del self._ready[other]
        self._ready[key] = window
        return window

    def close(self) -> None:
        """Stop threads."""
        for future in self._pending.values():
            future.cancel()
        if self._threads is not None:
            self._threads.close()
