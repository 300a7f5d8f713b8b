"""The threads of a process that ask for bytes: together they have as many requests in flight as there are connections."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from ..daemon_threads import DaemonThreads
from .request_options import CONNECTIONS

T = TypeVar("T")

REQUESTS = DaemonThreads(CONNECTIONS, "requests")


def side_by_side(jobs: Iterable[Callable[[], T]]) -> list[T]:
    """Return the results of jobs, which wait for servers, in their order; after an error, those not begun are left out.

    Their threads end with them: a build starts its workers by fork only where a process has no other thread.
    """
    threads = DaemonThreads(CONNECTIONS, "requests")
    results = in_threads(jobs, threads)
    threads.join()
    return results


def in_threads(jobs: Iterable[Callable[[], T]], threads: DaemonThreads = REQUESTS) -> list[T]:
    """Do as `side_by_side` does in threads that stay, which all of a process share; jobs that run go on after an error."""
    futures = [threads.submit(job) for job in jobs]
    try:
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _after_fork() -> None:
    REQUESTS.__init__(CONNECTIONS, "requests")  # type: ignore[misc]


os.register_at_fork(after_in_child=_after_fork)
