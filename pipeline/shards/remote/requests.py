"""The requests that a process has in flight: a few threads, which take the most urgent first."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
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
        self._queue: list[tuple[int, int, Future[Any], Callable[[], Any]]] = []
        self._numbers = itertools.count()
        self._threads = 0
        self._idle = 0

    def submit(self, urgency: int, work: Callable[[], Any], done: Future[Any] | None = None) -> Future[Any]:
        """Have ``work`` done. A ``done`` that was submitted before is done once, at the more urgent of its places."""
        return self.submit_all(urgency, [work], None if done is None else [done])[0]

    def submit_all(
        self, urgency: int, works: Sequence[Callable[[], Any]], done: Sequence[Future[Any]] | None = None
    ) -> Sequence[Future[Any]]:
        """Do what `submit` does for several; the threads that this wakes do not hold up each next one."""
        futures: Sequence[Future[Any]] = [Future() for _ in works] if done is None else done
        with self._ready:
            for future, work in zip(futures, works, strict=True):
                heapq.heappush(self._queue, (urgency, next(self._numbers), future, work))
            self._ready.notify(len(works))
            new = max(0, min(len(self._queue) - self._idle, self._limit - self._threads))
            self._threads += new
        for _ in range(new):
            threading.Thread(target=self._work, name="shardwright-requests", daemon=True).start()
        return futures

    def _work(self) -> None:
        while True:
            with self._ready:
                while not self._queue:
                    self._idle += 1
                    self._ready.wait()
                    self._idle -= 1
                _, _, future, work = heapq.heappop(self._queue)
                if future.running() or future.done():  # cancelled, or taken at a more urgent place
                    continue
                future.set_running_or_notify_cancel()
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, work


REQUESTS = Requests()


def _after_fork() -> None:
    REQUESTS.__init__(REQUESTS._limit)  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
