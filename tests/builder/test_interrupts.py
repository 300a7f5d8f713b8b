from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import pytest

from pipeline.builder.engine.signals import reraise_swallowed_signals


def test_an_interrupt_that_the_block_swallowed_is_raised_at_its_end() -> None:
    reached = []

    def swallow() -> None:
        with reraise_swallowed_signals():
            with suppress(BaseException):
                signal.raise_signal(signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        swallow()
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_of_which_the_block_made_another_error_is_raised() -> None:
    def replace() -> None:
        with reraise_swallowed_signals():
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise ImportError("a compiled module could not be loaded") from None

    with pytest.raises(KeyboardInterrupt):
        replace()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_ends_the_block_at_once_and_blocks_may_be_nested() -> None:
    def work() -> None:
        with reraise_swallowed_signals():
            with reraise_swallowed_signals():
                signal.raise_signal(signal.SIGINT)
            pytest.fail("it went on")

    with pytest.raises(KeyboardInterrupt):
        work()


def test_a_handler_that_only_takes_note_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)

    before: Callable[..., object] | int | None = signal.signal(signal.SIGTERM, note)
    try:
        with reraise_swallowed_signals():
            signal.raise_signal(signal.SIGTERM)
        assert noted == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is note
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_may_build() -> None:
    done = []

    def work() -> None:
        with reraise_swallowed_signals():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done
