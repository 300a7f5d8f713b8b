"""Remote bytes come right through 429, 503, resets and short reads, in a bounded number of tries."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pipeline.errors import ConfigError, StorageError
from pipeline.shards.remote.access import shown
from pipeline.shards.remote.pace import Server, wait_asked
from pipeline.shards.remote.transport import (
    Access,
    Transient,
    back_off,
    describe,
    is_remote,
    list_remote,
    read_from,
    read_parts,
    read_range,
    retrying,
)
from tests.faulty_server import FaultyServer, running_server

pytestmark = pytest.mark.stacks

DATA = random.Random(0).randbytes(300_000)
QUICK = Access(tries=5, first_delay=0.001, timeout=5, least_patience=5)


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with running_server() as running:
        running.objects["a.tar"] = DATA
        running.objects["empty.tar"] = b""
        yield running


def test_size_and_version_come_from_one_small_request(server: FaultyServer) -> None:
    info = describe(server.url("a.tar"), QUICK)
    assert info.size == len(DATA)
    assert info.version
    assert server.requests == [("/a.tar", "bytes=0-0")]
    assert describe(server.url("empty.tar"), QUICK).size == 0
    server.ranges = False
    assert describe(server.url("a.tar"), QUICK) == info


@pytest.mark.parametrize("fault", ["ok", "503", "short"])
def test_a_large_object_is_read_by_requests_for_its_parts(server: FaultyServer, fault: str) -> None:
    server.faults = ["ok", fault]
    assert read_parts(server.url("a.tar"), len(DATA), QUICK, least=100_001) == DATA
    parts = [f"bytes={at}-{min(at + 100_000, len(DATA) - 1)}" for at in (0, 100_001, 200_002)]
    assert {wanted for _, wanted in server.requests} == {*parts}
    server.requests.clear()
    assert read_parts(server.url("a.tar"), len(DATA), QUICK) == DATA
    assert len(server.requests) == 1
    assert read_parts(server.url("empty.tar"), 0, QUICK) == b""


@pytest.mark.parametrize("ranges", [True, False])
def test_ranges_are_exact_whether_or_not_the_server_knows_them(server: FaultyServer, ranges: bool) -> None:
    server.ranges = ranges
    for start, length in [(0, 10), (5, 0), (100, 70_000), (len(DATA) - 2048, 2048), (0, len(DATA))]:
        assert read_range(server.url("a.tar"), start, length, QUICK) == DATA[start : start + length]


@pytest.mark.parametrize("fault", ["429", "500", "502", "503", "504", "reset", "short"])
def test_a_passing_failure_is_tried_again(server: FaultyServer, fault: str) -> None:
    server.faults = [fault, fault]
    assert read_range(server.url("a.tar"), 1000, 100_000, QUICK) == DATA[1000:101_000]
    assert len(server.requests) == 3


def test_tries_are_bounded_and_the_error_names_url_tries_and_cure(server: FaultyServer) -> None:
    server.faults = ["503"] * 100
    with pytest.raises(StorageError) as caught:
        read_range(server.url("a.tar"), 0, 10, QUICK)
    assert len(server.requests) == 5
    for part in (server.url("a.tar"), "5 tries", "503", "Check the network"):
        assert part in str(caught.value)


@pytest.mark.parametrize(("fault", "cure"), [("404", "check the url"), ("403", "credentials"), ("401", "credentials")])
def test_a_lasting_failure_is_not_tried_again(server: FaultyServer, fault: str, cure: str) -> None:
    server.faults = [fault]
    with pytest.raises(StorageError, match=cure):
        read_range(server.url("a.tar"), 0, 10, QUICK)
    assert len(server.requests) == 1


def test_retry_after_is_waited_for(server: FaultyServer) -> None:
    server.faults = ["429;1"]
    began = time.monotonic()
    assert read_range(server.url("a.tar"), 0, 10, QUICK) == DATA[:10]
    assert time.monotonic() - began >= 1


def test_back_off_grows_and_is_capped() -> None:
    access = Access(first_delay=1.0, longest_delay=10.0)
    for attempt, cap in enumerate([1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0], 1):
        assert cap / 2 <= back_off(attempt, 0.0, access) <= cap
    assert back_off(1, 7.0, access) == 7.0  # as the server asked


def test_what_fails_every_time_is_given_up_after_the_last_try() -> None:
    tries: list[int] = []

    def fail() -> None:
        tries.append(1)
        raise ConnectionResetError("peer")

    with pytest.raises(StorageError, match=r"8 tries.*ConnectionResetError: peer"):
        retrying(fail, "s3://b/a.tar", "read it", Access(first_delay=0.0))
    assert len(tries) == 8


def test_retries_leave_the_global_random_state_alone(server: FaultyServer) -> None:
    random.seed(7)
    wanted = random.Random(7).random()
    server.faults = ["503"]
    read_range(server.url("a.tar"), 0, 10, QUICK)
    assert random.random() == wanted


def test_a_server_can_ask_for_minutes_and_for_ten_at_most() -> None:
    assert wait_asked(429, {"Retry-After": "290"}) == 290
    assert wait_asked(200, {"RateLimit": '"api";r=0;t=117'}) == 118
    assert wait_asked(200, {"RateLimit": '"api";r=3;t=117', "Retry-After": "9"}) == 0
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=100))
    assert 90 < wait_asked(503, {"Retry-After": later}) <= 100
    server = Server()
    for asked in (290.0, 1.0, 99_999.0):
        server.postpone(asked)
    assert 590 < server.left() <= 600


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://me:secret@host?b=c@d", "http://host"),
        ("https://token@host/a.tar#x", "https://host/a.tar"),
        ("s3://bucket/a@b.tar", "s3://bucket/a@b.tar"),
        ("s3://key:secret@bucket/a.tar", "s3://bucket/a.tar"),
        ("abfs://container@account/a.tar", "abfs://container@account/a.tar"),
    ],
)
def test_a_url_is_shown_without_what_authorizes(url: str, wanted: str) -> None:
    assert shown(url) == wanted


def test_keys_in_the_url_of_a_store_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="keys in the url of an object store are not read") as caught:
        is_remote("s3://key:secret@bucket/a.tar")
    assert "secret" not in str(caught.value)


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:9/a\.tar.*refused"):
        describe("http://127.0.0.1:9/a.tar", Access(tries=2, first_delay=0.001))


def test_a_proxy_is_used_but_for_hosts_that_no_proxy_names(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.root)
    monkeypatch.setenv("no_proxy", "direct.invalid,127.0.0.1")
    server.objects["http://proxied.invalid/a.tar"[1:]] = DATA  # the whole url takes the place of the path
    for start in (0, 7):
        assert read_range("http://proxied.invalid/a.tar", start, 9, QUICK) == DATA[start : start + 9]
    assert read_range(server.url("a.tar"), 0, 9, QUICK) == DATA[:9]
    assert [path for path, _ in server.requests] == [*2 * ["http://proxied.invalid/a.tar"], "/a.tar"]
    with pytest.raises(StorageError, match="could not read"):
        read_range("http://direct.invalid/a.tar", 0, 9, Access(tries=1))


def test_reading_stops_with_a_transient_where_bytes_are_missing(server: FaultyServer) -> None:
    server.faults = ["short"]
    pieces: list[bytes] = []
    with pytest.raises((Transient, OSError)):
        pieces.extend(read_from(server.url("a.tar"), 0, len(DATA), QUICK))
    assert b"".join(pieces) == DATA[: len(b"".join(pieces))]


def test_fsspec_objects_are_read_in_blocks_and_listed() -> None:
    fsspec.filesystem("memory").pipe("/remote/a.tar", DATA[:10_500])
    pieces = list(read_from("memory://remote/a.tar", 10, 10_500, block_bytes=1000))
    assert [len(piece) for piece in pieces] == [1000] * 10 + [490]
    assert b"".join(pieces) == DATA[10:10_500]
    assert describe("memory://remote/a.tar").size == 10_500
    assert read_range("memory://remote/a.tar", 10_000, 500) == DATA[10_000:10_500]
    assert [url.rsplit("/", 1)[-1] for url in list_remote("memory://remote/*.tar")] == ["a.tar"]
    with pytest.raises(StorageError, match="no such object"):
        describe("memory://remote/none.tar", QUICK)


class FaultyStore(MemoryFileSystem):
    """A store in memory whose reads fail in the ways that ``faults`` name, one after the other."""

    protocol = "faulty"
    faults: ClassVar[list[str]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        stripped: str = super()._strip_protocol(path.removeprefix("faulty:"))
        return stripped

    def cat_file(self, path: str, start: int = 0, end: int = 0, **options: Any) -> bytes:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "reset":
            raise ConnectionResetError("peer")
        if fault == "timeout":
            raise TimeoutError
        read: bytes = super().cat_file(path, start=start, end=end - 7 if fault == "short" else end, **options)
        return read


def test_fsspec_failures_and_short_reads_are_tried_again() -> None:
    fsspec.register_implementation("faulty", FaultyStore, clobber=True)
    fsspec.filesystem("faulty").pipe("/remote/b.tar", DATA[:5000])
    FaultyStore.faults[:] = ["reset", "short", "timeout"]
    assert read_range("faulty://remote/b.tar", 100, 4000, QUICK) == DATA[100:4100]
    assert FaultyStore.faults == []
    with pytest.raises(StorageError, match="5000 bytes, but 6000 are expected"):
        read_range("faulty://remote/b.tar", 0, 6000, QUICK)


def test_an_object_that_is_too_short_is_told_at_once(server: FaultyServer) -> None:
    with pytest.raises(StorageError, match=r"300000 bytes, but 300001 are expected"):
        read_range(server.url("a.tar"), 0, len(DATA) + 1, QUICK)
    with pytest.raises(StorageError, match="shorter than expected"):
        read_range(server.url("a.tar"), len(DATA), 1, QUICK)
    assert len(server.requests) == 2


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # as where the package is not installed
    with pytest.raises(ConfigError, match="pip install gcsfs"):
        describe("gs://bucket/a.tar")
