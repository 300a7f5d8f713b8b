"""A table of extents that is damaged or disagrees with its dataset is refused when loaded, and found by verify."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ManifestError, ShardError
from pipeline.shards.extents.file import EXTENTS_NAME, decode_table
from pipeline.shards.extents.indexing import index_dataset, write_table
from pipeline.shards.extents.table import CHECKSUMS, COUNTS, PER_SHARD, ExtentTable
from pipeline.shards.verify.dataset import Problem, verify_dataset
from tests.extent_samples import edit_table, load, write_without_table
from tests.shard_samples import make_documents, write_dataset


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_without_table(tmp_path / "data")


def test_every_flipped_byte_of_a_table_is_found_when_the_dataset_is_loaded(dataset: Path, tmp_path: Path) -> None:
    index_dataset(dataset)
    path = dataset / EXTENTS_NAME
    raw = path.read_bytes()
    for at in range(0, len(raw), 3):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
        with pytest.raises(ManifestError, match=r"data/extents\.bin: "):
            load(dataset, tmp_path / "cache")
    path.unlink()
    with pytest.raises(ManifestError, match=r"extents\.bin: not there, .*shardwright index .*data"):
        load(dataset, tmp_path / "cache")


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("tokens", -1, r"its extents of train-000000\.tar have \d+ tokens, but the manifest says"),
        ("documents", 1, r"its extents of train-000000\.tar have 41 documents, but the manifest says 40"),
        ("documents", 99, r"lengths_at of shard 1"),
        ("sizes", 512, r"starts_at of shard 1"),
    ],
)
def test_a_table_that_disagrees_with_its_manifest_is_refused(
    dataset: Path, tmp_path: Path, column: str, change: int, message: str
) -> None:
    index_dataset(dataset)
    value = int(getattr(decode_table((dataset / EXTENTS_NAME).read_bytes()), column)[1]) + change
    edit_table(dataset, column, 1, value)
    with pytest.raises(ManifestError, match=message):
        load(dataset, tmp_path / "cache")
    (problem,) = verify_dataset(dataset)
    assert Path(problem.shard).name == EXTENTS_NAME


def test_a_table_of_too_few_shards_or_of_shorter_files_is_refused(dataset: Path, tmp_path: Path) -> None:
    manifest = index_dataset(dataset)
    table = decode_table((dataset / EXTENTS_NAME).read_bytes())
    replace(manifest, extents=write_table(dataset, [table.select([0, 1, 2])], "<u2")).write(dataset)
    with pytest.raises(ManifestError, match="3 shards of uint16, but the manifest has 4 of uint16"):
        load(dataset, tmp_path / "cache")
    bare = replace(table, starts_at=table.starts_at * 0, lengths_at=table.lengths_at * 0)
    replace(manifest, extents=write_table(dataset, [bare], "<u2")).write(dataset)
    with pytest.raises(ManifestError, match=r"puts the index of val-000000\.tar before byte"):
        load(dataset, tmp_path / "cache")


def problems_of(folder: Path, **options: Any) -> list[Problem]:
    return list(verify_dataset(folder, **options))


@pytest.mark.parametrize("column", ["crc32", "index_crc32"])
def test_verify_finds_a_checksum_that_is_not_the_shards(dataset: Path, column: str) -> None:
    index_dataset(dataset)
    assert problems_of(dataset) == []
    edit_table(dataset, column, 2, 7)
    (problem,) = problems_of(dataset)
    table = decode_table((dataset / EXTENTS_NAME).read_bytes())
    assert Path(problem.shard).name == "train-000000.tar"
    assert problem.offset == table.offsets[2]
    assert f"the table of extents says {column} 7 of extent 1, found" in problem.message
    assert bool(problems_of(dataset, quick=True)) is (column == "index_crc32")
    assert problems_of(dataset, workers=2) == [problem]


def test_verify_finds_extents_that_are_cut_elsewhere(dataset: Path) -> None:
    manifest = index_dataset(dataset)
    table = decode_table((dataset / EXTENTS_NAME).read_bytes())
    joined = {name: getattr(table, name).copy() for name in (*PER_SHARD, *COUNTS, *CHECKSUMS)}
    joined["extents"][1] -= 1  # the first two extents of a shard as one: every sum is what it was
    for name in COUNTS:
        joined[name][2] += joined[name][1]
    for name in (*COUNTS, *CHECKSUMS):
        joined[name] = np.delete(joined[name], 1)
    changed = ExtentTable(table.dtype, **joined)
    replace(manifest, extents=write_table(dataset, [changed], "<u2")).write(dataset)
    (problem,) = problems_of(dataset)
    assert Path(problem.shard).name == "train-000000.tar"
    assert "the table of extents says extents" in problem.message


def assert_the_table_is_the_problem(dataset: Path, message: str) -> None:
    (problem,) = problems_of(dataset)
    assert problem.shard == str(dataset / EXTENTS_NAME)
    assert message in problem.message


def test_verify_finds_a_table_that_is_swapped_cut_or_missing(dataset: Path, tmp_path: Path) -> None:
    index_dataset(dataset)
    write_dataset(tmp_path / "other", [make_documents(9)])
    index_dataset(tmp_path / "other")
    table = (dataset / EXTENTS_NAME).read_bytes()
    shutil.copy(tmp_path / "other" / EXTENTS_NAME, dataset)
    assert_the_table_is_the_problem(dataset, "sha256 is")
    (dataset / EXTENTS_NAME).write_bytes(table[:-7])
    assert_the_table_is_the_problem(dataset, "size is")
    (dataset / EXTENTS_NAME).unlink()
    assert_the_table_is_the_problem(dataset, "not there")


def test_verify_blames_a_damaged_shard_and_not_its_table(dataset: Path) -> None:
    index_dataset(dataset)
    path = dataset / "train-000000.tar"
    raw = bytearray(path.read_bytes())
    raw[9_000] ^= 1
    path.write_bytes(raw)
    problems = problems_of(dataset)
    assert problems
    assert not any("table of extents" in problem.message for problem in problems)


def test_documents_that_overlap_have_no_extents() -> None:
    with pytest.raises(ShardError, match=r"a\.tar: its index is wrong"):
        ExtentTable.of_shard(np.array([640, 641]), np.array([2, 2]), "<u2", 4096, indexed=True, name="a.tar")
