"""The stream never ends early: what was cut, swapped or damaged raises a named error when its shard is opened."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import CorruptShardError, ManifestError, ShardError, TruncatedShardError
from pipeline.shards.blocks.local_blocks import LocalBlocks
from pipeline.shards.extents.table_file import table_of_index
from pipeline.shards.format import STARTS_NAME
from pipeline.shards.shard_access import ShardAccess
from tests.helpers.shard_samples import (
    flipped,
    index_extents,
    make_documents,
    read_index,
    write_dataset,
    write_documents,
)
from tests.stream.loaders import assert_raises

BLOCK = 512


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data", [make_documents(12, seed=n) for n in range(4)])
    return tmp_path / "data"


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def member_boundary(path: Path) -> None:
    raw = path.read_bytes()
    offset = BLOCK
    while raw[offset + 257 : offset + 262] != b"ustar" or offset < len(raw) // 3:
        offset += BLOCK
    cut(path, offset)


def index_of(path: Path) -> int:
    """Where the first array of the index begins."""
    with tarfile.open(path) as tar:
        return next(member.offset_data for member in tar if member.name == STARTS_NAME)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut at a member boundary": member_boundary,
    "cut in a header": lambda path: cut(path, path.stat().st_size // 2 // BLOCK * BLOCK + 100),
    "cut in the footer": lambda path: cut(path, path.stat().st_size - 1600),
    "without its end blocks": lambda path: cut(path, path.stat().st_size - 1024),
    "of no bytes": lambda path: cut(path, 0),
    "longer than it was": lambda path: overwrite(path, path.stat().st_size, bytes(BLOCK)),
    "with a zeroed footer": lambda path: overwrite(path, path.stat().st_size - 2048, bytes(1024)),
    "cut in a payload": lambda path: cut(path, BLOCK + 130),
    "with a zeroed index": lambda path: overwrite(path, index_of(path), bytes(BLOCK)),
    "swapped for another": lambda path: shutil.copy(path.with_name("train-000001.tar"), path),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_shard_that_disagrees_with_the_manifest_raises_and_is_named(dataset: Path, damage: str) -> None:
    DAMAGES[damage](dataset / "train-000002.tar")
    stream = pipeline.ShardDataset(dataset, epochs=1).shuffle().pack(8).batch(2)
    kinds = {"cut": TruncatedShardError, "longer": ManifestError, "swapped": ManifestError}
    with pytest.raises(kinds.get(damage.split()[0], ShardError), match=r"train-000002\.tar"):
        list(stream)


def test_a_shard_that_is_cut_while_it_is_read_raises_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    info = write_documents(path, make_documents(12))
    table = table_of_index(read_index(path), path.name)
    blocks = LocalBlocks(table, [str(path)], [info], ShardAccess(use_cache=False))
    runs, out = [(0, len(table.offsets))], memoryview(bytearray(int(table.size_sums[-1])))
    blocks.read(runs, out)
    cut(path, info.bytes // 2)
    with pytest.raises(TruncatedShardError, match=rf"a\.tar: the file ends at byte {info.bytes // 2}, "):
        blocks.read(runs, out)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_shard_raises_on_every_rank_and_none_goes_on_without_it(dataset: Path, workers: int) -> None:
    DAMAGES["with a zeroed index"](dataset / "train-000002.tar")
    for rank in range(3):
        stream = pipeline.ShardDataset(dataset, epochs=1).shuffle(lanes=6).pack(4).shard(rank, 3).batch(1)
        loader = DataLoader(stream, batch_size=None, num_workers=workers)
        assert_raises(ShardError, r"train-000002\.tar: byte \d+: ", loader)


def test_a_flipped_byte_of_any_extent_is_found_when_asked_to_verify(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [make_documents(40)])
    index_extents(tmp_path / "data", 2048)
    path = tmp_path / "data" / "train-000000.tar"
    raw, index = path.read_bytes(), read_index(path)
    for start in index.starts.tolist():
        path.write_bytes(flipped(raw, start))
        with pytest.raises(CorruptShardError, match=r"train-000000\.tar: bytes \d+ to \d+ have checksum"):
            list(pipeline.ShardDataset(tmp_path / "data", epochs=1, verify=True).shuffle(seed=0).pack(8))
    list(pipeline.ShardDataset(tmp_path / "data", epochs=1).pack(8))  # the payload is not looked at otherwise


def test_a_flipped_byte_anywhere_in_footer_or_index_is_found(tmp_path: Path) -> None:
    write_dataset(tmp_path, [make_documents(5)])
    path = tmp_path / "train-000000.tar"
    raw = path.read_bytes()
    footer_at = len(raw) - 2048 + BLOCK
    spans = raw.index(b'"starts"', footer_at), raw.index(b"]", raw.index(b'"table"', footer_at)) + 2
    # Where the parts of the index lie the table of extents says, too.
    places = {*range(footer_at, raw.index(b"}", footer_at) + 1)} - {*range(*spans)}
    for name, width in ((b"__index__/starts", 8), (b"__index__/lengths", 4)):
        first = raw.rindex(name) + BLOCK + 128
        places |= {*range(first, first + 5 * width)}
    for place in sorted(places):
        path.write_bytes(flipped(raw, place))
        with pytest.raises(ShardError, match=r"train-000000\.tar"):
            next(iter(pipeline.ShardDataset(tmp_path).pack(8)))


def test_a_shard_of_another_build_is_never_streamed(tmp_path: Path) -> None:
    documents, name = make_documents(20), "train-000001.tar"
    write_dataset(tmp_path / "a", [documents, documents])
    write_dataset(tmp_path / "b", [documents, [document[::-1].copy() for document in documents]])
    assert (tmp_path / "a" / name).stat().st_size == (tmp_path / "b" / name).stat().st_size
    shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    with pytest.raises(ManifestError, match=rf"{name}.*table_crc32.*another shard"):
        list(pipeline.ShardDataset(tmp_path / "a", epochs=1).pack(8))
    with pytest.raises(ManifestError, match=rf"{name}.*table_crc32"):
        list(pipeline.ShardDataset([tmp_path / "a" / name], epochs=1).documents())


def test_a_shard_that_is_gone_is_named(dataset: Path) -> None:
    (dataset / "train-000001.tar").unlink()
    with pytest.raises(ShardError, match=r"train-000001\.tar: .* not there; copy"):
        list(pipeline.ShardDataset(dataset, epochs=1).pack(8))
    (dataset / "extents.npz").unlink()
    (dataset / "extents.npz").mkdir()
    with pytest.raises(ManifestError, match=r"extents\.npz: cannot be read: .*Is a directory"):
        list(pipeline.ShardDataset(dataset, epochs=1).pack(8))
    (dataset / "extents.npz").rmdir()
    for path in dataset.iterdir():
        path.unlink()
    with pytest.raises(ManifestError, match="no complete dataset"):
        pipeline.ShardDataset(dataset)


def test_empty_shards_one_document_shards_and_fewer_shards_than_ranks(tmp_path: Path) -> None:
    shards = [[], make_documents(1, seed=1), [], make_documents(20, seed=2), make_documents(1, seed=3)]
    write_dataset(tmp_path / "data", shards)
    data = pipeline.ShardDataset(tmp_path / "data", epochs=1).shuffle(window=1)
    ranks = [list(data.pack(4).shard(rank, 5).batch(2)) for rank in range(5)]
    seen = [id for rank in ranks for batch in rank for id in batch["input_ids"].flatten().tolist()]
    assert len(set(map(len, ranks))) == 1
    assert sorted(filter(None, seen)) == sorted(id for shard in shards for document in shard for id in document if id)


def test_a_shard_that_cannot_be_opened_is_named_with_the_cure(dataset: Path) -> None:
    path = dataset / "train-000002.tar"
    shutil.copy(path, dataset / "more.tar")
    with pytest.raises(ManifestError, match=r"more\.tar: .*manifest\.json .*does not name it.*list only shards"):
        pipeline.ShardDataset([path, dataset / "more.tar"])
    with pytest.raises(pipeline.ConfigError, match=r"train-000002\.tar is named twice"):
        pipeline.ShardDataset([dataset, path])
    path.unlink()
    path.symlink_to(path)  # as one without read permission, which root could read
    with pytest.raises(ShardError, match=r"train-000002\.tar: .*; let this user read"):
        list(pipeline.ShardDataset(dataset, epochs=1).pack(8))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list everything")
def test_a_directory_that_cannot_be_listed_is_named_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir(mode=0)
    for source in (tmp_path / "hidden", f"{tmp_path}/hidden/*.tar"):
        with pytest.raises(pipeline.ConfigError, match="hidden: the directory cannot be listed"):
            pipeline.ShardDataset(source)
