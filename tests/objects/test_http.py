"""Objects on http servers: exact ranges, failures that pass, failures that stay, waits, redirects, proxies, secrets."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import random
import re
import signal
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, CorruptShardError, ShardwrightError, StorageError
from pipeline.objects import remote_object
from pipeline.objects.http import Answer, Server
from pipeline.objects.locations import folder_of, location
from pipeline.objects.remote_object import RemoteObject, describe, download, knows_ranges, read_parsed, read_range
from pipeline.objects.request_options import RequestOptions
from pipeline.objects.retries import retrying
from pipeline.objects.urls import is_remote, shown
from tests.helpers import interpreters
from tests.helpers.faulty_server import PASSING, FaultyServer, running_server
from tests.helpers.local_server import new_socket

DATA = random.Random(0).randbytes(300_000)
QUICK = RequestOptions(tries=5, first_delay=0.001, timeout=5)


@pytest.fixture
def server(server: FaultyServer) -> FaultyServer:
    server.files |= {"a.tar": DATA, "empty.tar": b""}
    return server


# What there is


def test_size_and_version_come_from_one_small_request(server: FaultyServer) -> None:
    info = describe(server.url("a.tar"), QUICK)
    assert info.size == len(DATA)
    assert info.version
    assert server.requests == [("/a.tar", "bytes=0-0")]
    server.ranges = False
    assert describe(server.url("a.tar"), QUICK) == info


@pytest.mark.parametrize("answer", ["ok", "416", "416|Content-Range=bytes */0", "whole"])
def test_an_empty_object_has_a_size_and_a_version_whatever_the_server_says_of_its_ranges(
    server: FaultyServer, answer: str
) -> None:
    server.faults = [answer]
    info = describe(server.url("empty.tar"), QUICK)
    assert info == (0, hashlib.sha256(b"").hexdigest())
    assert remote_object.read_whole(server.url("empty.tar"), 0, QUICK) == b""
    assert knows_ranges(server.url("a.tar"), QUICK)


def test_one_whole_answer_does_not_mean_a_server_without_ranges(server: FaultyServer) -> None:
    server.faults = ["whole"]
    assert knows_ranges(server.url("a.tar"), QUICK)
    with running_server() as other:
        other.files, other.ranges = server.files, False
        assert not knows_ranges(other.url("a.tar"), QUICK)


@pytest.mark.parametrize("ranges", [True, False])
def test_ranges_are_exact_whether_or_not_the_server_knows_them(server: FaultyServer, ranges: bool) -> None:
    server.ranges = ranges
    for start, length in [(0, 10), (5, 0), (100, 70_000), (len(DATA) - 2048, 2048), (0, len(DATA))]:
        assert read_range(server.url("a.tar"), start, length, QUICK) == DATA[start : start + length]


def test_a_large_object_is_read_by_requests_for_its_parts(server: FaultyServer) -> None:
    server.files["large"] = data = DATA * 8
    server.faults = ["ok", "503", "short"]
    assert remote_object.read_whole(server.url("large"), len(data), QUICK) == data
    assert {"bytes=0-1048575", "bytes=1048576-2097151"} < {wanted for _, wanted in server.requests}
    assert remote_object.read_whole(server.url("empty.tar"), 0, QUICK) == b""


def test_a_range_that_broke_off_goes_on_where_it_stopped(server: FaultyServer) -> None:
    server.faults = ["short", "short"]
    assert RemoteObject(server.url("a.tar"), QUICK).read(0, len(DATA)) == DATA
    assert [wanted for _, wanted in server.requests] == [f"bytes={at}-299999" for at in (0, 150_000, 225_000)]


def test_a_url_is_shown_without_what_authorizes() -> None:
    assert shown("http://me:secret@host?b=c@d") == "http://host"
    assert shown("https://token@host/a.tar#x") == "https://host/a.tar"
    assert shown("s3://bucket/a@b.tar") == "s3://bucket/a@b.tar"
    assert shown("s3://key:secret@bucket/a.tar") == "s3://bucket/a.tar"
    with pytest.raises(ShardwrightError, match=r"keys in the url .* not read") as caught:
        is_remote("s3://key:5ecret@bucket/a.tar")
    assert "5ecret" not in str(caught.value)
    assert location("https://me:secret@host/a/?b=c") == location("https://host/a") == "https://host/a"
    assert folder_of("https://host/a/b.tar", ["https://host/ab", "https://host/a/"]) == "https://host/a/"


# What passes


@pytest.mark.parametrize("fault", [each for each in PASSING if each not in ("whole", "flipped")])
def test_a_failure_that_passes_is_tried_again(server: FaultyServer, fault: str) -> None:
    url = server.url("a.tar")
    describe(url, QUICK)
    server.faults = [fault]
    assert RemoteObject(url, QUICK).read(1000, 100_000) == DATA[1000:101_000]
    assert server.faults == []


@pytest.mark.parametrize("fault", ["silent", "stalled", "slow", "dripping"])
def test_an_answer_that_stalls_or_drips_is_given_up_and_asked_for_again(server: FaultyServer, fault: str) -> None:
    url = server.url("a.tar")
    describe(url, QUICK)
    server.faults = [fault]  # as long as the server runs
    brief = RequestOptions(tries=50, first_delay=0.001, timeout=0.5)
    if fault == "dripping":
        assert read_parsed(url, 1 << 20, bytes, brief) == DATA
    else:
        assert RemoteObject(url, brief).read(1000, 100_000) == DATA[1000:101_000]


def test_bytes_that_are_wrong_once_are_read_again_and_twice_are_an_error(server: FaultyServer) -> None:
    remote = RemoteObject(server.url("a.tar"), QUICK)

    def wrong(found: memoryview) -> ShardwrightError | None:
        return None if found == DATA[:100] else CorruptShardError("wrong bytes")

    server.faults = ["flipped"]
    remote.fill(0, memoryview(bytearray(100)), wrong)
    server.faults = ["flipped", "flipped"]
    with pytest.raises(CorruptShardError, match="wrong bytes"):
        remote.fill(0, memoryview(bytearray(100)), wrong)


def test_delays_double_from_the_first_one_to_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    monkeypatch.setattr(time, "sleep", delays.append)

    def fail() -> None:
        raise ConnectionError("busy")

    with pytest.raises(StorageError, match="gave up after 9 tries"):
        retrying(fail, "http://host/a.tar", "read it", RequestOptions(tries=9, first_delay=1, timeout=1000))
    longest = [1, 2, 4, 8, 16, 30, 30, 30]
    assert all(most / 2 <= delay <= most for delay, most in zip(delays, longest, strict=True))


def test_retries_leave_the_global_random_state_alone(server: FaultyServer) -> None:
    random.seed(7)
    wanted = random.Random(7).random()
    server.faults = ["503", "503;soon"]  # the second asks for a delay that no one can read
    read_range(server.url("a.tar"), 0, 10, QUICK)
    assert random.random() == wanted


# What stays


def test_tries_are_bounded_and_the_error_names_url_tries_and_cure(server: FaultyServer) -> None:
    server.faults = ["503"] * 100
    with pytest.raises(StorageError) as caught:
        read_range(server.url("a.tar"), 0, 10, QUICK)
    assert len(server.requests) == 5
    for part in (server.url("a.tar"), "5 tries", "503", "Check the network"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("404", "a.tar: 404 Not Found; check the url"),
        ("403", "a.tar: 403 Forbidden; .*credentials"),
        ("401", "a.tar: 401 .*credentials"),
        ("204", "a.tar: 204 No Content; the server does not send this object"),
        ("416", "a.tar: 416"),
        ("bare", r"a.tar: 206 with Content-Range '': the server does not say which bytes it sends"),
        ("packed", r"a.tar: the server packs its answers \(Content-Encoding: gzip\); serve it as a plain file"),
        ("page", "a.tar: 28 bytes, but 1010 or more are expected"),
        ("whole", "a.tar: the server does not support ranges"),
        ("shifted", "a.tar: .*gave up.*asked for bytes 1000 to 1010, the server sent 1001 to 1011"),
        ("long", "a.tar: .*gave up.*asked for bytes 1000 to 1010, the server sent 1000 to 2010"),
    ],
)
def test_a_failure_that_stays_is_asked_for_again_and_then_named(server: FaultyServer, fault: str, said: str) -> None:
    server.faults = [fault] * 9
    with pytest.raises(StorageError, match=said):
        RemoteObject(server.url("a.tar"), QUICK).read(1000, 10)
    assert 2 <= len(server.requests) <= 5


def test_an_object_that_is_too_short_is_said(server: FaultyServer, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"300000 bytes, but 300001 "):
        read_range(server.url("a.tar"), 0, len(DATA) + 1, QUICK)
    with pytest.raises(StorageError, match="upload it again"):
        read_range(server.url("a.tar"), len(DATA), 1, QUICK)
    with pytest.raises(StorageError, match=r"empty\.tar: .*gave up after 5 tries .*0 bytes of 10 came"):
        read_range(server.url("empty.tar"), 0, 10, QUICK)
    with pytest.raises(StorageError, match=r"empty\.tar: .*gave up after 5 tries .*the server sent 0 of 10 bytes"):
        download(server.url("empty.tar"), tmp_path / "copy", 10, QUICK)


def test_an_object_that_is_too_large_or_of_no_stated_size_is_said(server: FaultyServer) -> None:
    assert read_parsed(server.url("a.tar"), len(DATA), bytes, QUICK) == DATA
    with pytest.raises(StorageError, match=r"a\.tar: 300,000 bytes.* at most 299,999.*check the url"):
        read_parsed(server.url("a.tar"), len(DATA) - 1, bytes, QUICK)
    server.faults = ["unsized"] * 9
    with pytest.raises(StorageError, match=r"a\.tar: .*not state its size.*serve it .*plain file"):
        describe(server.url("a.tar"), QUICK)


def test_a_full_disk_is_no_fault_of_the_server(server: FaultyServer) -> None:
    with pytest.raises(OSError, match="No space left"):
        download(server.url("a.tar"), Path("/dev/full"), len(DATA), QUICK)
    assert len(server.requests) == 1


def test_a_body_in_gzip_is_unpacked(server: FaultyServer) -> None:
    server.faults = ["packed"]
    with Answer(server.url("a.tar"), QUICK) as answer:
        assert answer.body() == DATA


@pytest.mark.parametrize(
    ("kind", "says"),
    [("refused", "Connection refused"), ("silent", "no answer within"), ("unknown", "Name or service|resol")],
)
def test_a_host_that_never_answers_fails_after_few_tries_with_the_cause(kind: str, says: str) -> None:
    with new_socket(listens=kind == "silent") as silent:
        port = silent.getsockname()[1]
        host = "no-such-host.invalid" if kind == "unknown" else "127.0.0.1"
        with pytest.raises(StorageError, match=says) as caught:
            describe(f"http://{host}:{port}/data", RequestOptions(tries=1000, timeout=1))
    assert re.search(r"gave up after \d tries", str(caught.value))


@pytest.mark.parametrize(
    ("name", "value"),
    [*(("tries", k) for k in (0, 1.5, True)), *(("timeout", k) for k in (0, math.nan, math.inf, "9"))],
)
def test_wrong_limits_are_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be .*, got {value!r}"):
        RequestOptions(**{name: value})


INTERRUPTED = """
import sys
import pipeline
pipeline.TextDataset([f"{sys.argv[1]}/{n}.jsonl" for n in range(3)], "bytes")
"""


def test_ctrl_c_while_a_server_stalls_ends_the_process_at_once() -> None:
    with new_socket() as listening:
        listening.settimeout(60)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with open(os.devnull, "wb") as nothing:
            process = interpreters.Interpreter("-c", INTERRUPTED, url, stdout=nothing.fileno(), stderr=nothing.fileno())
        connection, _ = listening.accept()
        with connection:
            connection.recv(1000)
            process.kill(signal.SIGINT)
            assert process.wait() != 0
        listening.settimeout(0)
        with pytest.raises(BlockingIOError):  # no request was given up and made again
            listening.accept()


# Waits that servers ask for


@pytest.mark.parametrize("fault", ["429;1", "503;1"])
def test_a_wait_that_the_server_asks_for_holds_for_all_requests(server: FaultyServer, fault: str) -> None:
    url = server.url("a.tar")
    describe(url, QUICK)
    server.faults = [fault]
    began = time.monotonic()
    with pytest.raises(StorageError, match="gave up after 1 tries"):
        read_range(url, 0, 10, RequestOptions(tries=1))
    read_range(url, 10, 10, QUICK)
    assert time.monotonic() - began >= 1


def test_a_wait_of_an_hour_is_said_and_bounded(server: FaultyServer, caplog: pytest.LogCaptureFixture) -> None:
    server.faults = ["429;3600"]
    with caplog.at_level(logging.WARNING):
        threading.Thread(target=read_range, args=(server.url("a.tar"), 0, 10, QUICK), daemon=True).start()
        while not caplog.text:
            time.sleep(0.01)
    assert f"{server.root} asks to wait 3600 s: waiting 600 s" in caplog.text


def test_the_longest_wait_that_a_server_asks_for_holds_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    server, began = Server("http://host"), time.monotonic()
    server.postpone(0.2)
    server.postpone(0)
    server.wait()
    assert time.monotonic() - began >= 0.2
    for seconds in (3600, 3600, 100):
        server.postpone(seconds)
    assert caplog.text.count("asks to wait") == 1


# Redirects, proxies, secrets


def test_redirects_take_authorization_to_their_own_server_alone(server: FaultyServer) -> None:
    with running_server() as other:
        other.files = server.files
        server.moved = {"own": server.url("a.tar"), "other": other.url("a.tar"), "round": server.url("round")}
        for name, target, is_sent in (("own", server, True), ("other", other, False)):
            url = server.url(name).replace("http://", "http://me:pa55word@")
            assert read_range(url, 5, 10, QUICK) == DATA[5:15]
            assert ("authorization" in target.asked[-1].headers) == is_sent
            assert [asked.range for asked in (server.asked[-1], target.asked[-1])] == ["bytes=5-14"] * 2
        with pytest.raises(StorageError, match="round: the server redirects without end"):
            describe(server.url("round"), QUICK)


def test_a_proxy_is_used_with_its_password_which_nothing_shows(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = server.root.replace("http://", "http://me:pa55word@")
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    with caplog.at_level(logging.DEBUG):
        assert read_range("http://data.example/a.tar", 0, 10, QUICK) == DATA[:10]
        assert server.asked[-1].headers["proxy-authorization"] == "Basic bWU6cGE1NXdvcmQ="
        server.faults = ["403"] * 9
        with pytest.raises(StorageError) as caught:
            read_range("http://data.example/a.tar", 0, 10, QUICK)
    assert "pa55word" not in "".join(traceback.format_exception(caught.value)) + caplog.text


def test_secrets_of_urls_are_in_no_error_and_no_log(server: FaultyServer, caplog: pytest.LogCaptureFixture) -> None:
    path = "a.tar?X-Signature=5ecret"
    server.files[path] = DATA
    server.moved["b.tar?X-Signature=5ecret"] = server.url(path)
    user = server.root.replace("http://", "http://me:pa55word@")
    said = ""
    with caplog.at_level(logging.DEBUG):
        for name in (path, "b.tar?X-Signature=5ecret"):
            assert read_range(f"{user}/{name}", 0, 10, QUICK) == DATA[:10]
        for url in (f"{user}/{path}", "http://me:pa55word@127.0.0.1:9/a?X-Signature=5ecret"):
            for fault in ("404", "403", "reset", "503", "packed", "page"):
                server.faults = [fault] * 9
                with pytest.raises(ShardwrightError) as caught:
                    RemoteObject(url, RequestOptions(tries=2, first_delay=0.001)).read(1000, 100)
                said += "".join(traceback.format_exception(caught.value))
    assert "urllib3" in {record.name.partition(".")[0] for record in caplog.records}
    for secret in ("5ecret", "pa55word"):
        assert secret not in said + caplog.text
