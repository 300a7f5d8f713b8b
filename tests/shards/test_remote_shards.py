"""Remote shards, by blocks or whole, give the batches of local ones, through failures, kills and a tight cache."""

from __future__ import annotations

import itertools
import json
import logging
import pickle
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import CorruptShardError, ManifestError, StorageError
from pipeline.shards.extents.file import EXTENTS_NAME
from pipeline.shards.manifest import Manifest, Split
from pipeline.stream.stream import Stream
from tests import interpreters
from tests.faulty_server import FaultyServer, running_server
from tests.shard_samples import index_extents, make_documents, write_dataset

pytestmark = pytest.mark.stacks

EXTENT = 4 << 10
Make = Callable[[Any], Stream]


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with running_server() as running:
        yield running


def serve(server: FaultyServer, folder: Path) -> str:
    for path in folder.iterdir():
        server.objects[f"data/{path.name}"] = path.read_bytes()
    return server.url("data")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    write_dataset(folder, [make_documents(300, seed=seed, longest=200) for seed in range(4)])
    index_extents(folder, EXTENT)
    return folder


def rows(batches: Any) -> list[torch.Tensor]:
    return [batch["input_ids"].clone() for batch in batches]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


STREAMS: dict[str, Make] = {
    "packed": lambda data: data.shuffle(seed=3, lanes=4, window=3).pack(64).batch(8),
    "boundaries": lambda data: data.shuffle(seed=3, lanes=4, window=3).pack(64, boundaries=True).batch(8),
    "documents": lambda data: data.shuffle(seed=3, lanes=4, window=3).documents(max_length=50).batch(8),
    "filtered": lambda data: data.shuffle(seed=3).filter(len, name="any").pack(64).batch(8),
    "small half": lambda data: data.split(val=0.1)[1].shuffle(seed=3, lanes=2, window=2).pack(64).batch(8),
}


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("kind", STREAMS)
def test_batches_are_those_of_the_local_dataset(
    tmp_path: Path, server: FaultyServer, dataset: Path, kind: str, cached: bool
) -> None:
    cache = tmp_path / "cache" if cached else None
    remote = pipeline.ShardDataset(serve(server, dataset), epochs=1, cache_dir=cache)
    assert same(rows(STREAMS[kind](remote)), rows(STREAMS[kind](pipeline.ShardDataset(dataset, epochs=1))))
    whole = [wanted for path, wanted in server.requests if path.endswith(".tar") and str(wanted).startswith("bytes=0-")]
    assert len(whole) <= len(server.objects)  # the first block of each shard, and no shard whole


def test_a_mix_of_remote_sources_gives_the_batches_of_local_ones(
    tmp_path: Path, server: FaultyServer, dataset: Path
) -> None:
    url = serve(server, dataset)

    def mixed(source: Any, **options: Any) -> list[torch.Tensor]:
        sources = {name: pipeline.ShardDataset(source, **options) for name in ("a", "b")}
        stream = pipeline.mix(sources, {"a": 0.7, "b": 0.3}).shuffle(seed=1, lanes=2, window=4).pack(32).batch(8)
        return rows(stream.take(40))

    assert same(mixed(url, cache_dir=None), mixed(dataset))


def test_an_epoch_asks_for_each_byte_of_a_shard_about_once(tmp_path: Path, server: FaultyServer, dataset: Path) -> None:
    url = serve(server, dataset)
    held = sum(path.stat().st_size for path in dataset.glob("*.tar"))
    stream = pipeline.ShardDataset(url, epochs=1, cache_dir=tmp_path / "cache").shuffle(seed=0, lanes=2, window=2)
    rows(stream.pack(64).batch(4))
    small = sum(len(server.objects[f"data/{name}"]) for name in ("manifest.json", EXTENTS_NAME))
    assert server.sent - small <= held


