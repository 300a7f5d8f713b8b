"""Remote shards arrive whole and once: over a failing http server and a real S3 protocol, from many processes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import CorruptShardError, ManifestError, MissingObjectError, StorageError
from pipeline.shards.format import TAIL
from pipeline.shards.manifest import Manifest, ShardInfo
from pipeline.shards.reader import Shard, read_index
from pipeline.shards.remote.store import Store
from pipeline.shards.remote.transport import Access
from pipeline.shards.urls import expand
from tests.faulty_server import FaultyServer, running_server
from tests.shard_samples import make_documents, write_dataset, write_documents

pytestmark = pytest.mark.stacks

QUICK = Access(tries=6, first_delay=0.001, timeout=10, least_patience=10)
NAME = "train-000000.tar"


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def shard(tmp_path: Path, server: FaultyServer) -> ShardInfo:
    (tmp_path / "source").mkdir()
    info = write_documents(tmp_path / "source" / NAME, make_documents(300, longest=400))
    server.objects[NAME] = (tmp_path / "source" / NAME).read_bytes()
    return info


def test_a_shard_is_downloaded_checked_and_kept(tmp_path: Path, server: FaultyServer, shard: ShardInfo) -> None:
    store = Store(tmp_path / "cache", access=QUICK)
    with store.lease(server.url(NAME), shard) as lease:
        assert lease.path.read_bytes() == server.objects[NAME]
        assert len(Shard(lease.path, shard, verify=True)) == 300
    count = len(server.requests)
    store.lease(server.url(NAME), shard).close()
    assert len(server.requests) == count


@pytest.mark.parametrize("ranges", [True, False])
def test_bytes_are_right_through_every_kind_of_failure(
    tmp_path: Path, server: FaultyServer, shard: ShardInfo, ranges: bool
) -> None:
    server.ranges = ranges
    server.faults = ["429", "short", "503;0", "reset", "short"]
    with Store(tmp_path / "cache", access=QUICK).lease(server.url(NAME), shard) as lease:
        assert lease.path.read_bytes() == server.objects[NAME]
    assert len(server.requests) == 6


def test_a_broken_download_goes_on_where_it_ended(tmp_path: Path, server: FaultyServer, shard: ShardInfo) -> None:
    server.faults = ["short", "503", "503"]
    store = Store(tmp_path / "cache", access=Access(tries=2, first_delay=0.001))
    with pytest.raises(StorageError, match="2 tries"):
        store.lease(server.url(NAME), shard)
    server.faults = []
    with store.lease(server.url(NAME), shard) as lease:
        assert lease.path.read_bytes() == server.objects[NAME]
    assert server.requests[-1][1] == f"bytes={shard.bytes // 2}-{shard.bytes - 1}"


def test_a_damaged_part_is_fetched_anew(tmp_path: Path, server: FaultyServer, shard: ShardInfo) -> None:
    server.faults = ["short", "503"]
    store = Store(tmp_path / "cache", access=Access(tries=2, first_delay=0.001))
    with pytest.raises(StorageError):
        store.lease(server.url(NAME), shard)
    (part,) = (tmp_path / "cache").rglob("part")
    part.write_bytes(b"\0" * part.stat().st_size)
    with store.lease(server.url(NAME), shard) as lease:
        assert lease.path.read_bytes() == server.objects[NAME]


def test_another_object_than_the_manifests_is_refused(tmp_path: Path, server: FaultyServer, shard: ShardInfo) -> None:
    raw = bytearray(server.objects[NAME])
    raw[700] ^= 1
    server.objects[NAME] = bytes(raw)
    with pytest.raises(CorruptShardError, match=r"sha256.*at the source"):
        Store(tmp_path / "cache", access=QUICK).lease(server.url(NAME), shard)
    server.objects[NAME] = bytes(raw)[:-512]
    with pytest.raises(StorageError, match=f"{shard.bytes - 512} bytes, but {shard.bytes} are expected"):
        Store(tmp_path / "cache", access=QUICK).lease(server.url(NAME), shard)
    assert not list((tmp_path / "cache").rglob("*.tar"))


def test_without_a_manifest_a_changed_object_is_fetched_again(
    tmp_path: Path, server: FaultyServer, shard: ShardInfo
) -> None:
    store = Store(tmp_path / "cache", access=QUICK)
    store.lease(server.url(NAME)).close()
    write_documents(tmp_path / "b.tar", make_documents(300, seed=8, longest=400))
    server.objects[NAME] = (tmp_path / "b.tar").read_bytes()
    with store.lease(server.url(NAME)) as lease:
        assert lease.path.read_bytes() == server.objects[NAME]


def test_an_object_that_changes_while_it_is_read_is_not_mixed(
    tmp_path: Path, server: FaultyServer, shard: ShardInfo
) -> None:
    server.faults = ["ok", "short", "changed"]
    store = Store(tmp_path / "cache", access=QUICK)
    with pytest.raises((CorruptShardError, StorageError), match="changed while it was read"):
        store.lease(server.url(NAME))
    with store.lease(server.url(NAME)) as lease:
        assert lease.path.read_bytes() == server.objects[NAME]


def test_the_index_takes_two_small_reads(tmp_path: Path, server: FaultyServer, shard: ShardInfo) -> None:
    store = Store(tmp_path / "cache", access=QUICK)
    index = store.index(server.url(NAME), shard)
    local = read_index(tmp_path / "source" / NAME)
    assert index.starts.tolist() == local.starts.tolist()
    assert index.lengths.tolist() == local.lengths.tolist()
    assert next(wanted for _, wanted in server.requests) == f"bytes={shard.bytes - TAIL}-{shard.bytes - 1}"
    assert len(server.requests) == 2
    with pytest.raises(ManifestError, match="another shard"):
        store.index(server.url(NAME), ShardInfo(NAME, 7, 7, shard.bytes, "0", 7, 7))


def test_a_tar_of_another_tool_is_downloaded_for_its_index(
    tmp_path: Path, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import webdataset

    with webdataset.TarWriter(str(tmp_path / "web.tar")) as writer:
        writer.write({"__key__": "a", "npy": np.arange(5, dtype="<u2")})
    server.objects["web.tar"] = (tmp_path / "web.tar").read_bytes()
    store = Store(tmp_path / "cache", access=QUICK)
    assert store.index(server.url("web.tar")).lengths.tolist() == [5]
    assert store.open(server.url("web.tar")).document(0).tolist() == [0, 1, 2, 3, 4]


def test_an_open_shard_stays_in_the_cache_until_it_is_let_go(
    tmp_path: Path, server: FaultyServer, shard: ShardInfo
) -> None:
    server.objects["b.tar"] = server.objects[NAME]
    store = Store(tmp_path / "cache", cache_limit=int(1.5 * shard.bytes), access=QUICK)
    tokens = store.open(server.url(NAME), shard).tokens
    with pytest.warns(UserWarning, match="cache_limit"):
        store.open(server.url("b.tar"), shard)
    assert len(list((tmp_path / "cache").rglob("*.tar"))) == 2
    del tokens
    server.objects["c.tar"] = server.objects[NAME]
    store.open(server.url("c.tar"), shard)
    assert [path.name for path in (tmp_path / "cache").rglob("*.tar")] == ["c.tar"]


def test_local_paths_need_no_cache(tmp_path: Path, shard: ShardInfo) -> None:
    store = Store(tmp_path / "cache")
    assert len(store.open(str(tmp_path / "source" / NAME), shard, verify=True)) == 300
    assert store.lease(str(tmp_path / "source" / NAME)).path == tmp_path / "source" / NAME
    assert store.lease(f"file://{tmp_path}/source/{NAME}").path == tmp_path / "source" / NAME
    assert not (tmp_path / "cache").exists()


def test_read_ahead_fills_the_cache_and_stays_within_it(tmp_path: Path, server: FaultyServer, shard: ShardInfo) -> None:
    names = [f"{number}.tar" for number in range(5)]
    server.objects.update(dict.fromkeys(names, server.objects[NAME]))
    store = Store(tmp_path / "cache", cache_limit=4 * shard.bytes + 4096, access=QUICK)
    leases = [store.lease(server.url(name), shard) for name in names[:2]]
    for wanted in (["none.tar"], names):  # what is being fetched counts as held, so the one that fails goes first
        store.prefetch([(server.url(name), shard) for name in wanted])
        assert store._read_ahead is not None
        deadline = time.monotonic() + 20
        while store._read_ahead._queued and time.monotonic() < deadline:
            time.sleep(0.01)
    held = [path.name for path in (tmp_path / "cache").rglob("*.tar")]
    assert {"0.tar", "1.tar"} < set(held)
    assert len(held) == 3
    count = len(server.requests)
    store.lease(server.url(held[-1]), shard).close()
    assert len(server.requests) == count
    assert all(lease.path.exists() for lease in leases)


def test_odd_urls_stay_inside_the_cache(tmp_path: Path, server: FaultyServer, shard: ShardInfo) -> None:
    odd = "..%2F..%2Fevil.tar"
    server.objects[odd] = server.objects[NAME]
    with Store(tmp_path / "cache", access=QUICK).lease(server.url(odd), shard) as lease:
        assert lease.path.parent.parent == tmp_path / "cache"
    assert len(list(tmp_path.rglob("*evil*"))) == 1


def _lease_all(store: Store, urls: list[str], info: ShardInfo, results: Any) -> None:
    sizes = []
    for url in urls:
        with store.lease(url, info) as lease:
            sizes.append(len(Shard(lease.path, info, verify=True)))
    results.put(sizes)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_every_start_method_share_one_download(
    tmp_path: Path, server: FaultyServer, shard: ShardInfo, method: str
) -> None:
    server.pause = 0.002
    names = ["a.tar", "b.tar"]
    server.objects.update(dict.fromkeys(names, server.objects[NAME]))
    store = Store(tmp_path / "cache", access=QUICK)
    store.prefetch([])
    context = multiprocessing.get_context(method)
    results = context.Queue()
    arguments = (store, [server.url(name) for name in names], shard, results)
    workers = [context.Process(target=_lease_all, args=arguments) for _ in range(3)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=60) for _ in workers] == [[300, 300]] * 3
    for worker in workers:
        worker.join()
    assert len(server.requests) == 2


READER_AHEAD = """
import pickle, sys
store, wanted = pickle.loads(bytes.fromhex(sys.argv[1]))
store.prefetch(wanted)
sys.stdin.read()
"""


def test_a_process_ends_at_once_while_it_reads_ahead(tmp_path: Path, server: FaultyServer, shard: ShardInfo) -> None:
    server.pause = 100.0
    names = [f"{number}.tar" for number in range(8)]
    server.objects.update(dict.fromkeys(names, server.objects[NAME]))
    wanted = [(server.url(name), shard) for name in names]
    argument = pickle.dumps((Store(tmp_path / "cache", access=QUICK), wanted)).hex()
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", READER_AHEAD, argument], stdin=pipe, stderr=pipe) as process:
        while not server.requests:
            assert process.poll() is None
            time.sleep(0.01)
        assert process.communicate(timeout=60) == (None, b"")  # an answer would take 100 s
    assert process.returncode == 0


def test_signatures_in_urls_stay_out_of_messages(tmp_path: Path, server: FaultyServer) -> None:
    with pytest.raises(StorageError) as caught:
        Store(tmp_path / "cache", access=QUICK).lease(server.url("none.tar?signature=secret"))
    assert "secret" not in str(caught.value)
    assert "none.tar" in str(caught.value)


DOWNLOADER = """
import pickle, sys
store, url, info = pickle.loads(bytes.fromhex(sys.argv[1]))
print("begins", flush=True)
store.lease(url, info)
"""


def test_kill_in_mid_download_leaves_nothing_usable_and_is_taken_up(
    tmp_path: Path, server: FaultyServer, shard: ShardInfo
) -> None:
    server.objects["big.tar"] = big = server.objects[NAME] + bytes(8 << 20)
    server.pause = 0.02
    url, store = server.url("big.tar"), Store(tmp_path / "cache", access=QUICK)
    info = ShardInfo("big.tar", 0, 0, len(big), hashlib.sha256(big).hexdigest(), 0, 0)
    argument = pickle.dumps((store, url, info)).hex()
    process = subprocess.Popen([sys.executable, "-c", DOWNLOADER, argument])
    while not any(path.stat().st_size for path in (tmp_path / "cache").rglob("part")):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not list((tmp_path / "cache").rglob("*.tar"))
    server.pause = 0
    with store.lease(url, info) as lease:
        assert lease.path.read_bytes() == big
    begin = int(str(server.requests[-1][1]).removeprefix("bytes=").split("-")[0])
    assert begin > 0


# S3


def test_a_dataset_on_s3_is_listed_indexed_and_leased(tmp_path: Path, s3: dict[str, Any]) -> None:
    import s3fs

    manifest = write_dataset(tmp_path / "data", [make_documents(50, seed=seed) for seed in range(3)])
    files = s3fs.S3FileSystem(**s3)
    files.mkdir("bucket-a")
    files.put(f"{tmp_path}/data", "bucket-a/data", recursive=True)
    access = Access(tries=3, first_delay=0.01, options=s3)
    store = Store(tmp_path / "cache", access=access)
    directory = "s3://bucket-a/data"
    assert Manifest.read(directory, access).fingerprint == manifest.fingerprint
    urls = expand(directory, access)
    assert urls == [f"{directory}/train-{number:06d}.tar" for number in range(3)]
    assert expand(f"{directory}/train-00000[12].tar", access) == urls[1:]
    for url, info in zip(urls, manifest.split("train").shards, strict=True):
        index = store.index(url, info)
        assert len(index.lengths) == 50
        with store.lease(url, info) as lease:
            assert len(Shard(lease.path, info, verify=True)) == 50
    with pytest.raises(MissingObjectError, match="no such object"):
        Manifest.read("s3://bucket-a/none", access)
    with pytest.raises(StorageError):
        store.lease(f"{directory}/none.tar")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_s3_works_in_child_processes_after_use_in_the_parent(tmp_path: Path, s3: dict[str, Any], method: str) -> None:
    import s3fs

    info = write_documents(tmp_path / "a.tar", make_documents(20))
    files = s3fs.S3FileSystem(**s3)
    bucket = f"bucket-{method}"
    files.mkdir(bucket)
    files.put(f"{tmp_path}/a.tar", f"{bucket}/a.tar")
    store = Store(tmp_path / "cache", access=Access(tries=3, first_delay=0.01, options=s3))
    assert len(store.index(f"s3://{bucket}/a.tar", info).lengths) == 20
    context = multiprocessing.get_context(method)
    results = context.Queue()
    worker = context.Process(target=_lease_all, args=(store, [f"s3://{bucket}/a.tar"], info, results))
    worker.start()
    assert results.get(timeout=60) == [20]
    worker.join()
