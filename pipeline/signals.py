"""Signals in blocks that call libraries, where what a handler raises may be lost or end the process, or handlers are replaced."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Handle SIGINT and SIGTERM when the block ends; a second one ends the process at once.

    For blocks that import compiled modules: where a handler raises inside the start-up of one, it may end the process by
    SIGSEGV, make an ``ImportError`` of it (NumPy does both), or go on as if nothing was.
    """
    handlers, received = _handlers(), list[int]()

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


@contextmanager
def reraise_swallowed_signals() -> Iterator[None]:
    """Raise at the end of the block the exception of a signal's handler that a library swallowed or replaced inside it.

    For blocks that also compile, which takes seconds that Ctrl-C should not wait for. Compiled modules ignore every exception in
    parts of their start-up (``numpy.random`` does), and then a build would continue although it was asked to stop. Others
    make an ``ImportError`` of it (``numpy`` does).
    """
    handlers, raised = _handlers(), list[BaseException]()

    def heed(number: int, frame: FrameType | None) -> None:
        try:
            handlers[number](number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    for number in handlers:
        signal.signal(number, heed)
    try:
        yield
    except BaseException as error:
        if raised and error not in raised:
            raise raised[0] from error
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if raised:
        raise raised[0]


@contextmanager
def kept_handlers() -> Iterator[None]:
    """Give SIGINT and SIGTERM their handlers back at the end of a block in which a library sets its own."""
    handlers = _handlers()
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _handlers() -> dict[int, Callable[[int, FrameType | None], object]]:
    """Return the handlers of SIGINT and SIGTERM; none outside the main thread, which alone sets them and is interrupted."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    return {number: handler for number, handler in handlers.items() if callable(handler)}
