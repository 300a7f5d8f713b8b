"""The cache: one fetch for all processes, a hard limit, no use of half an object, no lock that outlives its holder."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import logging
import multiprocessing
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from pipeline.errors import ConfigError, StorageError
from pipeline.objects.cache import Cache
from pipeline.user_cache import default_directory
from tests.helpers.interpreters import Interpreter

SIZE = 1000
KINDS = ["whole", "block"]
Fetch = Callable[[], bytes]


def contents(number: int) -> bytes:
    return bytes([number % 256]) * SIZE


def opened(cache: Cache, number: int, fetch: Fetch | None = None) -> BinaryIO:
    def write(path: Path) -> str:
        path.write_bytes(data := fetch() if fetch else contents(number))
        return hashlib.sha256(data).hexdigest()

    return cache.open(f"{number:032}", "object.tar", SIZE, write)


def whole(cache: Cache, number: int, fetch: Fetch | None = None) -> bytes:
    with opened(cache, number, fetch) as file:
        return file.read()


def block(cache: Cache, number: int, fetch: Fetch | None = None) -> bytes:
    wanted = contents(number)
    fetched = fetch or (lambda: wanted)
    (data,) = cache.read_all("blocks", [f"{number}.block"], lambda _: [fetched()], lambda _, raw: raw == wanted)
    return bytes(data)


READ: dict[str, Callable[..., bytes]] = {"whole": whole, "block": block}


def never() -> bytes:
    raise AssertionError("fetched again")


def kept(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.suffix in (".tar", ".block")]


def bytes_kept(directory: Path) -> int:
    return sum(path.stat().st_size for path in kept(directory))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_fetched_is_there_for_the_next_run_in_folders_of_its_owner(tmp_path: Path, kind: str) -> None:
    assert READ[kind](Cache(tmp_path), 1) == contents(1)
    assert READ[kind](Cache(tmp_path), 1, never) == contents(1)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_dir()} == {0o700}


def test_the_least_recently_used_goes_first_and_the_limit_holds(tmp_path: Path) -> None:
    for number in (7, 8, 9):
        whole(Cache(tmp_path), number)  # a run without a limit
    cache = Cache(tmp_path, 3500)
    for number in (1, 2, 3, 1, 4):
        whole(cache, number)
        time.sleep(0.02)
    assert sorted(int(path.parent.name) for path in kept(tmp_path)) == [1, 3, 4]
    for number in range(50):
        assert block(cache, number) == contents(number)
        assert bytes_kept(tmp_path) <= 3500
    assert all(path.with_suffix("").exists() for path in tmp_path.rglob("*.sha256"))


def test_a_file_that_another_process_holds_stays_and_counts(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3500)
    whole(cache, 1)
    (oldest,) = kept(tmp_path)
    with open(oldest, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for number in range(2, 12):
            whole(cache, number)
            assert bytes_kept(tmp_path) <= 3500
        assert oldest.exists()


def test_a_cache_that_is_full_is_not_searched_for_each_block(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 100 * SIZE)
    left = []
    for number in range(112):
        block(cache, number)
        left.append(len(kept(tmp_path)))
    assert min(left[100:]) < 90  # an eighth goes at once
    assert sum(later < earlier for earlier, later in itertools.pairwise(left)) == 1


def test_who_has_opened_an_object_reads_on_when_it_is_evicted(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1500)
    with opened(cache, 1) as file:
        whole(cache, 2)
        assert [path.parent.name for path in kept(tmp_path)] == [f"{2:032}"]
        assert file.read() == contents(1)


def test_an_object_larger_than_the_limit_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"1,000 bytes.*999"):
        whole(Cache(tmp_path, 999), 1, never)
    with pytest.raises(ConfigError, match="got 0"):
        Cache(tmp_path, 0)


def test_without_a_limit_a_tenth_of_the_disk_stays_free(tmp_path: Path) -> None:
    others = 0

    def space(directory: Path) -> tuple[int, int]:
        return 40 * SIZE, 40 * SIZE - others - bytes_kept(directory)

    cache = Cache(tmp_path, disk_space=space)
    for number in range(60):
        block(cache, number)
        assert bytes_kept(tmp_path) <= 36 * SIZE
    assert bytes_kept(tmp_path) > 25 * SIZE
    before, others = bytes_kept(tmp_path), 30 * SIZE
    for number in range(60, 100):
        block(cache, number)
    assert 0.8 * before < bytes_kept(tmp_path) <= before + SIZE


@pytest.mark.parametrize("damage", [lambda raw: raw[:-1], lambda raw: b"y" + raw[1:]])
def test_a_damaged_file_is_fetched_again_and_a_whole_one_is_named(tmp_path: Path, damage: Any) -> None:
    for read in READ.values():
        read(Cache(tmp_path), 1)
    for path in kept(tmp_path):
        path.write_bytes(damage(path.read_bytes()))
    assert block(Cache(tmp_path), 1) == contents(1)
    with pytest.warns(UserWarning, match=r"object.tar: damaged .* fetched again"):
        assert whole(Cache(tmp_path), 1) == contents(1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_fetch_leaves_nothing(tmp_path: Path, kind: str) -> None:
    def fail() -> bytes:
        raise StorageError("away")

    for _ in range(2):
        with pytest.raises(StorageError, match="away"):
            READ[kind](Cache(tmp_path), 1, fail)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"used"}


def test_a_full_disk_is_said_and_blocks_are_read_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def full() -> bytes:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"No space left.*cache_dir"):
        whole(Cache(tmp_path), 1, full)
    cache = Cache(tmp_path, limit=SIZE - 1)
    for number in range(3):
        assert block(cache, number) == contents(number)
    assert sum("cannot keep blocks" in record.message for record in caplog.records) == 1


def test_threads_that_evict_blocks_warn_of_no_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = Cache(tmp_path, limit=30_000)
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: block(cache, number), range(600)))
    assert caplog.messages == []


@pytest.mark.parametrize("kind", KINDS)
def test_threads_that_ask_at_once_fetch_once(tmp_path: Path, kind: str) -> None:
    log: list[str] = []

    def slow() -> bytes:
        time.sleep(0.05)
        log.append(kind)
        return contents(1)

    with ThreadPoolExecutor(8) as threads:
        assert {*threads.map(lambda _: READ[kind](Cache(tmp_path), 1, slow), range(8))} == {contents(1)}
    assert len(log) == 1


def _hammer(directory: str, seed: int, results: Any) -> None:
    """Open objects in a row under a tight limit; each must be whole."""
    cache = Cache(directory, 5000)
    fetched: list[int] = []
    bad = 0
    for step in range(120):
        number = (seed * 7 + step * (seed + 1)) % 9

        def fetch(number: int = number) -> bytes:
            fetched.append(number)
            return contents(number)

        bad += whole(cache, number, fetch) != contents(number)
    results.put((bad, len(fetched)))


def test_processes_under_a_tight_limit_never_see_a_half_or_vanished_object(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=_hammer, args=(str(tmp_path), seed, results)) for seed in range(3)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert [bad for bad, _ in found] == [0, 0, 0]
    assert all(fetched < 120 for _, fetched in found)
    assert bytes_kept(tmp_path) <= 5000


FETCHING = """
import sys, time
from tests.objects.test_cache import Cache, READ
def fetch():
    print("fetching", flush=True)
    time.sleep(60)
