"""Faults among good answers change nothing: of shards that are streamed or verified, of texts, of what builds compare with."""

from __future__ import annotations

import gc
import threading
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

import pipeline
from pipeline.daemon_threads import DaemonThreads, sleep
from pipeline.errors import MissingObjectError
from pipeline.objects.request_options import CONNECTIONS, RequestOptions, RetryableError
from pipeline.objects.request_threads import in_threads
from pipeline.objects.retries import retrying
from pipeline.shards.verify.dataset import verify_dataset
from tests.helpers import interpreters
from tests.helpers.builds import digests, run_plain, write_jsonl
from tests.helpers.corpus import english
from tests.helpers.faulty_server import PASSING, FaultyServer
from tests.helpers.shard_samples import index_extents, make_documents, write_dataset
from tests.helpers.text_streams import ids


def write(path: Path, first: int, count: int) -> bytes:
    """Write documents, and return the bytes of their file."""
    return write_jsonl(path, [{"id": f"d{k}", "text": english(k)} for k in range(first, first + count)]).read_bytes()


def packed(source: Any, **options: Any) -> Any:
    return ids(pipeline.ShardDataset(source, epochs=1, **options).shuffle(seed=3, lanes=4, window=2).pack(512).batch(8))


def test_of_shards_that_are_streamed(tmp_path: Path, server: FaultyServer) -> None:
    dataset = tmp_path / "data"
    write_dataset(dataset, [make_documents(150, seed=seed, longest=600) for seed in range(6)])
    index_extents(dataset, 32 << 10)
    url = server.serve(dataset)
    server.faults = ["ok"]  # of ranges there are, so that an answer of a whole object is a fault
    server.passing = [each for each in PASSING if each != "whole"] + ["whole"]
    assert packed(url, cache_dir=None) == packed(dataset)
    assert server.passing == []


@pytest.mark.stacks
def test_of_texts_that_are_streamed(tmp_path: Path, server: FaultyServer) -> None:
    names = [f"{number}.jsonl" for number in range(len(PASSING))]
    for number, name in enumerate(names):
        server.files[name] = write(tmp_path / name, 20 * number, 20)

    def stream(files: list[Any]) -> Any:
        return pipeline.TextDataset(files, "bytes", epochs=1).shuffle(seed=1).pack(64).batch(8)

    wanted = ids(stream([tmp_path / name for name in names]))
    remote = stream([server.url(name) for name in names])
    # Nothing tells one wrong bit of a text: a listing that states hashes, as of the hub, does.
    server.passing = [each for each in PASSING if each != "flipped"]
    assert ids(remote) == wanted
    assert server.passing == []


def test_of_a_dataset_that_is_verified(tmp_path: Path, server: FaultyServer) -> None:
    write_dataset(tmp_path / "small", [make_documents(60, seed=seed) for seed in range(3)])
    url = server.serve(tmp_path / "small")
    server.faults = ["ok"] * 3
    server.passing = ["flipped", "404", "reset", "page", "503", "flipped"]
    assert list(verify_dataset(url, requests=RequestOptions(first_delay=0.001))) == []
    assert server.passing == []


@pytest.mark.stacks
def test_of_a_dataset_that_a_build_is_held_against(tmp_path: Path, server: FaultyServer) -> None:
    write(tmp_path / "first.jsonl", 0, 40)
    write(tmp_path / "more.jsonl", 20, 40)
    run_plain(tmp_path / "first.jsonl", tmp_path / "first")
    run_plain(tmp_path / "more.jsonl", tmp_path / "here", against=[str(tmp_path / "first")])
    server.serve(tmp_path / "first")
    server.files = {path.replace("data/", "first/"): data for path, data in server.files.items()}
    server.passing = ["flipped", "404", "page", "flipped", "short", "503", "520", "flipped"]
    manifest = run_plain(tmp_path / "more.jsonl", tmp_path / "there", against=[server.url("first")])
    assert manifest.counts["duplicates"] == {"exact": 20, "near": 0}
    assert digests(tmp_path / "there") == digests(tmp_path / "here")
    assert len(server.passing) <= 2


@pytest.mark.parametrize("fault", ["page", "404", "403", "204", "520", "short", "packed", "flipped"])
def test_one_bad_body_of_the_manifest_or_the_table_of_extents(tmp_path: Path, server: FaultyServer, fault: str) -> None:
    write_dataset(tmp_path / "small", [make_documents(60)])
    index_extents(tmp_path / "small", 8 << 10)
    url = server.serve(tmp_path / "small")
    for place in range(2):
        server.faults = ["ok"] * place + [fault]
        assert packed(url, cache_dir=None) == packed(tmp_path / "small")
        assert server.faults == []


# Threads for jobs that block, and those of a process that ask for bytes.


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


def test_a_job_whose_future_nothing_holds_does_not_begin_and_one_that_sleeps_wakes() -> None:
    threads, began, woke, ran = DaemonThreads(1, "test"), threading.Event(), threading.Event(), list[int]()

    def sleeps() -> None:
        began.set()
        sleep(SECONDS)
        woke.set()

    inner = DaemonThreads(1, "test")
    waits = threads.submit(lambda: inner.submit(sleeps).result())  # wanted as long as what waits for it is
    unwanted = threads.submit(lambda: ran.append(1))
    assert began.wait(SECONDS)
    assert not woke.wait(0.5)
    del waits, unwanted
    assert woke.wait(SECONDS / 2)
    assert threads.submit(lambda: "read").result(SECONDS) == "read"
    assert not ran


def test_requests_beside_one_that_failed_leave_their_threads_to_others() -> None:
    tried, together = threading.Semaphore(0), threading.Barrier(CONNECTIONS)

    def fail() -> None:
        tried.release()
        raise RetryableError("busy")

    def missing() -> None:
        for _ in range(CONNECTIONS - 1):
            assert tried.acquire(timeout=SECONDS)
        raise MissingObjectError("no such object")

    patient = RequestOptions(tries=1000, timeout=10 * SECONDS, first_delay=2 * SECONDS)
    busy = [partial(retrying, fail, "http://127.0.0.1/", "read it", patient)] * (CONNECTIONS - 1)
    with pytest.raises(MissingObjectError):
        in_threads([missing, *busy])
    in_threads([partial(together.wait, SECONDS / 2)] * CONNECTIONS)


def test_an_error_of_a_job_keeps_nothing_that_the_job_held() -> None:
    def fail(held: set[int]) -> None:
        raise ValueError(len(held))

    threads, held = DaemonThreads(1, "test"), set[int]()
    gone = ref(held)
    failed = threads.submit(partial(fail, held))
    assert str(failed.exception(SECONDS)) == "0"
    gc.collect()
    gc.disable()
    try:
        del held, failed
        threads.submit(lambda: None).result(SECONDS)
        assert gone() is None
    finally:
        gc.enable()


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
