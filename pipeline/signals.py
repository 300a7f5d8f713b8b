"""Signals that arrive while a library runs, which may swallow a handler's exception, crash by it, or replace handlers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Handle SIGINT and SIGTERM when the block ends; a second signal ends the process at once.

    For blocks that import compiled modules. If a handler raises while a module is imported, the process may end by SIGSEGV, or
    the module may raise ``ImportError`` instead (NumPy does both) or ignore the exception.
    """
    received = list[int]()

    def defer(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for each in handlers:
            signal.signal(each, signal.SIG_DFL)

    try:
        with kept_handlers() as handlers:
            for number in handlers:
                signal.signal(number, defer)
            yield
    finally:
        for first in received[:1]:
            signal.raise_signal(first)


@contextmanager
def reraise_swallowed_signals() -> Iterator[None]:
    """Raise a signal handler's exception at the end of the block, if a library in the block swallowed or replaced it.

    For blocks that also compile, which takes seconds, so that Ctrl-C should not wait. While they are imported, some compiled
    modules ignore every exception (``numpy.random``), and a build that was asked to stop would continue. Others raise
    ``ImportError`` instead (``numpy``).
    """
    raised = list[BaseException]()

    def heed(number: int, frame: FrameType | None) -> None:
        try:
            handlers[number](number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    try:
        with kept_handlers() as handlers:
            for number in handlers:
                signal.signal(number, heed)
            yield
    except BaseException as error:
        if raised and error not in raised:
            raise raised[0] from error
        raise
    if raised:
        raise raised[0]


@contextmanager
def kept_handlers() -> Iterator[dict[int, Callable[[int, FrameType | None], object]]]:
    """Restore the handlers of SIGINT and SIGTERM after a block that sets others, and yield them.

    There are none outside the main thread, since only that thread can set and run them.
    """
    handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
    if threading.current_thread() is threading.main_thread():
        found = ((number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM))
        handlers = {number: handler for number, handler in found if callable(handler)}
    try:
        yield handlers
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
