"""Threads for jobs that block, such as requests and reads. A process ends without waiting for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import finalize

T = TypeVar("T")
_Jobs = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]


class DaemonThreads:
    """Up to ``count`` daemon threads, which start with the first jobs and end when nothing refers to this object.

    Python waits at exit for the threads of ``concurrent.futures``: Ctrl-C during a stalled request would not end the process.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = f"shardwright-{name}"
        self._threads: list[threading.Thread] = []
        self._jobs: _Jobs = SimpleQueue()
        self.close = finalize(self, _end, self._jobs, count)

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Queue a job and return its future, which can be cancelled until the job begins."""
        future: Future[T] = Future()
        if len(self._threads) < self._count:
            self._threads.append(threading.Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True))
            self._threads[-1].start()
        self._jobs.put((future, job))
        return future

    def join(self) -> None:
        """End the threads after their jobs, and wait for this. Then a fork is safe."""
        self.close()
        for thread in self._threads:
            thread.join()


def _work(jobs: _Jobs) -> None:
    while (item := jobs.get()) is not None:
        future, job = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)
        del item, future, job  # frees what they refer to while this thread waits


def _end(jobs: _Jobs, count: int) -> None:
    for _ in range(count):
        jobs.put(None)
