"""The requests that a process has in flight: a few threads, which take the most urgent first.

Small requests wait for answers while large ones use the link, so indexes take at most half of the threads where blocks wait.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from .access import CONNECTIONS

# What a request is for, most urgent first: rows that are waited for, indexes of blocks, blocks that are needed soon, later.
ROWS, INDEX, BLOCKS, LATER = range(4)


class Requests:
    """At most ``limit`` requests at once. Its threads are daemons: a process that ends does not wait for them."""

    def __init__(self, limit: int = CONNECTIONS) -> None:
        self._limit = limit
        self._ready = threading.Condition()
        self._queues: list[deque[tuple[Future[Any], Callable[[], Any]]]] = [deque() for _ in range(LATER + 1)]
        self._indexes = 0  # that threads work at
        self._threads = 0
        self._idle = 0

    def submit(self, urgency: int, work: Callable[[], Any], done: Future[Any] | None = None) -> Future[Any]:
        """Have ``work`` done. A ``done`` that was submitted before is done once, at the more urgent of its places."""
        return self.submit_all(urgency, [work], None if done is None else [done])[0]

    def submit_all(
        self, urgency: int, works: Sequence[Callable[[], Any]], done: Sequence[Future[Any]] | None = None
    ) -> Sequence[Future[Any]]:
        """Submit several works together: no thread that wakes for the first delays the others."""
        futures: Sequence[Future[Any]] = [Future() for _ in works] if done is None else done
        with self._ready:
            self._queues[urgency].extend(zip(futures, works, strict=True))
            self._ready.notify(len(works))
            new = max(0, min(sum(map(len, self._queues)) - self._idle, self._limit - self._threads))
            self._threads += new
        for _ in range(new):
            threading.Thread(target=self._work, name="shardwright-requests", daemon=True).start()
        return futures

    def _work(self) -> None:
        while True:
            with self._ready:
                while (urgency := self._next()) is None:
                    self._idle += 1
                    self._ready.wait()
                    self._idle -= 1
                future, work = self._queues[urgency].popleft()
                # It was cancelled, even just now, or taken at a more urgent place.
                if future.running() or future.done() or not future.set_running_or_notify_cancel():
                    continue
                self._indexes += urgency == INDEX
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            with self._ready:
                self._indexes -= urgency == INDEX
            del future, work

    def _next(self) -> int | None:
        """Return the urgency of what is done next, None where nothing waits."""
        wait = self._queues[BLOCKS] and self._indexes >= max(1, self._limit // 2)
        found = (urgency for urgency, queue in enumerate(self._queues) if queue and not (wait and urgency == INDEX))
        return next(found, None)


REQUESTS = Requests()


def _after_fork() -> None:
    REQUESTS.__init__(REQUESTS._limit)  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
