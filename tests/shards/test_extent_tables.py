"""The table of extents of a dataset is loaded, computed where there is none, kept and fetched."""

from __future__ import annotations

import os
import queue
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

from pipeline.errors import ConfigError, ManifestError, StorageError
from pipeline.shards.extents.file import decode_table, encode_table
from pipeline.shards.extents.indexing import index_dataset
from pipeline.shards.extents.loading import Limits, load_extent_table
from pipeline.shards.extents.table import ExtentTable
from pipeline.shards.manifest import MANIFEST_NAME
from pipeline.shards.reader import read_index
from pipeline.shards.remote.store import Store
from pipeline.shards.resolve import resolve
from pipeline.shards.verify.dataset import verify_dataset
from tests.extent_samples import QUICK, columns, edit_table, kept, load, write_without_table
from tests.faulty_server import FaultyServer, running_server
from tests.shard_samples import make_documents, write_documents


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_without_table(tmp_path / "data")


# Loading


def test_an_indexed_dataset_is_loaded_without_opening_a_shard(dataset: Path, tmp_path: Path) -> None:
    index_dataset(dataset)
    for path in dataset.glob("*.tar"):
        path.unlink()
    table = load(dataset, tmp_path / "cache")
    assert table.shards == 3
    assert load(dataset, tmp_path / "cache", "a-val").extents.tolist() == [1]
    assert not (tmp_path / "cache").exists()


def test_a_dataset_without_a_table_gives_the_same_but_for_the_checksums_of_bytes(dataset: Path, tmp_path: Path) -> None:
    computed = load(dataset, tmp_path / "cache")
    assert computed.crc32 is None
    (place,) = kept(tmp_path / "cache")
    assert encode_table(decode_table(place.read_bytes())) == encode_table(computed)
    index_dataset(dataset)
    assert columns(load(dataset, tmp_path / "cache"), "crc32") == columns(computed, "crc32")


