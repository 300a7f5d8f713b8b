"""Threads that wait for servers, ``CONNECTIONS`` in a pool: one pool that the whole process shares, and pools for one call."""

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
    """Run a job in the threads that the whole process shares; return its future."""
    return _shared.submit(job)


def side_by_side(jobs: Iterable[Callable[[], T]]) -> list[T]:
    """Return the results of jobs that wait for servers, in their order. After an error, no further job begins.

    The threads end before the call returns: a build forks its workers only if its process has no other thread.
    """
    threads = DaemonThreads(CONNECTIONS, "requests")
    results = in_threads(jobs, threads)
    threads.join()
    return results


def in_threads(jobs: Iterable[Callable[[], T]], threads: DaemonThreads | None = None) -> list[T]:
    """Return the results of jobs, as `side_by_side` does, from ``threads`` that stay (default: the process's shared threads).

    After an error, a request that runs already is not tried again.
    """
    threads = threads or _shared
    futures = [threads.submit(job) for job in jobs]
    try:
        return [future.result() for future in futures]
    except BaseException:
        while futures:
            futures.pop().cancel()  # the error refers to this frame, and requests whose futures are held are tried again
        raise


def _after_fork() -> None:
    global _shared
    _shared = DaemonThreads(CONNECTIONS, "requests")  # a forked child does not have its parent's threads


os.register_at_fork(after_in_child=_after_fork)
