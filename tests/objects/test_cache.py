"""The cache: one fetch for all processes, a hard limit, no use of half an object, no lock that outlives its holder."""

from __future__ import annotations

import hashlib
import itertools
import logging
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, StorageError
from pipeline.objects.cache import Cache, Lease
from pipeline.user_cache import default_directory

WHOLE, SIZE = "object.tar", 1000


def write(log: list[str] | None = None, letter: bytes = b"x") -> Callable[[Path], str]:
    def fetch(path: Path) -> str:
        path.write_bytes(letter * SIZE)
        if log is not None:
            log.append(path.parent.name)
        return hashlib.sha256(letter * SIZE).hexdigest()

    return fetch


def never(path: Path) -> str:
    raise AssertionError("fetched again")


def lease(cache: Cache, number: int, fetch: Callable[[Path], str] | None = None) -> Lease:
    return cache.lease(f"{number:032}", WHOLE, SIZE, fetch or write())


def block(cache: Cache, number: int, fetch: Callable[[], bytes] | None = None) -> bytes:
    whole = bytes([number % 256]) * SIZE
    found = cache.read("blocks", f"{number}.block", fetch or (lambda: whole), lambda raw: raw == whole)
    assert found == whole
    return bytes(found)


def held(directory: Path) -> list[int]:
    return sorted(int(path.parent.name) for path in directory.rglob(WHOLE))


def bytes_held(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.suffix in (".tar", ".block"))


def test_a_whole_object_and_a_block_are_fetched_once_and_found_again(tmp_path: Path) -> None:
    with lease(Cache(tmp_path), 1) as first:
        assert first.path.read_bytes() == b"x" * SIZE
    with lease(Cache(tmp_path), 1, never) as again:
        assert again.path == first.path
    block(Cache(tmp_path), 7)
    block(Cache(tmp_path), 7, lambda: b"fetched again")
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_dir()} == {0o700}


def test_the_least_recently_used_goes_first_and_the_limit_holds(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3500)
    for number in (1, 2, 3, 1, 4):
        lease(cache, number).close()
        time.sleep(0.02)
    assert held(tmp_path) == [1, 3, 4]
    for number in range(50):
        block(cache, number)
        assert bytes_held(tmp_path) <= 3500
    assert held(tmp_path) == []


def test_a_cache_that_is_full_is_not_searched_for_each_block(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 100 * SIZE)
    for number in range(100):
        block(cache, number)
    left = [len(list(tmp_path.rglob("*.block")))]
    for number in range(100, 112):
        block(cache, number)
        left.append(len(list(tmp_path.rglob("*.block"))))
    assert min(left) < 90  # an eighth goes at once
    assert sum(later < earlier for earlier, later in itertools.pairwise(left)) == 1


def test_a_limit_binds_a_cache_that_was_filled_without_one(tmp_path: Path) -> None:
    for number in range(20):
        block(Cache(tmp_path), number)
    cache = Cache(tmp_path, 10 * SIZE)
    cache.trim()
    assert 0 < bytes_held(tmp_path) <= 10 * SIZE


def test_what_is_in_use_is_not_evicted_and_going_over_is_said(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2500)
    leases = [lease(cache, number) for number in (1, 2)]
    with pytest.warns(UserWarning, match=r"3,000 bytes.*cache_limit of 2,\d00; set cache_limit to 3,000"):
        lease(cache, 3).close()
    leases[0].close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lease(cache, 4).close()
    assert 2 in held(tmp_path)
    assert 4 in held(tmp_path)


def test_an_object_larger_than_the_limit_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"1,000 bytes.*999"):
        lease(Cache(tmp_path, 999), 1, never)
    with pytest.raises(ConfigError, match="got 0"):
        Cache(tmp_path, 0)


def test_without_a_limit_a_tenth_of_the_disk_stays_free_and_where_others_fill_it_the_cache_stays(
    tmp_path: Path,
) -> None:
    others = 0

    def space(directory: Path) -> tuple[int, int]:
        return 40 * SIZE, 40 * SIZE - others - bytes_held(directory)

    cache = Cache(tmp_path, disk_space=space)
    for number in range(60):
        block(cache, number)
        assert bytes_held(tmp_path) <= 36 * SIZE
    assert bytes_held(tmp_path) > 25 * SIZE
    before, others = bytes_held(tmp_path), 30 * SIZE
    for number in range(60, 100):
        block(cache, number)
    assert 0.8 * before < bytes_held(tmp_path) <= before + SIZE


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: b"y" + raw[1:]])
def test_a_damaged_file_is_fetched_again_and_a_whole_one_is_named(tmp_path: Path, damage: Any) -> None:
    cache = Cache(tmp_path)
    block(cache, 3)
    lease(cache, 1).close()
    for path in [*tmp_path.rglob("*.block"), *tmp_path.rglob(WHOLE)]:
        path.write_bytes(damage(path.read_bytes()))
    block(cache, 3)
    with (
        pytest.warns(UserWarning, match=rf"{WHOLE}: damaged in the cache: sha256 .* fetched again"),
        lease(cache, 1) as found,
    ):
        assert found.path.read_bytes() == b"x" * SIZE