def test_a_kept_table_is_used_until_it_is_damaged(dataset: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    wanted = columns(load(dataset, cache), "crc32")
    (place,) = kept(cache)
    for path in dataset.glob("*.tar"):
        path.rename(path.with_suffix(".away"))
    assert columns(load(dataset, cache), "crc32") == wanted
    for path in dataset.glob("*.away"):
        path.rename(path.with_suffix(".tar"))
    for raw in (b"", place.read_bytes()[:-5], b"\0" * 999):
        place.write_bytes(raw)
        assert columns(load(dataset, cache), "crc32") == wanted
    other = load([dataset / "val-000000.tar"], cache, split="a-val")
    place.write_bytes(encode_table(other))
    assert columns(load(dataset, cache), "crc32") == wanted


def test_a_table_of_few_bytes_is_not_kept(dataset: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    size = sum(path.stat().st_size for path in dataset.glob("train-*.tar"))
    for source in (dataset, f"{dataset}/train-*.tar"):
        for more, times in ((1, 0), (0, 1)):
            load_extent_table(resolve(source, "train", store), store, Limits(keep_bytes=size + more))
            assert len(kept(tmp_path / "cache")) == times
        shutil.rmtree(tmp_path / "cache")
        (dataset / MANIFEST_NAME).unlink(missing_ok=True)


def test_shards_by_list_glob_and_braces_have_the_rows_that_they_have_in_the_table(
    dataset: Path, tmp_path: Path
) -> None:
    index_dataset(dataset)
    cache = tmp_path / "cache"
    whole = load(dataset, cache)
    assert columns(load(f"{dataset}/train-*.tar", cache)) == columns(whole)
    assert columns(load(f"{dataset}/train-{{000000..000001}}.tar", cache)) == columns(whole.select([0, 1]))
    assert columns(load([dataset / "train-000002.tar"], cache)) == columns(whole.select([2]))
    assert whole.select(range(3)) is whole  # whose sums are there
    both = load([dataset / "val-000000.tar", dataset / "train-000000.tar"], cache, split=None)
    assert both.per_shard(both.document_sums).tolist() == [25, 40]


def test_tars_without_a_manifest_are_computed_and_kept_until_one_changes(dataset: Path, tmp_path: Path) -> None:
    index_dataset(dataset)
    cache = tmp_path / "cache"
    wanted = columns(load(dataset, cache), "crc32")
    (dataset / MANIFEST_NAME).unlink()
    spec = f"{dataset}/train-*.tar"
    assert columns(load(spec, cache), "crc32") == wanted
    (place,) = kept(cache)
    before = place.stat().st_mtime_ns
    assert columns(load(spec, cache), "crc32") == wanted
    assert place.stat().st_mtime_ns == before
    place.write_bytes(encode_table(decode_table(place.read_bytes()).select([0])))
    assert columns(load(spec, cache), "crc32") == wanted
    write_documents(dataset / "train-000001.tar", make_documents(3), 40)
    assert load(spec, cache).document_sums[-1] == 73
    assert len(kept(cache)) == 2


@pytest.mark.parametrize("dtype", ["<u2", "<i4"])
def test_tars_of_other_tools_have_a_table_too(tmp_path: Path, dtype: str) -> None:
    documents = [np.arange(count, dtype=dtype) for count in (3, 0, 150_000, 1, 90_000, 90_000, 2)]
    path = tmp_path / "web-000.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for number, document in enumerate(documents):
            writer.write({"__key__": f"{number:06d}", "npy": document, "json": {"n": number}})
    table = load(str(path), tmp_path / "cache")
    assert table.dtype == np.dtype(dtype)
    assert len(table) > 2
    assert table.starts_at.tolist() == table.lengths_at.tolist() == [0]
    index = read_index(path)
    ends = table.offsets + table.sizes
    for extent, first in enumerate(table.first_documents.tolist()):
        mine = slice(first, first + int(table.documents[extent]))
        assert index.starts[mine].min() >= table.offsets[extent]
        assert (index.starts[mine] + index.lengths[mine] * table.itemsize).max() <= ends[extent]
        assert table.tokens[extent] == index.lengths[mine].sum()
    assert int(ends[-1]) <= path.stat().st_size
    os.utime(path, ns=(1, 1))
    assert columns(load(str(path), tmp_path / "cache"), "crc32") == columns(table, "crc32")
    assert len(kept(tmp_path / "cache")) == 2


def test_tars_of_two_dtypes_make_no_stream(tmp_path: Path) -> None:
    write_documents(tmp_path / "a.tar", make_documents(3))
    write_documents(tmp_path / "b.tar", make_documents(3, dtype="<u4"))
    with pytest.raises(ConfigError, match=r"one dtype, .*b\.tar holds uint32, .*a\.tar uint16"):
        load(str(tmp_path), tmp_path / "cache")


def test_a_cache_that_cannot_be_written_costs_only_time(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the directory belongs")
    store = Store(tmp_path / "cache")
    assert load_extent_table(resolve(dataset, "train", store), store, Limits(keep_bytes=0)).shards == 3


def test_long_work_is_reported_with_its_progress_and_its_cure(dataset: Path, tmp_path: Path) -> None:
    reports: queue.SimpleQueue[str] = queue.SimpleQueue()

    class SlowStore(Store):
        def index(self, *arguments: Any) -> Any:
            while reports.empty():  # nothing is read before the first report
                time.sleep(0.01)
            return super().index(*arguments)

    store = SlowStore(tmp_path / "cache")
    load_extent_table(resolve(dataset, "train", store), store, Limits(reports.put, 0.02))
    report = reports.get()
    assert f"{dataset}: no table of extents; 0 of 3 indexes read for it" in report
    assert f"shardwright index {dataset}" in report


# Remote


@pytest.fixture
def server(dataset: Path) -> Any:
    with running_server() as running:
        serve(running, dataset)
        yield running


def serve(server: FaultyServer, dataset: Path) -> None:
    server.objects = {f"data/{path.name}": path.read_bytes() for path in dataset.iterdir()}


def test_a_remote_table_is_fetched_once_and_no_shard_is_asked_for(
    dataset: Path, server: FaultyServer, tmp_path: Path
) -> None:
    index_dataset(dataset)
    serve(server, dataset)
    wanted = columns(load(dataset, tmp_path / "cache"))
    for fetches in (1, 1):
        assert columns(load(server.url("data"), tmp_path / "cache")) == wanted
        assert sum("extents.bin" in path for path, _ in server.requests) == fetches
    assert not any(path.endswith(".tar") for path, _ in server.requests)
    assert list(verify_dataset(server.url("data"), access=QUICK)) == []
    assert list(verify_dataset(server.url("data"), access=QUICK, quick=True)) == []


def test_a_remote_table_that_is_missing_or_damaged_is_named(
    dataset: Path, server: FaultyServer, tmp_path: Path
) -> None:
    index_dataset(dataset)
    serve(server, dataset)
    raw = server.objects["data/extents.bin"]
    server.objects["data/extents.bin"] = raw[:99] + b"\xff\xff" + raw[101:]
    with pytest.raises(ManifestError, match=r"http://.*/data/extents\.bin: digest is"):
        load(server.url("data"), tmp_path / "cache")
    assert kept(tmp_path / "cache") == []
    server.objects["data/extents.bin"] = raw[:-1]
    with pytest.raises(StorageError, match=r"extents\.bin"):
        load(server.url("data"), tmp_path / "cache")
    del server.objects["data/extents.bin"]
    with pytest.raises(ManifestError, match=r"http://.*/data/extents\.bin: not there"):
        load(server.url("data"), tmp_path / "cache")
    (problem,) = verify_dataset(server.url("data"), access=QUICK, quick=True)
    assert problem.shard == server.url("data/extents.bin")
    server.objects["data/extents.bin"] = raw
    edit_table(dataset, "index_crc32", 2, 7)
    serve(server, dataset)
    (problem,) = verify_dataset(server.url("data"), access=QUICK, quick=True)
    assert problem.shard == server.url("data/train-000000.tar")


def test_remote_shards_without_a_table_are_computed_from_their_indexes_alone(
    dataset: Path, server: FaultyServer, tmp_path: Path
) -> None:
    wanted = columns(load(dataset, tmp_path / "local"), "crc32")
    assert columns(load(server.url("data"), tmp_path / "cache"), "crc32") == wanted
    assert server.sent < sum(map(len, server.objects.values())) // 4
    del server.objects["data/manifest.json"]
    spec = server.url("data/train-{000000..000002}.tar")
    assert columns(load(spec, tmp_path / "cache"), "crc32") == wanted
    before = len(server.requests)
    assert columns(load(spec, tmp_path / "cache"), "crc32") == wanted
    assert len(server.requests) - before <= 4  # the manifest that is not there, and the version of each


def test_a_table_of_memory_has_one_shard_and_no_checksum_of_bytes() -> None:
    table = ExtentTable.of_documents(np.array([70_000, 0, 70_000, 70_000]), "<u4")
    assert (table.shards, table.crc32) == (1, None)
    assert table.offsets.tolist() == [0, 280_000, 560_000]
