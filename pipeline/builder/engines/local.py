"""The engine that runs the units of a build, and the two of this machine: this process, or worker processes.

An engine runs a unit function over units. The function takes one unit, writes its result into files that appear by rename,
and returns something small. An engine promises that every unit ran to its end at least once. It promises no order, so no result
may depend on the order in which units finish.
"""

from __future__ import annotations

import functools
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process, process
from typing import Any, Self, TypeVar

from ...errors import BuildError
from ...signals import reraise_swallowed_signals

REPORT_SECONDS = 0.25  # between reports of progress inside a unit

Unit = TypeVar("Unit")
Result = TypeVar("Result")
Prepare = Callable[[], object]
"""Loads the models and compiled kernels that unit functions share."""
UNIT_TRIES = 3  # a unit that kills three workers kills the fourth too; a machine short of memory recovers by then

_sinks: list[Callable[[int], object]] = []


def report_progress(amount: int) -> None:
    """Tell the engine how much more of the current unit is done. A unit function may call this any number of times."""
    if _sinks:
        _sinks[-1](amount)


@contextmanager
def progress_to(sink: Callable[[int], object]) -> Iterator[None]:
    """Pass the amounts that `report_progress` gets in the block to ``sink``."""
    _sinks.append(sink)
    try:
        yield
    finally:
        _sinks.pop()


class Engine(ABC):
    """Runs units. Use it as a context manager: at the end of the block, its workers end.

    ``on_progress(index of the unit, amount)`` is called while units run, if the engine learns of their progress. A unit runs
    again if its worker dies: ``on_retry(index, reason)`` is called, then the unit reports progress from the start. An engine
    of several machines calls ``on_node(index, node, seconds)`` after each unit. ``name_of`` names a unit in errors.
    """

    workers: int = 1
    on_progress: Callable[[int, int], object] = staticmethod(lambda index, amount: None)
    on_retry: Callable[[int, str], object] = staticmethod(lambda index, reason: None)
    on_node: Callable[[int, str, float], object] = staticmethod(lambda index, node, seconds: None)
    name_of: Callable[[Any], str] = staticmethod(str)

    @abstractmethod
    def map(self, function: Callable[[Unit], Result], units: Sequence[Unit]) -> Iterator[tuple[int, Result]]:
        """Yield ``(index of the unit, result)`` as units finish. Raises the first exception of a unit."""

    def close(self) -> None:  # noqa: B027 - an engine without workers has nothing to end
        """End the workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def default_start_method() -> str:
    """Return ``fork`` if copying this process is cheap and safe, else ``spawn``.

    A fork copies the locks that other threads hold, but not the threads that would release them.
    """
    return "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"


class SerialEngine(Engine):
    """Runs units one after the other in this process."""

    def __init__(self, prepare: Prepare | None = None) -> None:
        if prepare is not None:
            with reraise_swallowed_signals():
                prepare()

    def map(self, function: Callable[[Unit], Result], units: Sequence[Unit]) -> Iterator[tuple[int, Result]]:
        for index, unit in enumerate(units):
            with progress_to(functools.partial(self.on_progress, index)):
                result = function(unit)
            yield index, result


@dataclass(slots=True, eq=False)
class _Worker:
    process: process.BaseProcess
    pipe: connection.Connection[Any, Any]
    index: int | None = None  # of the unit that the worker runs


class ProcessEngine(Engine):
    """Runs units in worker processes that live as long as the engine. It starts at most as many as there are units.

    If a worker dies during a unit (killed for memory, say), another one replaces it and runs the unit again, up to
    ``tries`` times in all. Workers end at once when the engine closes, and when this process is killed.
    """

    def __init__(self, workers: int, prepare: Prepare | None, start_method: str, tries: int = UNIT_TRIES) -> None:
        self._context: Any = get_context(start_method)
        self._prepare = prepare
        if start_method == "fork" and prepare is not None:
            with reraise_swallowed_signals():
                prepare()
            self._prepare = None  # workers are copies of this prepared process
        self.workers = workers
        self._tries = tries
        self._workers: list[_Worker] = []

    def map(self, function: Callable[[Unit], Result], units: Sequence[Unit]) -> Iterator[tuple[int, Result]]:
        waiting = deque(range(len(units)))
        attempts = [0] * len(units)
        left = len(units)
        try:
            while left:
                while len(self._workers) < min(self.workers, len(units)):
                    self._workers.append(self._start())
                for worker in self._workers:
                    if worker.index is None and waiting:
                        worker.index = waiting.popleft()
                        attempts[worker.index] += 1
                        with suppress(OSError):  # the worker died while it was idle: its closed pipe shows that below
                            worker.pipe.send((function, units[worker.index]))
                busy = {worker.pipe: worker for worker in self._workers if worker.index is not None}
                for pipe in connection.wait(list(busy)):
                    worker = busy[pipe]  # type: ignore[index]
                    index = worker.index
                    assert index is not None
                    try:
                        answer = worker.pipe.recv()
                    except (EOFError, OSError):
                        cause = self._remove(worker, self.name_of(units[index]), attempts[index])
                        self.on_retry(index, cause)
                        waiting.appendleft(index)
                        continue
                    if isinstance(answer, int):
                        self.on_progress(index, answer)
                        continue
                    worker.index = None
                    error, cause, result = answer
                    if error is not None:
                        raise error from cause
                    left -= 1
                    yield index, result
        except BaseException:
            self.close()
            raise

    def _start(self) -> _Worker:
        parent_end, child_end = self._context.Pipe()
        child = self._context.Process(target=_serve, args=(child_end, self._prepare), daemon=True)
        child.start()
        child_end.close()  # so that the death of the worker closes the pipe
        return _Worker(child, parent_end)

    def _remove(self, worker: _Worker, unit: str, attempts: int) -> str:
        """Remove a worker that died, and return the cause. Raises ``BuildError`` if this was the last attempt at its unit."""
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join()
        code = worker.process.exitcode or 0
        cause = f"exit status {code}"
        why = "Code that the build calls ended it, as os._exit does in a transform or a library: mend that code"
        if code < 0:
            cause = f"killed by {signal.Signals(-code).name}"
            why = "SIGKILL mostly means that memory ran out: use fewer --workers"
        elif self._context.get_start_method() != "fork":
            why = (
                "Workers that are not forked import the script that builds: call pipeline.build there below "
                f"if __name__ == '__main__'. If it does, {why[0].lower()}{why[1:]}"
            )
        if attempts < self._tries:
            return cause
        raise BuildError(
            f"a worker process died ({cause}) {attempts} times on {unit}. {why}. Run the same command again to continue"
        )

    def close(self) -> None:
        """End all workers at once. An unfinished unit leaves only temporary files."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
        self._workers = []


