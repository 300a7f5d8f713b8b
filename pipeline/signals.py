"""Signals that wait until a block has ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Handle SIGINT and SIGTERM when the block ends; a second one ends the process at once.

    For blocks that import compiled modules: where a handler raises inside the start-up of one, it may end the process by
    SIGSEGV, make an ``ImportError`` of it (NumPy does both), or go on as if nothing was.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no other may set handlers, and none is interrupted
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    received: list[int] = []

    def defer(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for each in handlers:
            signal.signal(each, signal.SIG_DFL)

    for number in handlers:
        signal.signal(number, defer)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for first in received[:1]:
            signal.raise_signal(first)
