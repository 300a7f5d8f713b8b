"""The threads that ask for windows and load them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import finalize

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

_THREADS, _THREADS_FAR = 4, 16
_TOGETHER = 8  # works that a thread is given at once


class Threads:
    """Threads that start with the first work and end with `close`, or when nothing refers to this any more.

    Where works wait for answers from ``far`` away, there are more, and each is given one.
    """

    def __init__(self, *, far: bool) -> None:
        self._far = far
        self._threads: ThreadPoolExecutor | None = None
        self._stop: Callable[[], Any] | None = None

    def start(self, works: Mapping[K, Callable[[], T]], gone: list[Any] | None = None) -> dict[K, Future[T]]:
        """Run works in threads, the first ones first; return a future of each, which can be cancelled until it begins.

        A thread clears ``gone``, since freeing what it refers to takes time. To wake a thread takes as long as some works do,
        so a thread gets several.
        """
        if not works:
            return {}
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                _THREADS_FAR if self._far else _THREADS, thread_name_prefix="shardwright-windows"
            )
            # Also when nobody closes this, and before the interpreter shuts down.
            self._stop = finalize(self, self._threads.shutdown, wait=False, cancel_futures=True)
        futures: dict[K, Future[T]] = {key: Future() for key in works}
        pairs = list(zip(futures.values(), works.values(), strict=True))
        groups = len(pairs) if self._far else min(_THREADS, -(-len(pairs) // _TOGETHER))
        for k in range(groups):
            self._threads.submit(_do, pairs[k::groups], gone if k == 0 else None)
        return futures

    def close(self) -> None:
        """Stop the threads once they have done what they began."""
        if self._stop is not None:
            self._stop()


def _do(works: list[tuple[Future[T], Callable[[], T]]], gone: list[Any] | None) -> None:
    """Do works that were not cancelled meanwhile; their futures hold what they return or raise."""
    if gone is not None:
        gone.clear()
    for future, work in works:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
