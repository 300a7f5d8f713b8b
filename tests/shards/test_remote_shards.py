"""Remote shards, by blocks or whole, give the batches of local ones, through failures, kills and a tight cache."""

from __future__ import annotations

import itertools
import json
import logging
import pickle
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, CorruptShardError, ManifestError, StorageError
from pipeline.shards.manifest import EXTENTS_NAME, Manifest, Split
from pipeline.stream.stream import Stream
from tests.helpers import interpreters
from tests.helpers.faulty_server import FaultyServer
from tests.helpers.shard_samples import flipped, index_extents, make_documents, write_dataset
from tests.helpers.text_streams import ids

Make = Callable[[Any], Stream]


def packed(source: Any, **options: Any) -> Stream:
    return pipeline.ShardDataset(source, epochs=1, **options).shuffle(seed=3, lanes=4, window=3).pack(64).batch(8)


def mixed(data: Any) -> Stream:
    stream = pipeline.mix({"a": data, "b": data}, {"a": 0.7, "b": 0.3}).shuffle(seed=1, lanes=2, window=4)
    return stream.pack(32).batch(8).take(40)


STREAMS: dict[str, Make] = {
    "documents": lambda data: data.shuffle(seed=3, lanes=4, window=3).documents(max_length=50).batch(8),
    "filtered": lambda data: data.shuffle(seed=3).filter(len, name="any").pack(64).batch(8),
    "small half": lambda data: data.split(val=0.1)[1].shuffle(seed=3, lanes=2, window=2).pack(64).batch(8),
    "mixed": mixed,
}


@pytest.mark.parametrize("kind", STREAMS)
def test_batches_are_those_of_local_shards(tmp_path: Path, server: FaultyServer, in_extents: Path, kind: str) -> None:
    epochs = None if kind == "mixed" else 1
    remote = pipeline.ShardDataset(server.serve(in_extents), epochs=epochs, cache_dir=tmp_path / "cache")
    assert ids(STREAMS[kind](remote)) == ids(STREAMS[kind](pipeline.ShardDataset(in_extents, epochs=epochs)))
    whole = [wanted for path, wanted in server.requests if path.endswith(".tar") and str(wanted).startswith("bytes=0-")]
    assert len(whole) <= len(server.files)  # the first block of each shard, and no shard whole


def test_an_epoch_asks_for_each_byte_once(tmp_path: Path, server: FaultyServer, in_extents: Path) -> None:
    url, cache = server.serve(in_extents), tmp_path / "cache"
    small = sum(len(server.files[f"data/{name}"]) for name in ("manifest.json", EXTENTS_NAME))
    wanted = ids(packed(url, cache_dir=cache))
    assert wanted == ids(packed(in_extents))
    assert server.sent - small <= sum(path.stat().st_size for path in in_extents.glob("*.tar"))
    server.asked.clear()
    assert ids(packed(url, cache_dir=cache)) == wanted
    assert [path for path, _ in server.requests if path.endswith(".tar")] == []
    for path in cache.rglob("*.block"):
        path.write_bytes(bytes(path.stat().st_size))  # as a power cut may leave it
    assert ids(packed(url, cache_dir=cache)) == wanted


def test_shards_with_and_without_shared_members_stream_as_the_local_ones(tmp_path: Path, server: FaultyServer) -> None:
    folder = tmp_path / "data"
    documents = make_documents(300, longest=300)
    manifests = [write_dataset(folder, [documents], split=f"p{k}", tokens_per_sample=k) for k in (0, 300, 2000)]
    infos = tuple(info for manifest in manifests for info in manifest.shards)
    replace(manifests[0], splits={"train": Split(infos)}).write(folder)
    index_extents(folder, 4 << 10)
    assert ids(packed(server.serve(folder), cache_dir=None)) == ids(packed(folder))


def test_a_state_of_a_remote_stream_resumes_on_a_local_copy(server: FaultyServer, in_extents: Path) -> None:
    remote, local = packed(server.serve(in_extents), cache_dir=None), packed(in_extents)
    iterator = iter(remote)
    first = ids(itertools.islice(iterator, 5))
    local.load_state_dict(remote.state_dict())
    assert first + ids(local) == ids(packed(in_extents))


@pytest.mark.stacks
def test_blocks_come_from_s3_in_workers_after_use_in_the_parent(in_extents: Path, s3: dict[str, Any]) -> None:
    files = pytest.importorskip("s3fs").S3FileSystem(**s3)
    files.mkdir("blocks")
    files.put(str(in_extents), "blocks/data", recursive=True)
    stream, wanted = packed("s3://blocks/data", cache_dir=None, storage_options=s3), ids(packed(in_extents))
    assert ids(stream) == wanted
    for method in ("fork", "spawn"):
        stream = packed("s3://blocks/data", cache_dir=None, storage_options=s3)
        loader = DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context=method)
        assert ids(loader) == wanted


