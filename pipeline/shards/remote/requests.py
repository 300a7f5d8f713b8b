"""The threads of a process that ask for bytes: together they have as many requests in flight as there are connections."""

from __future__ import annotations

import os

from ...daemon_threads import DaemonThreads
from .access import CONNECTIONS

REQUESTS = DaemonThreads(CONNECTIONS, "requests")


def _after_fork() -> None:
    REQUESTS.__init__(CONNECTIONS, "requests")  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
