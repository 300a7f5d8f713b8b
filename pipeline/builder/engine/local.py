"""Runs units on this machine: one after the other in this process, or in worker processes."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, context, get_context, parent_process, process
from typing import Any

from ...errors import BuildError
from .base import Engine, EngineOptions, Prepare, Result, Unit, progress_to
from .signals import reraise_swallowed_signals

REPORT_SECONDS = 0.25  # between reports of progress inside a unit
ATTEMPTS = 3  # a unit that kills three workers kills the fourth too; a machine short of memory recovers by then


def open_local(options: EngineOptions, prepare: Prepare | None) -> Engine:
    """Return an engine that runs units in this process for one worker, else in a pool."""
    if options.workers == 1:
        return SerialEngine(prepare)
    return ProcessEngine(options.workers, prepare, options.start_method or default_start_method())


def default_start_method() -> str:
    """Return ``fork`` where copying this process is cheap and safe, else ``spawn``.

    A fork copies the locks of other threads in whatever state they are, but not the threads that would release them.
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
    index: int | None = None  # of the unit that it runs


class ProcessEngine(Engine):
    """Runs units in worker processes that live as long as the engine; no more are started than there are units.

    A worker that dies under a unit (killed for memory, say) is replaced and the unit run again, up to three times.
    Workers end at once when the engine closes, and when this process is killed.
    """

    def __init__(self, workers: int, prepare: Prepare | None, start_method: str) -> None:
        self._context: context.BaseContext = get_context(start_method)
        self._prepare = prepare
        if start_method == "fork" and prepare is not None:
            with reraise_swallowed_signals():
                prepare()  # workers find it done in their copy of this process
        self._most = workers
        self._workers: list[_Worker] = []

    def start(self, units: int) -> None:
        while len(self._workers) < min(self._most, units):
            self._workers.append(self._start())

    def map(self, function: Callable[[Unit], Result], units: Sequence[Unit]) -> Iterator[tuple[int, Result]]:
        waiting = deque(range(len(units)))
        attempts = [0] * len(units)
        left = len(units)
        try:
            self.start(left)
            while left:
                for worker in self._workers:
                    if worker.index is None and waiting:
                        worker.index = waiting.popleft()
                        attempts[worker.index] += 1
                        self._send(worker, (function, units[worker.index]))
                for worker in self._ready():
                    index = worker.index
                    assert index is not None
                    try:
                        answer = worker.pipe.recv()
                    except (EOFError, OSError):
                        self._replace(worker, units[index], attempts[index])
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

    def _send(self, worker: _Worker, task: tuple[Callable[[Any], Any], Any]) -> None:
        with suppress(OSError):  # it died while it was idle: its closed pipe shows that when results are awaited
            worker.pipe.send(task)

    def _ready(self) -> list[_Worker]:
        """Wait until busy workers have answered or died, and return those."""
        busy = {worker.pipe: worker for worker in self._workers if worker.index is not None}
        return [busy[pipe] for pipe in connection.wait(list(busy))]  # type: ignore[index]

    def _replace(self, worker: _Worker, unit: object, attempts: int) -> None:
        worker.process.join()
        code = worker.process.exitcode or 0
        cause = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        if attempts >= ATTEMPTS:
            why = "SIGKILL mostly means that memory ran out: use fewer --workers"
            if code >= 0:
                why = "code that the build calls ends it, as os._exit does in a transform or a library: mend that"
            raise BuildError(
                f"a worker process died ({cause}) {attempts} times on {unit}. {why}. Run the same command again to continue"
            )
        worker.pipe.close()
        self._workers[self._workers.index(worker)] = self._start()

    def _start(self) -> _Worker:
        parent_end, child_end = self._context.Pipe()
        prepare = None if self._context.get_start_method() == "fork" else self._prepare
        child = self._context.Process(target=_serve, args=(child_end, prepare), daemon=True)  # type: ignore[attr-defined]
        child.start()
        child_end.close()  # so that its death closes the pipe
        return _Worker(child, parent_end)

    def close(self) -> None:
        """End all workers at once; an unfinished unit leaves temporary files only."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
        self._workers = []


def _serve(pipe: connection.Connection[Any, Any], prepare: Prepare | None) -> None:
    """Run units in a worker process: take one, answer with ``(error, its cause, result)``, until the pipe closes.

    Before the answer, whole numbers say how much of the unit is done.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    while True:
        try:
            function, unit = pipe.recv()
        except (EOFError, OSError):
            return
        answer: tuple[Exception | None, BaseException | None, Any]
        try:
            if prepare is not None:  # here, so that what goes wrong in it is answered as any other error
                prepare()
                prepare = None
            with progress_to(_Reporter(pipe).add):
                answer = (None, None, function(unit))
        except BaseException as error:
            failed = error if isinstance(error, Exception) else _as_error(error)
            failed.add_note("in a worker process:\n" + traceback.format_exc())
            if _sendable(failed) is None:
                failed = _as_error(error)
            answer = (failed, _sendable(error.__cause__), None)
        try:
            pipe.send(answer)
        except Exception as unsent:  # a result that cannot be pickled
            pipe.send((BuildError(f"{answer[2]!r} cannot be sent between processes: {unsent}"), None, None))


class _Reporter:
    """Sends the progress of a unit to the parent, a few times a second."""

    def __init__(self, pipe: connection.Connection[Any, Any]) -> None:
        self._pipe, self._amount, self._sent = pipe, 0, time.monotonic()

    def add(self, amount: int) -> None:
        self._amount += amount
        if time.monotonic() - self._sent > REPORT_SECONDS:
            self._pipe.send(self._amount)
            self._amount, self._sent = 0, time.monotonic()


def _as_error(error: BaseException) -> BuildError:
    """Return an error for what no other process can read, or would take for the end of a program."""
    return BuildError(f"code that the build calls raised {type(error).__name__}: {error}")


def _sendable(error: BaseException | None) -> BaseException | None:
    """Return an exception as another process reads it, None where it cannot; notes of the error hold its text."""
    try:
        copied: object = pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return copied if isinstance(copied, BaseException) else None


def _die_with_parent() -> None:
    """End this process when its parent is gone: a killed build must not leave workers that write on."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
