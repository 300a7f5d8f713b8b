"""Remote shards read by ranges give the batches of local ones, ask for little before the first, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline
from pipeline.shards.extents.indexing import index_dataset
from pipeline.stream.stream import Stream
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
    index_dataset(folder)
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


def test_the_first_batch_needs_rows_and_indexes_but_no_block(tmp_path: Path, server: FaultyServer) -> None:
    folder = tmp_path / "data"
    write_dataset(folder, [make_documents(3000, seed=seed, longest=200) for seed in range(4)])
    index_extents(folder, EXTENT)
    url = serve(server, folder)
    small = sum(len(server.objects[f"data/{name}"]) for name in ("manifest.json", "extents.bin"))
    held = sum(path.stat().st_size for path in folder.glob("*.tar"))
    batches = iter(pipeline.ShardDataset(url, cache_dir=None).shuffle(seed=0, lanes=16, window=8).pack(64).batch(4))
    next(batches)
    assert server.sent - small < held / 20


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