READ[sys.argv[2]](Cache(sys.argv[1]), 1, fetch)
"""


@contextmanager
def fetching(directory: Path, kind: str) -> Iterator[Interpreter]:
    """Give a process that has begun to fetch, and never ends."""
    reading, writing = os.pipe()
    process = Interpreter("-c", FETCHING, directory, kind, stdout=writing, stderr=2)
    os.close(writing)
    with open(reading) as said:
        assert said.readline() == "fetching\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_killed_leaves_nothing_and_who_is_stopped_delays_nobody(tmp_path: Path, kind: str) -> None:
    with fetching(tmp_path / "killed", kind) as process:
        process.kill()
        process.wait()
    cache = Cache(tmp_path / "killed", 2500)
    assert READ[kind](cache, 1) == contents(1)
    for number in range(2, 9):  # what the killed one left counts, and goes
        whole(cache, number)
    assert not list(tmp_path.rglob("*.part"))
    with fetching(tmp_path / "stopped", kind) as process:
        process.kill(signal.SIGSTOP)
        assert READ[kind](Cache(tmp_path / "stopped", patience=0.5), 1) == contents(1)


def test_the_default_directory_can_be_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path))
    assert default_directory() == tmp_path
    monkeypatch.delenv("SHARDWRIGHT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "shardwright"


@pytest.mark.parametrize("junk", [b"", bytes(64), b"\xff\xfe junk", b"12", b"-5 -5", b"1 2 3", b"9" * 30 + b" 1"])
def test_a_counter_that_a_power_cut_left_is_counted_again(tmp_path: Path, junk: bytes) -> None:
    cache = Cache(tmp_path, limit=4 * SIZE)
    for number in range(3):
        block(cache, number)
    (tmp_path / "objects" / "used").write_bytes(junk)
    for number in range(3, 30):
        block(cache, number)
    assert block(cache, 29, never) == contents(29)
    kept = list((tmp_path / "objects").rglob("*.block"))
    assert 0 < sum(path.stat().st_size for path in kept) <= 4 * SIZE


@pytest.mark.parametrize("junk", [b"", bytes(64), b"\xff\xfe\x80", b"0" * 64])
def test_a_hash_that_a_power_cut_left_is_renewed(tmp_path: Path, junk: bytes, recwarn: pytest.WarningsRecorder) -> None:
    whole(Cache(tmp_path), 1)
    [path] = (tmp_path / "objects").rglob("*.sha256")
    path.write_bytes(junk)
    assert whole(Cache(tmp_path), 1) == contents(1)
    assert len(path.read_text()) == 64
    assert whole(Cache(tmp_path), 1, never) == contents(1)


def test_a_folder_where_a_file_belongs_is_read_past_or_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "objects" / "blocks" / "1.block").mkdir(parents=True)
    assert block(Cache(tmp_path), 1) == contents(1)
    assert "cannot keep blocks: " in caplog.text
    (tmp_path / "objects" / f"{1:032}" / "object.tar").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"cannot keep object\.tar .*Is a directory"):
        whole(Cache(tmp_path), 1)
    caplog.clear()
    (tmp_path / "other" / "objects").mkdir(parents=True)
    (tmp_path / "other" / "objects" / "blocks").touch()  # and a file where a folder belongs
    assert block(Cache(tmp_path / "other"), 1) == contents(1)
    assert caplog.text.count("cannot keep blocks: ") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_system_without_locks_keeps_the_limit(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    cache = Cache(tmp_path, SIZE)
    for number in (1, 1, 2, 2):
        assert READ[kind](cache, number) == contents(number)
    assert [path.read_bytes() for path in kept(tmp_path)] == [contents(2)]
    assert caplog.text == ""


def test_files_read_together_are_fetched_by_one_call_of_all_threads(tmp_path: Path) -> None:
    calls: list[list[int]] = []

    def read(first: int) -> list[bytes]:
        def fetch(missing: list[int]) -> list[bytes]:
            calls.append([first + number for number in missing])
            time.sleep(0.1)
            return [contents(first + number) for number in missing]

        names = [f"{number}.block" for number in range(first, first + 6)]
        data = Cache(tmp_path).read_all("blocks", names, fetch, lambda number, raw: raw == contents(first + number))
        return [bytes(part) for part in data]

    block(Cache(tmp_path), 3)
    with ThreadPoolExecutor(8) as threads:
        for first, data in zip([0, 4] * 8, threads.map(read, [0, 4] * 8), strict=True):
            assert data == [contents(number) for number in range(first, first + 6)]
    assert sorted(itertools.chain(*calls)) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert len(calls) <= 3
