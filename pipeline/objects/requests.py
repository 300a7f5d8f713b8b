"""The threads of a process that ask for bytes: together they have as many requests in flight as there are connections."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from ..daemon_threads import DaemonThreads
from .access import CONNECTIONS

T = TypeVar("T")

REQUESTS = DaemonThreads(CONNECTIONS, "requests")


def side_by_side(jobs: Iterable[Callable[[], T]]) -> list[T]:
    """Return the results of jobs in their order; after an error, those that have not begun are left out.

    Jobs must not wait for other jobs of these threads.
    """
    futures = [REQUESTS.submit(job) for job in jobs]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def _after_fork() -> None:
    REQUESTS.__init__(CONNECTIONS, "requests")  # type: ignore[misc]


os.register_at_fork(after_in_child=_after_fork)
