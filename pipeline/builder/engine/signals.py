"""Raises again the exceptions of signals that a library swallowed, so that Ctrl-C always ends a build."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def reraise_swallowed_signals() -> Iterator[None]:
    """Raise at the end of the block the exception of a signal's handler that a library swallowed or replaced inside it.

    Compiled modules ignore every exception in parts of their start-up (``numpy.random`` does), and then a build
    would continue although it was asked to stop. Others make an ``ImportError`` of it (``numpy`` does).
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no other may set handlers, and none is interrupted
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    raised: list[BaseException] = []

    def heed(number: int, frame: FrameType | None) -> None:
        try:
            handlers[signal.Signals(number)](number, frame)  # type: ignore[operator, misc]  # callable, by `handled`
        except BaseException as error:
            raised.append(error)
            raise

    handled = [number for number, handler in handlers.items() if callable(handler)]
    for number in handled:
        signal.signal(number, heed)
    try:
        yield
    except BaseException as error:
        if raised and error not in raised:
            raise raised[0] from error
        raise
    finally:
        for number in handled:
            signal.signal(number, handlers[number])
    if raised:
        raise raised[0]
