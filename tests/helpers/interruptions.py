"""Ends a build where a test wants it, through what `build` takes from any caller: ``progress`` and ``after_stage``."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.progress import Progress


class Units(Progress):
    """Shows nothing, and notes what each stage has done, in steps and in all; ``done`` may raise after each step."""

    def __init__(self, done: Callable[[str, int], object] = lambda name, count: None) -> None:
        super().__init__(quiet=True)
        self.totals: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.amounts: dict[str, int] = {}
        self._done = done

    @contextmanager
    def bar(self, name: str, total: int, unit: str = "units") -> Iterator[Callable[[int], None]]:
        self.totals[name] = total

        def advance(amount: int) -> None:
            self.counts[name] = self.counts.get(name, 0) + 1
            self.amounts[name] = self.amounts.get(name, 0) + amount
            self._done(name, self.counts[name])

        yield advance


def interrupt_after(stage: str, error: BaseException | None = None) -> Callable[[str], None]:
    """Return an ``after_stage`` that raises once a stage is complete, as Ctrl-C does unless ``error`` is given."""

    def after(name: str) -> None:
        if name == stage:
            raise error or KeyboardInterrupt

    return after


def killed_at(count: int, build: Callable[..., object]) -> int | None:
    """Run a build in another process, which kills itself once so many units of stages are done; return its exit code.

    ``build`` takes ``progress``.
    """
    left = iter(range(count))

    def kill(name: str, number: int) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=build, kwargs={"progress": Units(kill)})
    process.start()
    process.join()
    return process.exitcode


FILE_OPERATIONS = ("os.mkdir", "os.remove", "os.rename", "os.rmdir")  # as Python audits them; a replacement is a rename


def run_to_operation(count: int, build: Callable[[], object]) -> tuple[int | None, int]:
    """Run a build in another process, which kills itself before a file operation, the first one for 0.

    Returns its exit code, and how many operations it did.
    """
    context = multiprocessing.get_context("fork")
    done = context.Value("q", 0)

    def kill(event: str, _: object) -> None:
        if event in FILE_OPERATIONS:
            if done.value == count:
                os.kill(os.getpid(), signal.SIGKILL)
            done.value += 1

    def run() -> None:
        sys.addaudithook(kill)
        build()

    process = context.Process(target=run)
    process.start()
    process.join()
    return process.exitcode, done.value
