"""The threads of a process that ask for bytes: what they take first, and what they leave room for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from pipeline.shards.remote.requests import BLOCKS, INDEX, LATER, ROWS, Requests

SECONDS = 30


def held(requests: Requests, urgency: int, count: int) -> tuple[Callable[[], None], list[Future[Any]]]:
    """Submit works that last until the function that is returned is called."""
    free = threading.Event()
    futures = requests.submit_all(urgency, [lambda: free.wait(SECONDS)] * count)
    return free.set, [*futures]


def test_indexes_leave_half_of_the_threads_to_blocks() -> None:
    requests = Requests(4)
    free_rows, rows = held(requests, ROWS, 4)
    free_indexes, indexes = held(requests, INDEX, 8)
    blocks = [requests.submit(BLOCKS, lambda: 1) for _ in range(3)]
    free_rows()
    assert [block.result(SECONDS) for block in blocks] == [1, 1, 1]
    free_indexes()
    assert all(future.result(SECONDS) for future in rows + indexes)


def test_indexes_take_all_threads_where_no_blocks_wait() -> None:
    requests, started = Requests(4), threading.Barrier(4)
    futures = requests.submit_all(INDEX, [lambda: started.wait(SECONDS)] * 4)
    assert sorted(future.result(SECONDS) for future in futures) == [0, 1, 2, 3]


def test_what_is_most_urgent_is_done_first() -> None:
    requests, done = Requests(1), list[int]()
    free, _ = held(requests, ROWS, 1)
    futures = [requests.submit(each, partial(done.append, each)) for each in (LATER, BLOCKS, INDEX, ROWS)]
    free()
    for future in futures:
        future.result(SECONDS)
    assert done == [ROWS, INDEX, BLOCKS, LATER]


def test_a_work_that_is_submitted_again_is_done_once_at_its_more_urgent_place() -> None:
    requests, done, asked = Requests(1), list[str](), Future[None]()
    free, _ = held(requests, ROWS, 1)
    last = requests.submit(LATER, lambda: done.append("last"))
    requests.submit(BLOCKS, lambda: done.append("block"))
    for urgency in (LATER, ROWS):
        requests.submit(urgency, lambda: done.append("asked"), asked)
    free()
    last.result(SECONDS)
    assert done == ["asked", "block", "last"]


class CancelledLate(Future[None]):
    """A future that its owner cancels at the moment at which a thread has seen that it is not."""

    def done(self) -> bool:
        was_done = super().done()
        self.cancel()
        return was_done


def test_a_cancel_at_any_moment_costs_no_thread() -> None:
    requests, cancelled = Requests(2), [CancelledLate() for _ in range(5)]
    for future in cancelled:
        requests.submit(ROWS, lambda: None, future)
    assert requests.submit(ROWS, lambda: "read").result(SECONDS) == "read"
    assert all(future.cancelled() for future in cancelled)
