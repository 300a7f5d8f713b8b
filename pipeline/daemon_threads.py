"""Threads for jobs that block, such as requests and reads. A process ends without waiting for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import finalize, ref

T = TypeVar("T")
_Jobs = SimpleQueue[tuple["ref[Future[Any]]", Callable[[], Any], Callable[[], bool]] | None]

_PAUSE = 0.2  # seconds between two looks whether a result is still wanted

_here = threading.local()


def _no_job() -> bool:
    return True


def is_wanted() -> bool:
    """Whether anything still holds the future of the job that runs in this thread, and of the job that waits for that one.

    True in a thread that runs no job. A job that waits long asks this, because the threads that it waits in are shared.
    """
    wanted: Callable[[], bool] = getattr(_here, "is_wanted", _no_job)
    return wanted()


def sleep(seconds: float) -> None:
    """Sleep, but in a job no longer than its result is wanted."""
    pause = _PAUSE if hasattr(_here, "is_wanted") else seconds
    while seconds > 0 and is_wanted():
        time.sleep(min(seconds, pause))
        seconds -= pause


class DaemonThreads:
    """Up to ``count`` daemon threads, which start with the first jobs and end when nothing refers to this object.

    A job does not begin if nothing holds its future any more.

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
        self._jobs.put((ref(future), job, getattr(_here, "is_wanted", _no_job)))
        return future

    def join(self) -> None:
        """End the threads after their jobs, and wait for this. Then a fork is safe."""
        self.close()
        for thread in self._threads:
            thread.join()


def _work(jobs: _Jobs) -> None:
    while (item := jobs.get()) is not None:
        _run(*item)
        del item  # frees what the job refers to while this thread waits


def _run(waiting: ref[Future[Any]], job: Callable[[], Any], outer: Callable[[], bool]) -> None:
    future = waiting()
    if future is None or not future.set_running_or_notify_cancel():
        return
    del future  # from here on, only those who wait hold it
    _here.is_wanted = lambda: waiting() is not None and outer()
    try:
        result = job()
    except BaseException as error:
        if (future := waiting()) is not None:
            future.set_exception(error)
    else:
        if (future := waiting()) is not None:
            future.set_result(result)
    del future, job  # the traceback of an error refers to this frame, and would keep both


def _end(jobs: _Jobs, count: int) -> None:
    for _ in range(count):
        jobs.put(None)