def test_shards_with_and_without_shared_members_stream_as_the_local_ones(tmp_path: Path, server: FaultyServer) -> None:
    folder = tmp_path / "data"
    documents = make_documents(300, longest=300)
    manifests = [write_dataset(folder, [documents], split=f"p{k}", tokens_per_sample=k) for k in (0, 300, 2000)]
    infos = tuple(info for manifest in manifests for info in manifest.shards)
    replace(manifests[0], splits={"train": Split(infos)}).write(folder)
    index_extents(folder, EXTENT)
    remote = pipeline.ShardDataset(serve(server, folder), epochs=1, cache_dir=None)
    assert same(rows(STREAMS["packed"](remote)), rows(STREAMS["packed"](pipeline.ShardDataset(folder, epochs=1))))


def test_a_second_run_with_the_same_cache_asks_for_no_block_again(
    tmp_path: Path, server: FaultyServer, dataset: Path
) -> None:
    url, cache = serve(server, dataset), tmp_path / "cache"
    make = STREAMS["packed"]
    wanted = rows(make(pipeline.ShardDataset(url, epochs=1, cache_dir=cache)))
    server.requests.clear()
    assert same(rows(make(pipeline.ShardDataset(url, epochs=1, cache_dir=cache))), wanted)
    assert [path for path, _ in server.requests if path.endswith(".tar")] == []


def test_a_state_of_a_remote_stream_resumes_on_a_local_copy(
    tmp_path: Path, server: FaultyServer, dataset: Path
) -> None:
    remote = STREAMS["packed"](pipeline.ShardDataset(serve(server, dataset), epochs=1, cache_dir=None))
    iterator = iter(remote)
    first = [next(iterator)["input_ids"].clone() for _ in range(5)]
    local = STREAMS["packed"](pipeline.ShardDataset(dataset, epochs=1))
    local.load_state_dict(remote.state_dict())
    assert same(first + rows(local), rows(STREAMS["packed"](pipeline.ShardDataset(dataset, epochs=1))))


@pytest.mark.parametrize("cached", [True, False])
def test_blocks_come_from_s3_as_boto_signs_it(tmp_path: Path, dataset: Path, s3: dict[str, Any], cached: bool) -> None:
    s3fs = pytest.importorskip("s3fs")
    files = s3fs.S3FileSystem(**s3)
    bucket = f"blocks-{int(cached)}"
    files.mkdir(bucket)
    files.put(str(dataset), f"{bucket}/data", recursive=True)
    cache = tmp_path / "cache" if cached else None
    remote = pipeline.ShardDataset(f"s3://{bucket}/data", epochs=1, cache_dir=cache, storage_options=s3)
    assert same(rows(STREAMS["packed"](remote)), rows(STREAMS["packed"](pipeline.ShardDataset(dataset, epochs=1))))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_s3_works_in_workers_after_use_in_the_parent(dataset: Path, s3: dict[str, Any], method: str) -> None:
    files, bucket = pytest.importorskip("s3fs").S3FileSystem(**s3), f"workers-{method}"
    files.mkdir(bucket)
    files.put(str(dataset), f"{bucket}/data", recursive=True)
    stream = STREAMS["packed"](
        pipeline.ShardDataset(f"s3://{bucket}/data", epochs=1, cache_dir=None, storage_options=s3)
    )
    next(iter(stream))
    loader = DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context=method)
    assert same(rows(loader), rows(STREAMS["packed"](pipeline.ShardDataset(dataset, epochs=1))))


def test_objects_of_s3_are_read_without_loading_a_client_that_takes_as_long_as_a_first_batch(
    dataset: Path, s3: dict[str, Any]
) -> None:
    files = pytest.importorskip("s3fs").S3FileSystem(**s3)
    files.mkdir("light")
    files.put(str(dataset), "light/data", recursive=True)
    code = (
        "import json, pipeline, sys\n"
        "data = pipeline.ShardDataset('s3://light/data', cache_dir=None, storage_options=json.loads(sys.argv[1]))\n"
        "assert next(iter(data.pack(16).batch(2)))['input_ids'].shape == (2, 16)\n"
        "print([name for name in ('s3fs', 'aiohttp', 'aiobotocore') if name in sys.modules])"
    )
    assert interpreters.run("-c", code, json.dumps(s3)).stdout.strip() == "[]"


def test_blocks_come_from_any_file_system_of_fsspec(dataset: Path) -> None:
    files = fsspec.filesystem("memory")
    for path in dataset.iterdir():
        files.pipe(f"/blocks/{path.name}", path.read_bytes())
    remote = pipeline.ShardDataset("memory://blocks", epochs=1, cache_dir=None)
    assert same(rows(STREAMS["packed"](remote)), rows(STREAMS["packed"](pipeline.ShardDataset(dataset, epochs=1))))


