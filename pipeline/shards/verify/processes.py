"""Checks of many shards, in processes where that helps."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from ...progress import Progress
from ...signals import deferred_signals
from .findings import ShardCheck
from .task import ShardTask


def run_checks(
    tasks: Sequence[ShardTask], workers: int, progress: Progress, process_bytes: int
) -> Iterator[ShardCheck]:
    """Check shards, in processes where that helps, and yield the findings in the order of ``tasks``."""
    sizes = [task.size() for task in tasks]
    total = sum(sizes)
    workers = min(workers, len(tasks), 1 + total // process_bytes)
    if workers <= 1:
        results: Iterator[ShardCheck] = (task.check() for task in tasks)
        pool = None
    else:
        pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
        # The mask alone is not enough: the kernel may give a signal to another thread, and Python then to the main thread.
        with deferred_signals(), _without_interrupts():
            results = pool.map(_check_in_worker, tasks)
    try:
        with progress.bar("verify", total, "bytes") as advance:
            for size, check in zip(sizes, results, strict=True):
                advance(size)
                yield check
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block SIGINT in this thread: its children inherit that."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _check_in_worker(task: ShardTask) -> ShardCheck:
    """Check a shard in a worker process, where Ctrl-C may end the check, and nothing else.

    Ctrl-C reaches every process of the terminal; a worker that starts or waits would print a traceback.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        return task.check()
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
