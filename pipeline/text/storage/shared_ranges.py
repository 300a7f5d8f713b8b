"""The bytes of a remote object that many readers read at once, each a small span of it: fetched in large ranges, ahead, once."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import Future

from ...objects.requests import REQUESTS
from .remote_file import RangeReader

_RANGE_BYTES = 4 << 20


class SharedRanges:
    """A remote object whose bytes stay in memory once they are fetched: as `RangeReader`, for `RemoteFile`.

    A range is fetched when one of its bytes is asked for, or one of the range before it.
    """

    def __init__(self, source: RangeReader) -> None:
        self.stored, self.key = source.stored, source.key
        self._source = source
        self._lock = threading.Lock()
        self._ranges: dict[int, Future[bytes]] = {}

    def fetch(self, start: int, stop: int) -> bytes:
        first, last = start // _RANGE_BYTES, max(start, stop - 1) // _RANGE_BYTES
        begun = [self._begin(number) for number in range(first, last + 2)]
        found = [future.result() for future in begun[:-1]]
        data = found[0] if len(found) == 1 else b"".join(found)
        return data[start - first * _RANGE_BYTES : stop - first * _RANGE_BYTES]

    def close(self) -> None:
        """The next reader needs the same bytes."""

    def _begin(self, number: int) -> Future[bytes]:
        with self._lock:
            if number not in self._ranges:
                start = min(number * _RANGE_BYTES, self.stored.size)
                stop = min(start + _RANGE_BYTES, self.stored.size)
                work = functools.partial(self._source.fetch, start, stop) if start < stop else bytes
                self._ranges[number] = REQUESTS.submit(work)
            return self._ranges[number]