# Whole shards


def whole(source: Any, **options: Any) -> list[torch.Tensor]:
    data = pipeline.ShardDataset(source, epochs=1, whole_shards=True, **options)
    return rows(data.shuffle(seed=3, window=2).pack(64).batch(8))


@pytest.mark.parametrize("limit", [None, 3.5])
def test_whole_shards_give_the_batches_of_the_local_dataset_and_are_downloaded_once(
    tmp_path: Path, server: FaultyServer, dataset: Path, limit: float | None
) -> None:
    url, cache = serve(server, dataset), tmp_path / "cache"
    largest = max(info.bytes for info in Manifest.read(dataset).shards)
    server.passing = ["503;0", "short", "reset", "flipped", "429;0"]
    options: dict[str, Any] = {"cache_dir": cache, "cache_limit": None if limit is None else int(limit * largest)}
    assert same(whole(url, **options), whole(dataset))
    if limit is None:
        server.requests.clear()
        assert same(whole(server.url("data/train-{000000..000003}.tar"), **options), whole(dataset))
        assert [path for path, _ in server.requests if path.endswith(".tar")] == []
    else:
        assert sum(path.stat().st_size for path in cache.rglob("*.tar")) <= limit * largest


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loader_workers_share_one_download(tmp_path: Path, server: FaultyServer, dataset: Path, method: str) -> None:
    options: dict[str, Any] = {"epochs": 1, "whole_shards": True, "cache_dir": tmp_path / "cache"}
    stream = pipeline.ShardDataset(serve(server, dataset), **options).shuffle(seed=3, window=2).pack(64).batch(8)
    assert same(
        rows(DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context=method)), whole(dataset)
    )
    starts = [path for path, wanted in server.requests if path.endswith(".tar") and str(wanted).startswith("bytes=0-")]
    assert len(starts) == len(set(starts)) == 4


def test_a_shard_of_the_cache_with_a_wrong_byte_is_named_and_fetched_again(
    tmp_path: Path, server: FaultyServer, dataset: Path
) -> None:
    url, cache = serve(server, dataset), tmp_path / "cache"
    whole(url, cache_dir=cache)
    path = sorted(cache.rglob("*.tar"))[0]
    raw = bytearray(path.read_bytes())
    raw[5000] ^= 1
    path.write_bytes(raw)
    with pytest.warns(UserWarning, match=rf"{path}: damaged in the cache"):
        assert same(whole(url, cache_dir=cache), whole(dataset))