def _serve(pipe: connection.Connection[Any, Any], prepare: Prepare | None) -> None:
    """Run the units that the pipe sends, in a worker process, until the pipe closes.

    The answer to a unit is ``(error, its cause, result)``. Whole numbers before it report progress.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    done, sent = 0, time.monotonic()

    def report(amount: int) -> None:
        nonlocal done, sent
        done += amount
        if time.monotonic() - sent > REPORT_SECONDS:
            pipe.send(done)
            done, sent = 0, time.monotonic()

    while True:
        try:
            function, unit = pipe.recv()
        except (EOFError, OSError):
            return
        done = 0
        answer: tuple[Exception | None, Exception | None, Any]
        try:
            if prepare is not None:  # here, so that its errors are answers, like the errors of units
                prepare()
                prepare = None
            with progress_to(report):
                answer = (None, None, function(unit))
            pickle.dumps(answer)
        except BaseException as raised:
            error = _picklable(raised) or BuildError(
                f"code that the build calls raised {type(raised).__name__}: {raised}"
            )
            error.add_note("in a worker process:\n" + traceback.format_exc())
            answer = (error, _picklable(raised.__cause__), None)
        pipe.send(answer)


def _picklable(error: BaseException | None) -> Exception | None:
    """Return a pickled copy of an exception; None if it cannot be pickled, or is no ``Exception``, like ``SystemExit``."""
    try:
        copied: object = pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return copied if isinstance(copied, Exception) else None


def _die_with_parent() -> None:
    """End this process when its parent ends: workers of a killed build must not go on writing."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