@pytest.mark.stacks
def test_objects_of_s3_are_read_without_loading_a_client(in_extents: Path, s3: dict[str, Any]) -> None:
    files = pytest.importorskip("s3fs").S3FileSystem(**s3)
    files.mkdir("light")
    files.put(str(in_extents), "light/data", recursive=True)
    code = (
        "import json, pipeline, sys\n"
        "data = pipeline.ShardDataset('s3://light/data', cache_dir=None, storage_options=json.loads(sys.argv[1]))\n"
        "assert next(iter(data.pack(16).batch(2)))['input_ids'].shape == (2, 16)\n"
        "print([name for name in ('s3fs', 'aiohttp', 'aiobotocore') if name in sys.modules])"
    )
    assert interpreters.run("-c", code, json.dumps(s3)).stdout.strip() == "[]"


def test_blocks_come_from_any_file_system_of_fsspec(in_extents: Path) -> None:
    fsspec.filesystem("memory").put(f"{in_extents}/", "/blocks", recursive=True)
    assert ids(packed("memory://blocks", cache_dir=None)) == ids(packed(in_extents))


# Whole shards


def whole(source: Any, **options: Any) -> list[Any]:
    data = pipeline.ShardDataset(source, epochs=1, whole_shards=True, **options)
    return ids(data.shuffle(seed=3, window=2).pack(64).batch(8))


@pytest.mark.parametrize("limit", [None, 3.5])
def test_whole_shards_give_the_local_batches_and_come_once(
    tmp_path: Path, server: FaultyServer, in_extents: Path, limit: float | None
) -> None:
    url, cache = server.serve(in_extents), tmp_path / "cache"
    largest = max(info.bytes for info in Manifest.read(in_extents).shards)
    server.passing = ["503;0", "short", "reset", "flipped", "429;0"]
    options: dict[str, Any] = {"cache_dir": cache, "cache_limit": None if limit is None else int(limit * largest)}
    assert whole(url, **options) == whole(in_extents)
    if limit is None:
        server.asked.clear()
        assert whole(server.url("data/train-{000000..000003}.tar"), **options) == whole(in_extents)
        assert [path for path, _ in server.requests if path.endswith(".tar")] == []
    else:
        assert sum(path.stat().st_size for path in cache.rglob("*.tar")) <= limit * largest


def test_loader_workers_share_one_download(tmp_path: Path, server: FaultyServer, in_extents: Path) -> None:
    options: dict[str, Any] = {"epochs": 1, "whole_shards": True, "cache_dir": tmp_path / "cache"}
    stream = pipeline.ShardDataset(server.serve(in_extents), **options).shuffle(seed=3, window=2).pack(64).batch(8)
    assert ids(DataLoader(stream, batch_size=None, num_workers=2)) == whole(in_extents)
    starts = [path for path, wanted in server.requests if path.endswith(".tar") and str(wanted).startswith("bytes=0-")]
    assert len(starts) == len(set(starts)) == 4


