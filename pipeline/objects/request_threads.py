"""The threads of a process that wait for servers: together they have as many requests in flight as there are connections."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

from ..daemon_threads import DaemonThreads
from .request_options import CONNECTIONS

T = TypeVar("T")

_shared = DaemonThreads(CONNECTIONS, "requests")


def submit(job: Callable[[], T]) -> Future[T]:
    """Have a job done by the threads that all of this process share."""
    return _shared.submit(job)


def side_by_side(jobs: Iterable[Callable[[], T]]) -> list[T]:
    """Return the results of jobs, which wait for servers, in their order; after an error, those not begun are left out.

    Their threads end with them: a build starts its workers by fork only where a process has no other thread.
    """
    threads = DaemonThreads(CONNECTIONS, "requests")
    results = in_threads(jobs, threads)
    threads.join()
    return results


def in_threads(jobs: Iterable[Callable[[], T]], threads: DaemonThreads | None = None) -> list[T]:
    """Do as `side_by_side` does in ``threads`` that stay, by default the shared ones; jobs that run go on after an error."""
    threads = threads or _shared
    futures = [threads.submit(job) for job in jobs]
    try:
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _after_fork() -> None:
    global _shared
    _shared = DaemonThreads(CONNECTIONS, "requests")  # a child has none of the threads of its parent


os.register_at_fork(after_in_child=_after_fork)
