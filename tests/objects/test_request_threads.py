"""Threads for jobs that block, and those of a process that ask for bytes."""

from __future__ import annotations

import threading

from pipeline.daemon_threads import DaemonThreads
from tests.helpers import interpreters

SECONDS = 50


def test_jobs_run_side_by_side() -> None:
    threads, started = DaemonThreads(4, "test"), threading.Barrier(4)
    futures = [threads.submit(lambda: started.wait(SECONDS)) for _ in range(4)]
    assert sorted(future.result(SECONDS) for future in futures) == [0, 1, 2, 3]


def test_a_cancel_at_any_moment_costs_no_thread() -> None:
    threads, free = DaemonThreads(2, "test"), threading.Event()
    running = [threads.submit(lambda: free.wait(SECONDS)) for _ in range(2)]
    waiting = [threads.submit(lambda: None) for _ in range(50)]
    canceller = threading.Thread(target=lambda: [future.cancel() for future in reversed(waiting)])
    canceller.start()
    free.set()
    canceller.join(SECONDS)
    assert all(future.result(SECONDS) for future in running)
    assert threads.submit(lambda: "read").result(SECONDS) == "read"
    assert all(future.cancelled() or future.result(SECONDS) is None for future in waiting)


def test_an_error_reaches_who_waits_and_costs_no_thread() -> None:
    threads = DaemonThreads(1, "test")
    assert isinstance(threads.submit(lambda: 1 // 0).exception(SECONDS), ZeroDivisionError)
    assert threads.submit(lambda: "read").result(SECONDS) == "read"


def test_a_process_that_ends_waits_for_no_job_that_is_stuck() -> None:
    code = """
import threading
from pipeline.daemon_threads import DaemonThreads
threads = DaemonThreads(2, "test")
threads.submit(threading.Event().wait)
"""
    ended = interpreters.run("-c", code)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_forked_process_has_threads_of_its_own_for_requests() -> None:
    code = """
import os, signal
from pipeline.objects.request_options import CONNECTIONS
from pipeline.objects.request_threads import in_threads
in_threads([lambda: 1] * CONNECTIONS)  # all threads of the parent have begun
if (child := os.fork()) == 0:
    signal.alarm(50)
    os._exit(in_threads([lambda: 7])[0])
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    forked = interpreters.run("-c", code)
    assert (forked.stdout, forked.stderr) == ("7\n", "")
