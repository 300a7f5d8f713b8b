"""Raises again the exceptions of signals that a library swallowed, so that Ctrl-C always ends a build."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def reraise_swallowed_signals() -> Iterator[None]:
    """Raise at the end of the block the exception of a signal's handler that a library swallowed or replaced inside it.

    Compiled modules ignore every exception in parts of their start-up (``numpy.random`` does), and then a build
    would continue although it was asked to stop. Others make an ``ImportError`` of it (``numpy`` does).
    """
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    raised: list[BaseException] = []

    def heed(number: int, frame: FrameType | None) -> None:
        handler = handlers[signal.Signals(number)]
        assert callable(handler)
        try:
            handler(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    mine = [number for number, handler in handlers.items() if callable(handler)]
    if threading.current_thread() is not threading.main_thread():
        mine = []  # no other may set handlers, and none is interrupted
    for number in mine:
        signal.signal(number, heed)
    try:
        yield
    except BaseException as error:
        if raised and error not in raised:
            raise raised[0] from error
        raise
    finally:
        for number in mine:
            signal.signal(number, handlers[number])
    if raised:
        raise raised[0]
