"""The cache: one fetch for all processes, a hard limit, no use of half an object, no lock that outlives its holder."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, StorageError
from pipeline.shards.remote.cache import Cache, CacheFull, Entry
from pipeline.user_cache import default_directory


def entry(number: int, size: int = 1000) -> Entry:
    return Entry(f"s3://b/{number}.tar", f"{number}.tar", size, "v1")


def fill(size: int = 1000, log: list[str] | None = None) -> Any:
    def fetch(part: Path) -> None:
        part.write_bytes(b"x" * size)
        if log is not None:
            log.append(part.parent.name)

    return fetch


def held(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*.tar"))


def never(part: Path) -> None:
    raise AssertionError("fetched again")


def test_an_object_is_fetched_once_and_found_again(tmp_path: Path) -> None:
    with Cache(tmp_path).lease(entry(1), fill()) as lease:
        assert lease.path.name == "1.tar"
        assert lease.path.read_bytes() == b"x" * 1000
    with Cache(tmp_path).lease(entry(1), never) as again:
        assert again.path == lease.path


def test_another_version_is_another_object(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    first = cache.lease(entry(1), fill()).path
    second = cache.lease(entry(1)._replace(version="v2"), fill()).path
    assert first != second
    assert first.exists()


def test_the_least_recently_used_goes_first_and_the_limit_holds(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3500)
    for number in (1, 2, 3):
        cache.lease(entry(number), fill()).close()
        time.sleep(0.01)
    cache.lease(entry(1), never).close()
    time.sleep(0.01)
    cache.lease(entry(4), fill()).close()
    assert held(tmp_path) == ["1.tar", "3.tar", "4.tar"]
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.tar")) <= 3500


def test_what_is_in_use_is_not_evicted_and_going_over_is_told(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 2500)
    leases = [cache.lease(entry(number), fill()) for number in (1, 2)]
    with pytest.raises(CacheFull):
        cache.lease(entry(3), never, spare=True)
    assert held(tmp_path) == ["1.tar", "2.tar"]
    with pytest.warns(UserWarning, match=r"3,000 bytes.*cache_limit of 2,500; set cache_limit to 3,000"):
        cache.lease(entry(3), fill()).close()
    leases[0].close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.lease(entry(4), fill()).close()
    assert held(tmp_path) == ["2.tar", "4.tar"]


def test_reading_ahead_pushes_out_the_used_but_nothing_read_ahead(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3500)
    cache.lease(entry(1), fill()).close()
    cache.lease(entry(0), fill()).close()
    for number in (2, 3):
        cache.lease(entry(number), fill(), spare=True).close()
    assert held(tmp_path) == ["2.tar", "3.tar"]
    with pytest.raises(CacheFull):
        cache.lease(entry(4), never, spare=True)
    cache.lease(entry(2), never).close()
    cache.lease(entry(4), fill(), spare=True).close()
    assert held(tmp_path) == ["3.tar", "4.tar"]
    cache.lease(entry(5), fill()).close()
    assert held(tmp_path) == ["3.tar", "4.tar", "5.tar"]  # the room that was left
    cache.lease(entry(6), fill()).close()
    assert held(tmp_path) == ["3.tar", "4.tar", "6.tar"]
    assert cache.capacity() == 3500


def test_an_object_larger_than_the_limit_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"1,000 bytes.*999"):
        Cache(tmp_path, 999).lease(entry(1), never)
    with pytest.raises(ConfigError, match="got 0"):
        Cache(tmp_path, 0)


def test_without_a_limit_a_tenth_of_the_disk_stays_free(tmp_path: Path) -> None:
    def space(directory: Path) -> tuple[int, int]:
        return 4000, 4000 - sum(path.stat().st_size for path in directory.rglob("*.tar"))

    cache = Cache(tmp_path, disk_space=space)
    for number in range(6):
        cache.lease(entry(number), fill()).close()
        time.sleep(0.01)
    assert held(tmp_path) == ["3.tar", "4.tar", "5.tar"]


def test_a_failed_fetch_leaves_nothing_usable_but_its_part_goes_on(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def fail(part: Path) -> None:
        part.write_bytes(b"half")
        raise StorageError("away")

    with pytest.raises(StorageError, match="away"):
        cache.lease(entry(1), fail)
    assert held(tmp_path) == []
    seen: list[bytes] = []

    def resume(part: Path) -> None:
        seen.append(part.read_bytes())
        fill()(part)

    cache.lease(entry(1), resume)
    assert seen == [b"half"]
    assert not list(tmp_path.rglob("part"))


def test_a_full_disk_is_told_with_the_cure(tmp_path: Path) -> None:
    def full(part: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"No space left.*cache_dir"):
        Cache(tmp_path).lease(entry(1), full)


def test_threads_that_ask_at_once_fetch_once(tmp_path: Path) -> None:
    log: list[str] = []

    def slow(part: Path) -> None:
        time.sleep(0.05)
        fill(log=log)(part)

    threads = [threading.Thread(target=lambda: Cache(tmp_path).lease(entry(1), slow).close()) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log) == 1


def _hammer(directory: str, seed: int, results: Any) -> None:
    """Lease objects in a row under a tight limit; each must be whole while the lease lasts."""
    cache = Cache(directory, 5000)
    fetched = 0

    def fetch(part: Path) -> None:
        nonlocal fetched
        fetched += 1
        part.write_bytes(part.parent.name.encode()[:1] * 1000)

    bad = 0
    for step in range(120):
        with cache.lease(entry((seed * 7 + step * (seed + 1)) % 9), fetch) as lease:
            first = lease.path.read_bytes()
            time.sleep(0.0005)
            bad += first != lease.path.read_bytes() or first != lease.path.parent.name.encode()[:1] * 1000
    results.put((bad, fetched))


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
    sizes = [path.stat().st_size for path in tmp_path.rglob("*.tar")]
    assert sum(sizes) <= 5000


HOLDER = """
import sys, time
from pathlib import Path
from pipeline.shards.remote.cache import Cache, Entry
def fetch(part):
    part.write_bytes(b"y" * 400)
    print("fetching", flush=True)
    time.sleep(60)
Cache(sys.argv[1]).lease(Entry("s3://b/1.tar", "1.tar", 1000, "v1"), fetch)
"""


def test_kill_in_mid_fetch_leaves_no_usable_part_and_no_stale_lock(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"fetching\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert held(tmp_path) == []
    with Cache(tmp_path, 1500).lease(entry(1), fill()) as lease:
        assert lease.path.read_bytes() == b"x" * 1000


def test_what_a_killed_fetch_left_counts_and_is_evicted(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1500)

    def fail(part: Path) -> None:
        part.write_bytes(b"half")
        raise StorageError("away")

    with pytest.raises(StorageError):
        cache.lease(entry(1), fail)
    cache.lease(entry(2), fill()).close()
    assert not list(tmp_path.rglob("part"))


def test_a_forked_child_that_ends_does_not_end_its_parents_lease(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1500)
    lease = cache.lease(entry(1), fill())
    child = multiprocessing.get_context("fork").Process(target=lease.close)
    child.start()
    child.join()
    with pytest.warns(UserWarning, match="cache_limit"):
        cache.lease(entry(2), fill()).close()
    assert "1.tar" in held(tmp_path)


def test_the_default_directory_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))
    assert default_directory() == tmp_path
    monkeypatch.delenv("SHARDWRIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "shardwright"