def test_a_server_without_ranges_gives_whole_shards_and_that_is_said_once(
    tmp_path: Path, server: FaultyServer, in_extents: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.ranges, url = False, server.serve(in_extents)
    for cache in ("a", "b"):
        assert ids(packed(url, cache_dir=tmp_path / cache)) == ids(packed(in_extents))
    said = f"{url}/train-000000.tar: a server that knows no ranges: shards are downloaded whole"
    assert caplog.messages.count(said) == 1


def test_remote_tars_of_another_tool_stream(
    tmp_path: Path, server: FaultyServer, caplog: pytest.LogCaptureFixture
) -> None:
    import webdataset

    documents = [np.arange(1, n, dtype="<u2") for n in range(2, 60)]
    for shard in range(2):
        with webdataset.TarWriter(str(tmp_path / f"web-{shard}.tar")) as writer:
            for j, document in enumerate(documents[shard::2]):
                writer.write({"__key__": f"{j:04d}", "npy": document})
        server.files[f"web-{shard}.tar"] = (tmp_path / f"web-{shard}.tar").read_bytes()
    wanted = whole([tmp_path / "web-0.tar", tmp_path / "web-1.tar"])
    assert whole(server.url("web-{0..1}.tar"), cache_dir=str(tmp_path / "cache")) == wanted
    assert caplog.messages == []
    assert ids(packed(server.url("web-0.tar"), cache_dir=tmp_path / "own")) == ids(packed(tmp_path / "web-0.tar"))
    assert caplog.messages == [f"{server.url('web-0.tar')}: tars without an index: shards are downloaded whole"]
    with pytest.raises(ConfigError, match=r"web-0\.tar: it must be downloaded whole, .*give a cache_dir"):
        whole(server.url("web-0.tar"), cache_dir=None)
    named = r"/web: no manifest\.json there, and http .*: \S+/web/name-{000000\.\.000127}\.tar"
    with pytest.raises(ManifestError, match=named):
        whole(server.url("web"))


# Damage


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_damaged_cut_or_missing_remote_shard_is_named(server: FaultyServer, tmp_path: Path, is_whole: bool) -> None:
    dataset = tmp_path / "data"
    write_dataset(dataset, [make_documents(100, seed=seed) for seed in range(4)])
    url, name = server.serve(dataset), "data/train-000003.tar"
    sound = server.files[name]

    def read() -> None:
        cache = tmp_path / "cache" if is_whole else None
        data = pipeline.ShardDataset(url, epochs=1, cache_dir=cache, whole_shards=is_whole)
        ids(data.pack(64).batch(8))

    server.files[name] = flipped(sound, 5000)
    with pytest.raises(CorruptShardError, match=r"train-000003.*(sha256|checksum).*at the source"):
        read()
    server.files[name] = sound[:-512]
    with pytest.raises((ManifestError, StorageError), match=r"train-000003.*(the manifest says|are expected)"):
        read()
    del server.files[name]
    with pytest.raises(StorageError, match=r"train-000003.*404"):
        read()


def test_an_object_that_changes_while_it_is_read_is_an_error(tmp_path: Path, server: FaultyServer) -> None:
    write_dataset(tmp_path / "data", [make_documents(900, longest=600)])
    server.files["a.tar"] = (tmp_path / "data" / "train-000000.tar").read_bytes()
    batches = iter(pipeline.ShardDataset(server.url("a.tar"), cache_dir=None).documents(max_length=600).batch(8))
    next(batches)
    server.files["a.tar"] = server.files["a.tar"][::-1]
    with pytest.raises(CorruptShardError, match=r"a\.tar: it changed while it was read"):
        list(itertools.islice(batches, 10_000))


READER = """
import sys, pipeline
data = pipeline.ShardDataset(sys.argv[1], epochs=1, cache_dir=sys.argv[2], whole_shards=bool(int(sys.argv[3])))
print(sum(batch["input_ids"].numel() for batch in data.pack(64).batch(8)), flush=True)
"""


@pytest.mark.stacks
@pytest.mark.parametrize("is_whole", ["1", "0"])
def test_a_kill_while_shards_are_fetched_leaves_nothing_that_is_used(
    tmp_path: Path, server: FaultyServer, in_extents: Path, is_whole: str
) -> None:
    url, cache = server.serve(in_extents), tmp_path / "cache"
    server.stalled = {path for path in server.files if path.endswith(".tar")}
    killed = interpreters.Interpreter("-c", READER, url, cache, is_whole, stdout=2, stderr=2)
    while not list(cache.rglob("*.part")):
        assert killed.poll() is None
        time.sleep(0.01)
    killed.kill()
    server.stalled.clear()
    data = pipeline.ShardDataset(url, epochs=1, cache_dir=cache, whole_shards=is_whole == "1")
    assert ids(data.pack(64).batch(8)) == ids(pipeline.ShardDataset(in_extents, epochs=1).pack(64).batch(8))
    assert not list(cache.rglob("*.part"))


# Secrets


def test_secrets_of_urls_reach_no_message_state_log_or_file(
    tmp_path: Path, server: FaultyServer, in_extents: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, cache = server.serve(in_extents).replace("http://", "http://me:pa55word@"), tmp_path / "new" / "cache"
    urls = [f"{url}/train-{number:06d}.tar?X-Signature=5ecret" for number in range(2)]
    for path in in_extents.glob("*.tar"):
        server.files[f"data/{path.name}?X-Signature=5ecret"] = path.read_bytes()
    found: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for source in (url, urls):
            stream = packed(source, cache_dir=cache)
            next(iter(stream))
            found += [repr(stream), str(stream.state_dict()), str(stream.stats())]
            assert b"5ecret" in pickle.dumps(stream) or source == url  # it is needed to go on
    found += [record.getMessage() for record in caplog.records]
    found += [str(path) for path in cache.rglob("*")]
    kept = [path.read_bytes() for path in cache.rglob("*") if path.is_file()]
    for secret in ("pa55word", "5ecret"):
        assert not [text for text in found if secret in text]
        assert not [raw for raw in kept if secret.encode() in raw]
    folders = [cache.parent, cache, *(path for path in cache.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
