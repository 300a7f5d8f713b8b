"""Remote datasets by whole shards stream as local ones do: the same batches, through failures, workers and a tight cache."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import CorruptShardError, ManifestError, StorageError
from pipeline.shards.manifest import Manifest
from pipeline.stream.stream import Stream
from tests.faulty_server import FaultyServer, running_server
from tests.shard_samples import make_documents, write_dataset

pytestmark = pytest.mark.stacks

SHARDS = 6


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with running_server() as running:
        yield running


@pytest.fixture
def dataset(tmp_path: Path, server: FaultyServer) -> Path:
    folder = tmp_path / "data"
    write_dataset(folder, [make_documents(150, seed=seed, longest=150) for seed in range(SHARDS)])
    server.objects = {f"data/{path.name}": path.read_bytes() for path in folder.iterdir()}
    return folder


def stream(source: Any, **options: Any) -> Stream:
    return (
        pipeline.ShardDataset(source, epochs=1, whole_shards=True, **options)
        .shuffle(seed=3, window=2)
        .pack(64)
        .batch(8)
    )


def rows(batches: Any) -> list[torch.Tensor]:
    return [batch["input_ids"].clone() for batch in batches]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_a_remote_directory_and_a_remote_range_stream_as_the_local_one(
    tmp_path: Path, server: FaultyServer, dataset: Path
) -> None:
    wanted = rows(stream(dataset))
    cache = str(tmp_path / "cache")
    assert same(rows(stream(server.url("data"), cache_dir=cache)), wanted)
    spec = server.url("data/train-{000000..000005}.tar")
    assert same(rows(stream(spec, cache_dir=cache)), wanted)
    downloads = [path for path, wanted in server.requests if wanted and wanted.startswith("bytes=0-") and "tar" in path]
    assert len(downloads) == SHARDS


def test_a_state_saved_on_a_remote_stream_resumes_on_a_local_copy(
    tmp_path: Path, server: FaultyServer, dataset: Path
) -> None:
    remote = stream(server.url("data"), cache_dir=str(tmp_path / "cache"))
    iterator = iter(remote)
    first = [next(iterator)["input_ids"].clone() for _ in range(5)]
    state = remote.state_dict()
    local = stream(dataset)
    local.load_state_dict(state)
    assert same(first + rows(local), rows(stream(dataset)))


def test_failures_on_the_way_change_nothing(tmp_path: Path, server: FaultyServer, dataset: Path) -> None:
    wanted = rows(stream(dataset))
    server.faults = ["ok", "503;0", "ok", "ok", "short", "reset", "429;0", "ok", "short", "503;0"]
    assert same(rows(stream(server.url("data"), cache_dir=str(tmp_path / "cache"))), wanted)
    assert server.faults == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loader_workers_share_one_cache(tmp_path: Path, server: FaultyServer, dataset: Path, method: str) -> None:
    remote = stream(server.url("data"), cache_dir=str(tmp_path / "cache"))
    loader = DataLoader(remote, batch_size=None, num_workers=2, multiprocessing_context=method)
    assert same(rows(loader), rows(stream(dataset)))
    starts = [path for path, wanted in server.requests if path.endswith(".tar") and str(wanted).startswith("bytes=0-")]
    assert len(starts) == len(set(starts)) == SHARDS


def bytes_held(directory: Path) -> int:
    """Bytes of whole shards; they may vanish while they are counted."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_size if name.endswith(".tar") else 0
    return total


def test_a_cache_smaller_than_the_dataset_stays_within_its_limit(
    tmp_path: Path, server: FaultyServer, dataset: Path
) -> None:
    largest = max(info.bytes for info in Manifest.read(dataset).split("train").shards)
    limit = 5 * largest
    remote = stream(server.url("data"), cache_dir=str(tmp_path / "cache"), cache_limit=limit)
    found, most = [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in remote:
            found.append(batch["input_ids"].clone())
            most = max(most, bytes_held(tmp_path / "cache"))
    assert same(found, rows(stream(dataset)))
    assert most <= limit


def test_the_first_batch_needs_no_more_shards_than_it_reaches(
    tmp_path: Path, server: FaultyServer, dataset: Path
) -> None:
    options: dict[str, Any] = {"cache_dir": str(tmp_path / "cache"), "whole_shards": True}
    unshuffled = pipeline.ShardDataset(server.url("data"), **options).pack(16).batch(1)
    first = next(iter(unshuffled))
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    unshuffled.state_dict()  # the sizes of all shards are known, from their indexes
    for number in range(1, 6):
        del server.objects[f"data/train-{number:06d}.tar"]
    assert same([next(iter(unshuffled))["input_ids"]], [first["input_ids"]])


def test_a_damaged_or_missing_remote_shard_raises_and_never_ends_early(
    tmp_path: Path, server: FaultyServer, dataset: Path
) -> None:
    name = "data/train-000003.tar"
    whole = server.objects[name]
    options: dict[str, Any] = {"cache_dir": str(tmp_path / "cache")}
    broken = bytearray(whole)
    broken[5000] ^= 1
    server.objects[name] = bytes(broken)
    with pytest.raises(CorruptShardError, match=r"train-000003.*sha256"):
        rows(stream(server.url("data"), **options))
    del server.objects[name]
    with pytest.raises(StorageError, match=r"train-000003.*404"):
        rows(stream(server.url("data"), **options))
    del server.objects["data/manifest.json"]
    with pytest.raises(ManifestError, match=r"no manifest\.json"):
        stream(server.url("data"), **options)


def test_remote_tars_of_another_tool_stream(tmp_path: Path, server: FaultyServer) -> None:
    import webdataset

    documents = [np.arange(1, n, dtype="<u2") for n in range(2, 60)]
    for shard in range(2):
        with webdataset.TarWriter(str(tmp_path / f"web-{shard}.tar")) as writer:
            for j, document in enumerate(documents[shard::2]):
                writer.write({"__key__": f"{j:04d}", "npy": document})
        server.objects[f"web-{shard}.tar"] = (tmp_path / f"web-{shard}.tar").read_bytes()
    wanted = rows(stream([tmp_path / "web-0.tar", tmp_path / "web-1.tar"]))
    assert same(rows(stream(server.url("web-{0..1}.tar"), cache_dir=str(tmp_path / "cache"))), wanted)


def test_a_dataset_on_s3_streams_as_the_local_one(tmp_path: Path, dataset: Path) -> None:
    s3fs = pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        options = {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": f"http://{host}:{port}"}}
        files = s3fs.S3FileSystem(**options)
        files.mkdir("corpus")
        files.put(str(dataset), "corpus/fineweb", recursive=True)
        remote = stream("s3://corpus/fineweb", cache_dir=str(tmp_path / "cache"), storage_options=options)
        wanted = rows(stream(dataset))
        assert same(rows(remote), wanted)
        loader = DataLoader(remote, batch_size=None, num_workers=2, multiprocessing_context="fork")
        assert same(rows(loader), wanted)
    finally:
        server.stop()
