"""Checks of many shards, in processes if that helps."""

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
    """Yield the findings on shards in the order of ``tasks``. Processes check them if there are enough bytes."""
    sizes = [task.size() for task in tasks]
    total = sum(sizes)
    workers = min(workers, len(tasks), 1 + total // process_bytes)
    if workers <= 1:
        results: Iterator[ShardCheck] = (task.check() for task in tasks)
        pool = None
    else:
        pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
        # The mask alone is not enough: the kernel may deliver a signal to another thread, and Python then handles it here.
        with deferred_signals(), _interrupts_blocked():
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
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in this thread; child processes inherit the block."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _check_in_worker(task: ShardTask) -> ShardCheck:
    """Check a shard in a worker process. Ctrl-C can interrupt the check only.

    Ctrl-C reaches every process of the terminal: outside a check, a worker would print a traceback.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        return task.check()
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
