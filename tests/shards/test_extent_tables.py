"""The table of extents: written by a build, loaded by streams, refused and found by verify where it is wrong."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

from pipeline.errors import ConfigError, ManifestError, StorageError
from pipeline.shards.extents.table_file import decode_table
from pipeline.shards.manifest import EXTENTS_NAME, MANIFEST_NAME
from pipeline.shards.verify.dataset import Problem, verify_dataset
from tests.helpers.builds import Built
from tests.helpers.corpus import english
from tests.helpers.extent_samples import QUICK, columns, edit_table, load, replace_table, write_two_splits
from tests.helpers.faulty_server import FaultyServer
from tests.helpers.shard_samples import flip, flipped, make_documents, read_index, write_dataset, write_documents


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_two_splits(tmp_path / "data")


def test_a_build_writes_one_table_which_verify_finds_again(tmp_path: Path) -> None:
    sizes = {"tokens_per_shard": 200_000, "tokens_per_sample": 500}
    out = Built.of(tmp_path, [english(k, 40) for k in range(300)], val_fraction=0.1, dedup=False, **sizes)
    table = decode_table((out / EXTENTS_NAME).read_bytes())
    assert len(table) > table.shards > 3
    assert list(verify_dataset(out)) == []


def test_a_dataset_is_loaded_without_opening_a_shard(dataset: Path, tmp_path: Path) -> None:
    for path in dataset.glob("*.tar"):
        path.unlink()
    assert load(dataset, tmp_path / "cache").shards == 3
    assert load(dataset, tmp_path / "cache", "a-val").extents.tolist() == [1]
    assert not (tmp_path / "cache").exists()


def test_shards_by_any_names_have_the_rows_of_the_table(dataset: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    whole = load(dataset, cache)
    assert columns(load(f"{dataset}/train-*.tar", cache)) == columns(whole)
    assert columns(load([dataset / "train-000002.tar"], cache)) == columns(whole.select([2]))
    both = load([dataset / "val-000000.tar", dataset / "train-000000.tar"], cache, split=None)
    assert both.per_shard(both.document_sums).tolist() == [25, 40]


# Tars without a manifest


def test_the_table_of_shards_without_a_manifest_is_that_of_their_indexes(dataset: Path, tmp_path: Path) -> None:
    wanted = columns(load(dataset, tmp_path / "cache"), "crc32")
    (dataset / MANIFEST_NAME).unlink()
    (dataset / EXTENTS_NAME).unlink()
    assert columns(load(f"{dataset}/train-*.tar", tmp_path / "cache"), "crc32") == wanted


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
    assert table.indexed.tolist() == [False]
    index = read_index(path)
    ends = table.offsets + table.sizes
    for extent, first in enumerate(table.document_sums[:-1].tolist()):
        mine = slice(first, first + int(table.documents[extent]))
        assert index.starts[mine].min() >= table.offsets[extent]
        assert (index.starts[mine] + index.lengths[mine] * table.itemsize).max() <= ends[extent]
        assert table.tokens[extent] == index.lengths[mine].sum()
    assert int(ends[-1]) <= path.stat().st_size
    os.utime(path, ns=(1, 1))
    assert columns(load(str(path), tmp_path / "cache")) == columns(table)


def test_tars_of_two_dtypes_make_no_stream(tmp_path: Path) -> None:
    write_documents(tmp_path / "a.tar", make_documents(3))
    write_documents(tmp_path / "b.tar", make_documents(3, dtype="<u4"))
    with pytest.raises(ConfigError, match=r"one dtype, .*b\.tar holds uint32, .*a\.tar uint16"):
        load(str(tmp_path), tmp_path / "cache")


# Damage


def the_problem(folder: Path, **options: Any) -> Problem:
    (problem,) = verify_dataset(folder, **options)
    return problem


def test_a_damaged_table_is_named_when_loaded_and_by_verify(dataset: Path, tmp_path: Path) -> None:
    path = dataset / EXTENTS_NAME
    raw = path.read_bytes()
    write_dataset(tmp_path / "other", [make_documents(9)])
    changed = [flipped(raw, at) for at in range(0, len(raw), 97)]
    for damaged in (*changed, raw[:-7], b"", (tmp_path / "other" / EXTENTS_NAME).read_bytes()):
        path.write_bytes(damaged)
        with pytest.raises(ManifestError, match=r"data/extents\.npz: sha256 .*; copy"):
            load(dataset, tmp_path / "cache")
    assert "but the manifest says" in the_problem(dataset).message
    path.unlink()
    with pytest.raises(ManifestError, match=r"extents\.npz: not there"):
        load(dataset, tmp_path / "cache")
    assert the_problem(dataset).shard == str(path)


@pytest.mark.parametrize("column", ["tokens", "documents"])
def test_a_table_that_disagrees_with_its_manifest_is_refused(dataset: Path, tmp_path: Path, column: str) -> None:
    edit_table(dataset, column, 1, 7)
    with pytest.raises(ManifestError, match=rf"of train-000000\.tar have \d+ {column}, but the manifest says"):
        load(dataset, tmp_path / "cache")
    assert Path(the_problem(dataset).shard).name == EXTENTS_NAME


def test_a_table_of_too_few_shards_and_files_that_are_no_table_are_refused(dataset: Path, tmp_path: Path) -> None:
    table = decode_table((dataset / EXTENTS_NAME).read_bytes())
    replace_table(dataset, table.select([0, 1, 2]))
    with pytest.raises(ManifestError, match=r"3 shards of uint16, .* 4 of uint16"):
        load(dataset, tmp_path / "cache")
    replace_table(dataset, replace(table, documents=table.documents[1:]))
    with pytest.raises(ManifestError, match="documents is no column of the table"):
        load(dataset, tmp_path / "cache")
    with pytest.raises(ManifestError, match="lost: no table of extents"):
        decode_table(b"PK", "lost")


@pytest.mark.parametrize("column", ["crc32", "index_crc32"])
def test_verify_finds_a_checksum_that_is_not_the_shards(dataset: Path, column: str) -> None:
    edit_table(dataset, column, 2, 7)
    problem = the_problem(dataset)
    assert Path(problem.shard).name == "train-000000.tar"
    assert problem.offset == decode_table((dataset / EXTENTS_NAME).read_bytes()).offsets[2]
    assert f"the table of extents says {column} 7 of extent 1, found" in problem.message
    assert bool(list(verify_dataset(dataset, quick=True))) is (column == "index_crc32")


def test_verify_finds_extents_that_are_cut_elsewhere(dataset: Path) -> None:
    table = decode_table((dataset / EXTENTS_NAME).read_bytes())
    joined = {name: getattr(table, name).copy() for name in ("extents", "sizes", "tokens", "documents")}
    joined["extents"][1] -= 1  # the first two extents of a shard as one: every sum is what it was
    for name in ("sizes", "tokens", "documents"):
        joined[name][2] += joined[name][1]
        joined[name] = np.delete(joined[name], 1)
    assert table.crc32 is not None
    sums = {"crc32": np.delete(table.crc32, 1), "index_crc32": np.delete(table.index_crc32, 1)}
    replace_table(dataset, replace(table, **joined, **sums))
    assert "the table of extents says" in the_problem(dataset).message


def test_verify_blames_a_damaged_shard_and_not_its_table(dataset: Path) -> None:
    path = dataset / "train-000000.tar"
    flip(path, 9_000)
    problems = list(verify_dataset(dataset))
    assert problems
    assert not any("table of extents" in problem.message for problem in problems)


# Remote


@pytest.fixture
def server(server: FaultyServer, dataset: Path) -> FaultyServer:
    server.serve(dataset)
    return server


def test_a_remote_table_is_all_that_is_read_and_named_if_wrong(
    dataset: Path, server: FaultyServer, tmp_path: Path
) -> None:
    assert columns(load(server.url("data"), tmp_path / "cache")) == columns(load(dataset, tmp_path / "cache"))
    assert not any(path.endswith(".tar") for path, _ in server.requests)
    for quick in (True, False):
        assert list(verify_dataset(server.url("data"), requests=QUICK, quick=quick)) == []
    raw = server.files["data/extents.npz"]
    server.files["data/extents.npz"] = raw[:99] + b"\xff\xff" + raw[101:]
    with pytest.raises(ManifestError, match=r"http://.*/data/extents\.npz: sha256"):
        load(server.url("data"), tmp_path / "cache")
    server.files["data/extents.npz"] = raw[:-1]
    with pytest.raises(StorageError, match=r"extents\.npz"):
        load(server.url("data"), tmp_path / "cache")
    del server.files["data/extents.npz"]
    with pytest.raises(ManifestError, match=r"http://.*/data/extents\.npz: not there"):
        load(server.url("data"), tmp_path / "cache")


def test_remote_shards_alone_have_the_indexes_table(dataset: Path, server: FaultyServer, tmp_path: Path) -> None:
    wanted = columns(load(dataset, tmp_path / "local"), "crc32")
    del server.files["data/manifest.json"], server.files["data/extents.npz"]
    spec = server.url("data/train-{000000..000002}.tar")
    assert columns(load(spec, tmp_path / "cache"), "crc32") == wanted
    assert server.sent < sum(map(len, server.files.values())) // 4
