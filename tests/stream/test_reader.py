from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline.errors import CorruptShardError, ManifestError, ShardError, TruncatedShardError
from pipeline.shards.reader import Shard, read_index
from tests.shard_samples import index_extents, make_documents, write_dataset, write_documents


def test_documents_are_views_of_the_map_and_equal_what_was_written(tmp_path: Path) -> None:
    documents = make_documents(30, dtype="<u4")
    info = write_documents(tmp_path / "a.tar", documents)
    shard = Shard(tmp_path / "a.tar", info)
    assert shard.dtype == np.uint32
    for j, document in enumerate(documents):
        view = shard.document(j)
        assert np.shares_memory(view, shard.tokens)
        np.testing.assert_array_equal(view, document)


def test_the_index_alone_says_where_documents_lie(tmp_path: Path) -> None:
    documents = make_documents(30)
    write_documents(tmp_path / "a.tar", documents)
    index = read_index(tmp_path / "a.tar")
    raw = (tmp_path / "a.tar").read_bytes()
    for start, length, document in zip(index.starts, index.lengths, documents, strict=True):
        assert raw[start : start + 2 * length] == document.tobytes()


def test_views_outlive_a_closed_shard(tmp_path: Path) -> None:
    documents = make_documents(3)
    shard = Shard(tmp_path / "a.tar", write_documents(tmp_path / "a.tar", documents))
    view = shard.document(2)
    shard.close()
    np.testing.assert_array_equal(view, documents[2])


def test_a_shard_shorter_than_the_manifest_says_is_refused_at_any_cut(tmp_path: Path) -> None:
    info = write_documents(tmp_path / "a.tar", make_documents(5))
    raw = (tmp_path / "a.tar").read_bytes()
    for cut in (0, 1, 511, 512, 1024, 1100, len(raw) // 2, len(raw) - 1024, len(raw) - 1):
        (tmp_path / "b.tar").write_bytes(raw[:cut])
        with pytest.raises(TruncatedShardError, match=r"b\.tar"):
            Shard(tmp_path / "b.tar", info)


def test_a_flipped_byte_anywhere_in_footer_or_index_is_found_at_open(tmp_path: Path) -> None:
    info = write_documents(tmp_path / "a.tar", make_documents(5))
    raw = bytearray((tmp_path / "a.tar").read_bytes())
    lengths_at = raw.rindex(b"__index__/lengths")
    footer_at = len(raw) - 2048
    payload_end = footer_at + 512 + bytes(raw[footer_at + 512 : footer_at + 1024]).index(b"}") + 1
    for place in [*range(lengths_at + 512, lengths_at + 512 + 128 + 20), *range(footer_at + 512, payload_end)]:
        raw[place] ^= 0x04
        (tmp_path / "b.tar").write_bytes(raw)
        raw[place] ^= 0x04
        if place >= footer_at and _tells_only_where_the_table_is(bytes(raw), footer_at, place):
            continue
        with pytest.raises(ShardError):
            Shard(tmp_path / "b.tar", info)


def _tells_only_where_the_table_is(raw: bytes, footer_at: int, place: int) -> bool:
    """The place of the table is checked by `verify`, for streaming never reads it."""
    start = raw.index(b'"table"', footer_at)
    return start <= place < raw.index(b"]", start) + 2


def test_another_shard_of_the_same_size_under_this_name_is_refused(tmp_path: Path) -> None:
    same = [np.arange(9, dtype="<u2"), np.arange(5, dtype="<u2")]
    other = [np.arange(5, dtype="<u2"), np.arange(9, dtype="<u2")]
    info = write_documents(tmp_path / "a.tar", same)
    assert write_documents(tmp_path / "b.tar", other).bytes == info.bytes
    with pytest.raises(ManifestError, match="index_crc32"):
        Shard(tmp_path / "b.tar", info)


@pytest.mark.parametrize("extents", [False, True])
def test_a_shard_of_another_build_with_documents_of_the_same_lengths_is_never_streamed(
    tmp_path: Path, extents: bool
) -> None:
    documents = make_documents(20)
    write_dataset(tmp_path / "a", [documents, documents])
    if extents:
        index_extents(tmp_path / "a", 1024)
    write_dataset(tmp_path / "b", [documents, [document[::-1].copy() for document in documents]])
    name = "train-000001.tar"
    assert (tmp_path / "a" / name).stat().st_size == (tmp_path / "b" / name).stat().st_size
    shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    with pytest.raises(ManifestError, match=rf"{name}.*table_crc32.*another shard lies under this name"):
        list(pipeline.ShardDataset(tmp_path / "a", epochs=1).pack(8))
    with pytest.raises(ManifestError, match=rf"{name}.*table_crc32"):
        list(pipeline.ShardDataset([tmp_path / "a" / name], epochs=1).documents())


def test_a_longer_file_is_refused(tmp_path: Path) -> None:
    info = write_documents(tmp_path / "a.tar", make_documents(5))
    with open(tmp_path / "a.tar", "ab") as file:
        file.write(bytes(512))
    with pytest.raises(ManifestError, match=str(info.bytes)):
        Shard(tmp_path / "a.tar", info)


def test_verify_finds_a_flipped_token_that_opening_cannot_see(tmp_path: Path) -> None:
    info = write_documents(tmp_path / "a.tar", make_documents(5))
    raw = bytearray((tmp_path / "a.tar").read_bytes())
    raw[512 + 128] ^= 1
    (tmp_path / "a.tar").write_bytes(raw)
    Shard(tmp_path / "a.tar", info)
    with pytest.raises(CorruptShardError, match="sha256"):
        Shard(tmp_path / "a.tar", info, verify=True)


def test_each_disagreement_with_the_manifest_is_named(tmp_path: Path) -> None:
    info = write_documents(tmp_path / "a.tar", make_documents(5))
    for field in ("documents", "tokens", "index_crc32", "table_crc32"):
        wrong = info._replace(**{field: getattr(info, field) + 1})
        with pytest.raises(ManifestError, match=field):
            Shard(tmp_path / "a.tar", wrong)


def test_an_empty_shard_opens(tmp_path: Path) -> None:
    info = write_documents(tmp_path / "a.tar", [])
    shard = Shard(tmp_path / "a.tar", info, verify=True)
    assert len(shard) == 0
    assert shard.table() == {"key": [], "crc32": []}