def test_a_server_without_ranges_gives_whole_shards_and_that_is_said_once(
    tmp_path: Path, server: FaultyServer, dataset: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.ranges, url = False, serve(server, dataset)
    for cache in ("a", "b"):
        remote = STREAMS["packed"](pipeline.ShardDataset(url, epochs=1, cache_dir=tmp_path / cache))
        assert same(rows(remote), rows(STREAMS["packed"](pipeline.ShardDataset(dataset, epochs=1))))
    said = f"{url}/train-000000.tar: a server that knows no ranges: shards are downloaded whole"
    assert caplog.messages.count(said) == 1


def test_remote_tars_of_another_tool_stream(tmp_path: Path, server: FaultyServer) -> None:
    import webdataset

    documents = [np.arange(1, n, dtype="<u2") for n in range(2, 60)]
    for shard in range(2):
        with webdataset.TarWriter(str(tmp_path / f"web-{shard}.tar")) as writer:
            for j, document in enumerate(documents[shard::2]):
                writer.write({"__key__": f"{j:04d}", "npy": document})
        server.objects[f"web-{shard}.tar"] = (tmp_path / f"web-{shard}.tar").read_bytes()
    wanted = whole([tmp_path / "web-0.tar", tmp_path / "web-1.tar"])
    assert same(whole(server.url("web-{0..1}.tar"), cache_dir=str(tmp_path / "cache")), wanted)


# Damage


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_shard_that_is_damaged_cut_or_missing_at_the_source_is_named(
    server: FaultyServer, tmp_path: Path, is_whole: bool
) -> None:
    dataset = tmp_path / "data"
    write_dataset(dataset, [make_documents(100, seed=seed) for seed in range(4)])
    url, name = serve(server, dataset), "data/train-000003.tar"
    sound = server.objects[name]

    def read() -> None:
        cache = tmp_path / "cache" if is_whole else None
        data = pipeline.ShardDataset(url, epochs=1, cache_dir=cache, whole_shards=is_whole)
        rows(data.pack(64).batch(8))

    server.objects[name] = sound[:5000] + bytes([sound[5000] ^ 1]) + sound[5001:]
    with pytest.raises(CorruptShardError, match=r"train-000003.*(sha256|checksum).*at the source"):
        read()
    server.objects[name] = sound[:-512]
    with pytest.raises((ManifestError, StorageError), match=r"train-000003.*(the manifest says|are expected)"):
        read()
    del server.objects[name]
    with pytest.raises(StorageError, match=r"train-000003.*404"):
        read()


def test_an_object_that_changes_while_it_is_read_is_an_error_where_nothing_else_tells(
    tmp_path: Path, server: FaultyServer
) -> None:
    write_dataset(tmp_path / "data", [make_documents(900, longest=600)])
    server.objects["a.tar"] = (tmp_path / "data" / "train-000000.tar").read_bytes()
    batches = iter(pipeline.ShardDataset(server.url("a.tar"), cache_dir=None).documents(max_length=600).batch(8))
    next(batches)
    server.objects["a.tar"] = server.objects["a.tar"][::-1]
    with pytest.raises(CorruptShardError, match=r"a\.tar: it changed while it was read"):
        list(itertools.islice(batches, 10_000))


READER = """
import sys, pipeline
data = pipeline.ShardDataset(sys.argv[1], epochs=1, cache_dir=sys.argv[2], whole_shards=bool(int(sys.argv[3])))
print(sum(batch["input_ids"].numel() for batch in data.pack(64).batch(8)), flush=True)
"""


@pytest.mark.parametrize("is_whole", ["1", "0"])
def test_a_kill_while_blocks_or_shards_are_fetched_leaves_nothing_that_is_used(
    tmp_path: Path, server: FaultyServer, dataset: Path, is_whole: str
) -> None:
    url, cache = serve(server, dataset), tmp_path / "cache"
    server.pause = 5.0
    killed = interpreters.Interpreter("-c", READER, url, cache, is_whole, stdout=2, stderr=2)
    while not list(cache.rglob("*.part")):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    server.pause = 0.0
    data = pipeline.ShardDataset(url, epochs=1, cache_dir=cache, whole_shards=is_whole == "1")
    assert same(rows(data.pack(64).batch(8)), rows(pipeline.ShardDataset(dataset, epochs=1).pack(64).batch(8)))
    assert not list(cache.rglob("*.part"))


# Secrets


def test_secrets_of_urls_reach_no_message_state_log_or_file(
    tmp_path: Path, server: FaultyServer, dataset: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, cache = serve(server, dataset).replace("http://", "http://me:pa55word@"), tmp_path / "new" / "cache"
    urls = [f"{url}/train-{number:06d}.tar?X-Signature=5ecret" for number in range(2)]
    for path in dataset.glob("*.tar"):
        server.objects[f"data/{path.name}?X-Signature=5ecret"] = path.read_bytes()
    found: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for source in (url, urls):
            data = pipeline.ShardDataset(source, epochs=1, cache_dir=cache)
            stream = STREAMS["packed"](data)
            next(iter(stream))
            found += [repr(data), repr(stream), str(stream.state_dict()), str(stream.stats())]
            assert b"5ecret" in pickle.dumps(stream) or source == url  # it is needed to go on
    found += [record.getMessage() for record in caplog.records]
    found += [str(path) for path in cache.rglob("*")]
    kept = [path.read_bytes() for path in cache.rglob("*") if path.is_file()]
    for secret in ("pa55word", "5ecret"):
        assert not [text for text in found if secret in text]
        assert not [raw for raw in kept if secret.encode() in raw]
    folders = [cache.parent, cache, *(path for path in cache.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