def test_a_failed_fetch_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> str:
        path.write_bytes(b"half")
        raise StorageError("away")

    for _ in range(2):
        with pytest.raises(StorageError, match="away"):
            lease(Cache(tmp_path), 1, fail)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] in (["used"], [])


def test_a_full_disk_is_said_with_the_cure_and_blocks_are_read_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path) -> str:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"No space left.*cache_dir"):
        lease(Cache(tmp_path), 1, full)
    cache = Cache(tmp_path, limit=SIZE - 1)
    for number in range(3):
        block(cache, number)
    assert sum("cannot hold blocks" in record.message for record in caplog.records) == 1


def test_threads_that_evict_each_others_blocks_warn_of_no_full_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path, limit=30_000)
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: block(cache, number), range(600)))
    assert caplog.messages == []


def test_threads_that_ask_at_once_fetch_once(tmp_path: Path) -> None:
    log: list[str] = []

    def slow(path: Path) -> str:
        time.sleep(0.05)
        return write(log)(path)

    def slow_block() -> bytes:
        time.sleep(0.05)
        log.append("block")
        return bytes([1]) * SIZE

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: lease(Cache(tmp_path), 1, slow).close(), range(8)))
        list(threads.map(lambda _: block(Cache(tmp_path), 1, slow_block), range(8)))
    assert len(log) == 2


def _hammer(directory: str, seed: int, results: Any) -> None:
    """Lease objects in a row under a tight limit; each must be whole while the lease lasts."""
    cache = Cache(directory, 5000)
    fetched: list[str] = []
    bad = 0
    for step in range(120):
        number = (seed * 7 + step * (seed + 1)) % 9
        letter = str(number).encode()
        with lease(cache, number, write(fetched, letter)) as found:
            first = found.path.read_bytes()
            time.sleep(0.0005)
            bad += first != found.path.read_bytes() or first != letter * SIZE
    results.put((bad, len(fetched)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_under_a_tight_limit_never_see_a_half_or_vanished_object(tmp_path: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    results = context.Queue()
    workers = [context.Process(target=_hammer, args=(str(tmp_path), seed, results)) for seed in range(3)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert [bad for bad, _ in found] == [0, 0, 0]
    assert all(fetched < 120 for _, fetched in found)
    assert bytes_held(tmp_path) <= 5000


HOLDER = """
import sys, time
from pathlib import Path
from tests.objects.test_cache import Cache, block, lease
def fetch(path=None):
    if path is not None:
        path.write_bytes(b"y" * 400)
    print("fetching", flush=True)
    time.sleep(60)
(lease if sys.argv[2] == "whole" else block)(Cache(sys.argv[1]), 1, fetch)
"""


@contextmanager
def fetching(directory: Path, kind: str) -> Iterator[subprocess.Popen[bytes]]:
    """Give a process that has begun to fetch, and never ends."""
    command = [sys.executable, "-c", HOLDER, str(directory), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"fetching\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["whole", "block"])
def test_a_kill_in_mid_fetch_leaves_no_usable_part_and_no_stale_lock(tmp_path: Path, kind: str) -> None:
    with fetching(tmp_path, kind) as process:
        process.kill()
        process.wait()
    assert bytes_held(tmp_path) == 0
    cache = Cache(tmp_path, 2500)
    with lease(cache, 1) as found:
        assert found.path.read_bytes() == b"x" * SIZE
    block(cache, 1)
    for number in range(2, 9):  # what the killed one left counts, and goes
        lease(cache, number).close()
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("kind", ["whole", "block"])
def test_a_process_that_is_stopped_in_mid_fetch_is_not_waited_for_without_end(tmp_path: Path, kind: str) -> None:
    with fetching(tmp_path, kind) as process:
        os.kill(process.pid, signal.SIGSTOP)
        cache = Cache(tmp_path, patience=0.5)
        began = time.monotonic()
        if kind == "whole":
            with lease(cache, 1) as found:
                assert found.path.read_bytes() == b"x" * SIZE
        else:
            block(cache, 1)
        assert time.monotonic() - began < 20


def test_a_forked_child_that_ends_does_not_end_its_parents_lease(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1500)
    first = lease(cache, 1)
    child = multiprocessing.get_context("fork").Process(target=first.close)
    child.start()
    child.join()
    with pytest.warns(UserWarning, match="cache_limit"):
        lease(cache, 2).close()
    assert 1 in held(tmp_path)


def test_the_default_directory_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))
    assert default_directory() == tmp_path
    monkeypatch.delenv("SHARDWRIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "shardwright"
