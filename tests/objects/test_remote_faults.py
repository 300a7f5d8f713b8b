"""Faults of servers, disks and processes, of which ranged reading makes nothing wrong: it goes on, or says what is wrong."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline.errors import CorruptShardError, ManifestError, ShardwrightError, StorageError
from pipeline.shards.remote.access import Access
from pipeline.shards.remote.block_cache import BlockCache
from pipeline.shards.remote.http import server_of
from pipeline.shards.remote.transport import describe, read_range
from tests.faulty_server import FaultyServer, running_server
from tests.objects.remote_blocks import QUICK, block, bring, ranges_of, table_of
from tests.objects.test_remote_ranges import STREAMS, rows, same, serve
from tests.shard_samples import make_documents, write_dataset

pytestmark = pytest.mark.stacks


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    write_dataset(folder, [make_documents(900, seed=seed, longest=600) for seed in range(2)])
    return folder


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize(
    "fault", ["429;0", "500", "503;0", "reset", "short", "long", "shifted", "silent", "slow", "limited"]
)
def test_a_block_comes_right_through_passing_failures(
    server: FaultyServer, dataset: Path, fault: str, checksums: bool
) -> None:
    access = replace(QUICK, least_patience=1.0 if fault in ("silent", "slow") else QUICK.least_patience)
    ranges = ranges_of(dataset, serve(server, dataset), checksums=checksums, access=access)
    assert bring(ranges, 0, 1) == block(dataset, 0, 1)
    server.requests.clear()
    server.faults = [fault, fault]
    began = time.monotonic()
    assert bring(ranges, 1, 2) == block(dataset, 1, 2)
    assert len(server.requests) == 3
    assert time.monotonic() - began < 15


def write_grouped(dataset: Path, tokens_per_sample: int) -> Path:
    write_dataset(dataset, [make_documents(900, longest=600)], tokens_per_sample=tokens_per_sample)
    return dataset


def true_index(dataset: Path, first: int, last: int) -> tuple[bytes, bytes]:
    """Return the index of extents of the first shard, as its file holds it."""
    raw, table = (dataset / "train-000000.tar").read_bytes(), table_of(dataset)
    part = slice(int(table.document_sums[first]), int(table.document_sums[last]))
    starts, lengths = np.frombuffer(raw, "<i8", part.stop, int(table.starts_at[0])), int(table.lengths_at[0])
    return starts[part].tobytes(), np.frombuffer(raw, "<u4", part.stop, lengths)[part].tobytes()


@pytest.mark.parametrize("tokens_per_sample", [0, 300, 60_000])
def test_an_index_comes_right_through_passing_failures(
    tmp_path: Path, server: FaultyServer, tokens_per_sample: int
) -> None:
    dataset = write_grouped(tmp_path / "data", tokens_per_sample)
    ranges = ranges_of(dataset, serve(server, dataset))
    server.faults = ["503", "short", "reset"]
    starts, lengths = ranges.index(0, 1)
    assert (starts.tobytes(), lengths.tobytes()) == true_index(dataset, 0, 1)


def test_damaged_lengths_are_asked_for_again(tmp_path: Path, server: FaultyServer) -> None:
    dataset = write_grouped(tmp_path / "data", 60_000)
    ranges = ranges_of(dataset, serve(server, dataset))
    server.faults = ["flipped"]
    starts, lengths = ranges.index(0, 1)
    assert (starts.tobytes(), lengths.tobytes()) == true_index(dataset, 0, 1)


def test_damage_in_a_block_is_named_by_its_checksum(server: FaultyServer, dataset: Path) -> None:
    url = serve(server, dataset)
    broken = bytearray(server.objects["data/train-000000.tar"])
    broken[5000] ^= 1
    server.objects["data/train-000000.tar"] = bytes(broken)
    with pytest.raises(CorruptShardError, match=r"train-000000\.tar: bytes 0 to \d+ have checksum \d+, but the table"):
        bring(ranges_of(dataset, url), 0, 1)


def test_damage_that_passes_is_fetched_again(server: FaultyServer, dataset: Path) -> None:
    ranges = ranges_of(dataset, serve(server, dataset))
    server.faults = ["flipped"]
    assert bring(ranges, 0, 1) == block(dataset, 0, 1)
    assert len(server.requests) == 2


@pytest.mark.parametrize("checksums", [True, False])
def test_an_object_that_changes_in_mid_run_is_an_error(server: FaultyServer, dataset: Path, checksums: bool) -> None:
    ranges = ranges_of(dataset, serve(server, dataset), checksums=checksums)
    bring(ranges, 0, 1)
    server.faults = ["changed"]
    with pytest.raises(CorruptShardError, match=r"train-000000\.tar: it changed while it was read"):
        bring(ranges, 1, 2)


def test_an_object_of_another_size_is_an_error(server: FaultyServer, dataset: Path) -> None:
    url = serve(server, dataset)
    server.objects["data/train-000000.tar"] += bytes(512)
    with pytest.raises(ManifestError, match="the manifest says"):
        bring(ranges_of(dataset, url), 0, 1)


def test_a_server_without_ranges_gives_whole_shards_and_that_is_said_once(
    tmp_path: Path, server: FaultyServer, dataset: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.ranges = False
    url = serve(server, dataset)
    for cache in ("a", "b"):
        remote = STREAMS["packed"](pipeline.ShardDataset(url, epochs=1, cache_dir=tmp_path / cache))
        assert same(rows(remote), rows(STREAMS["packed"](pipeline.ShardDataset(dataset, epochs=1))))
    assert [record.message for record in caplog.records if "no ranges" in record.message] == [
        f"{url}/train-000000.tar: a server that knows no ranges: shards are downloaded whole"
    ]


@pytest.mark.parametrize("kind", ["refused", "silent", "unknown"])
def test_a_dead_host_fails_soon_with_the_cause(kind: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        if kind == "silent":
            held.listen()
        port = held.getsockname()[1]
        host = "no-such-host.invalid" if kind == "unknown" else "127.0.0.1"
        began = time.monotonic()
        with pytest.raises(StorageError, match=r"refused|no answer within|resol|Name"):
            pipeline.ShardDataset(f"http://{host}:{port}/data", cache_dir=None)
    assert time.monotonic() - began < 15


def test_a_wait_that_the_server_asks_for_holds_for_all_requests(server: FaultyServer, dataset: Path) -> None:
    url = f"{serve(server, dataset)}/manifest.json"
    describe(url, QUICK)
    server.faults = ["429;2"]
    thread = threading.Thread(target=read_range, args=(url, 0, 10, QUICK))
    thread.start()
    while server_of(url).left() <= 0:  # until the thread was asked to wait
        time.sleep(0.01)
    count, left, began = len(server.requests), server_of(url).left(), time.monotonic()
    read_range(url, 0, 10, QUICK)
    assert time.monotonic() - began >= left - 0.01 > 0
    thread.join()
    assert len(server.requests) == count + 2


# The cache on disk


def test_a_full_disk_is_said_once_and_reading_goes_on(
    tmp_path: Path, server: FaultyServer, dataset: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ranges = ranges_of(dataset, serve(server, dataset), BlockCache(tmp_path / "cache", limit=1000))
    with caplog.at_level(logging.WARNING):
        for row in range(2):
            assert bring(ranges, row, row + 1) == block(dataset, row, row + 1)
    assert sum("cannot hold blocks" in record.message for record in caplog.records) == 1


def test_a_damaged_block_of_the_cache_is_fetched_again(tmp_path: Path, server: FaultyServer, dataset: Path) -> None:
    cache = BlockCache(tmp_path / "cache")
    url = serve(server, dataset)
    bring(ranges_of(dataset, url, cache), 0, 1)
    (held,) = (tmp_path / "cache").rglob("*.block")
    for damage in (held.read_bytes()[:-1], bytes(held.stat().st_size)):
        held.write_bytes(damage)
        assert bring(ranges_of(dataset, url, cache), 0, 1) == block(dataset, 0, 1)
    server.requests.clear()
    assert bring(ranges_of(dataset, url, cache), 0, 1) == block(dataset, 0, 1)
    assert server.requests == []


def test_the_cache_stays_within_its_limit_and_drops_what_the_order_needs_last(tmp_path: Path) -> None:
    cache = BlockCache(tmp_path, limit=10_000)

    def put(number: int, due: float) -> None:
        held = cache.bring("shard", f"{number}.block", due, lambda: bytes(2000))
        assert isinstance(held, int)
        os.close(held)
        assert sum(path.stat().st_size for path in tmp_path.rglob("*.block")) <= 10_000

    for number, due in enumerate([1.1, 1.9, 1.2, 1.8, 0.5]):
        put(number, due)
    put(5, 0.51)
    assert "1.block" not in {path.name for path in tmp_path.rglob("*.block")}
    for number in (6, 7):
        put(number, 0.51)
    assert {path.name for path in tmp_path.rglob("*.block")} >= {"4.block", "5.block", "6.block", "7.block"}
    for number in (8, 9):  # what was needed long ago goes before what is needed soon
        put(number, 0.9)
    assert {path.name for path in tmp_path.rglob("*.block")} >= {"8.block", "9.block"}


def test_folders_of_the_cache_are_private_and_tell_nothing_of_the_url(
    tmp_path: Path, server: FaultyServer, dataset: Path
) -> None:
    cache = tmp_path / "new" / "cache"
    stream = STREAMS["packed"](pipeline.ShardDataset(serve(server, dataset), epochs=1, cache_dir=cache))
    rows(stream)
    folders = [cache.parent, cache, *(path for path in cache.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}


READER = """
import sys
from pathlib import Path
from tests.objects.remote_blocks import BlockCache, bring, ranges_of
ranges = ranges_of(Path(sys.argv[1]), sys.argv[2], BlockCache(Path(sys.argv[3])))
print("begins", flush=True)
print(len(bring(ranges, 0, 1)), flush=True)
"""


def test_a_kill_in_the_middle_of_a_block_leaves_nothing_that_is_used(
    tmp_path: Path, server: FaultyServer, dataset: Path
) -> None:
    url, cache = serve(server, dataset), tmp_path / "cache"
    server.pause = 5.0
    arguments = [sys.executable, "-c", READER, str(dataset), url, str(cache)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE)
    while not list(cache.rglob("*.part")):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    assert not list(cache.rglob("*.block"))
    server.pause = 0.0
    assert bring(ranges_of(dataset, url, BlockCache(cache)), 0, 1) == block(dataset, 0, 1)
    assert not list(cache.rglob("*.part"))


def test_processes_that_share_a_cache_fetch_a_block_once(tmp_path: Path, server: FaultyServer, dataset: Path) -> None:
    url = serve(server, dataset)
    server.pause = 0.01
    arguments = [sys.executable, "-c", READER, str(dataset), url, str(tmp_path / "cache")]
    running = [subprocess.Popen(arguments, stdout=subprocess.PIPE) for _ in range(3)]
    sizes = [process.communicate(timeout=60)[0].split()[-1] for process in running]
    assert {int(size) for size in sizes} == {len(block(dataset, 0, 1))}
    assert len(server.requests) == 1


# Secrets


def test_secrets_of_urls_reach_no_message_state_log_or_file(
    tmp_path: Path, server: FaultyServer, dataset: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(server, dataset).replace("http://", "http://me:pa55word@")
    urls = [f"{url}/train-{number:06d}.tar?X-Signature=5ecret" for number in range(2)]
    for path in dataset.glob("*.tar"):
        server.objects[f"data/{path.name}?X-Signature=5ecret"] = path.read_bytes()
    found: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for source in (url, urls):
            data = pipeline.ShardDataset(source, epochs=1, cache_dir=tmp_path / "cache")
            stream = STREAMS["packed"](data)
            batches = iter(stream)
            next(batches)
            found += [repr(data), repr(stream), str(stream.state_dict()), str(stream.stats())]
            assert b"5ecret" in pickle.dumps(stream) or source == url  # it is needed to go on
        nowhere = "http://me:pa55word@127.0.0.1:9/a?X-Signature=5ecret"
        quick = Access(tries=2, first_delay=0.001)
        for fault in ("404", "403", "reset", "503"):
            server.faults = [fault] * 10
            with pytest.raises(ShardwrightError) as caught:
                read_range(urls[0], 0, 10, quick)
            found += traceback.format_exception(caught.value)
        with pytest.raises(ShardwrightError) as caught:
            read_range(nowhere, 0, 1, quick)
        found += traceback.format_exception(caught.value)
    found += [record.getMessage() for record in caplog.records]
    found += [str(path) for path in (tmp_path / "cache").rglob("*")]
    kept = [path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    for secret in ("pa55word", "5ecret"):
        assert not [text for text in found if secret in text]
        assert not [raw for raw in kept if secret.encode() in raw]
