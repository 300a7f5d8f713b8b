"""Token tars of other tools are indexed by a scan, strictly, and the index is kept."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

import pipeline
from pipeline.errors import ConfigError, CorruptShardError, ShardError, StateError, TruncatedShardError
from pipeline.shards.blocks.local_blocks import LocalBlocks
from pipeline.shards.extents.table_file import load_tars
from pipeline.shards.foreign import foreign_index, sample_parts
from pipeline.shards.index import ShardIndex
from pipeline.shards.manifest import ShardInfo
from pipeline.shards.npy import NpyError, parse_npy
from pipeline.shards.shard_access import ShardAccess
from pipeline.shards.writer import write_shard
from tests.helpers import format_samples
from tests.helpers.shard_samples import Shard


def npy(array: Any, version: tuple[int, int] = (1, 0)) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), version=version)
    return file.getvalue()


def tar_of(path: Path, *members: tuple[str, bytes]) -> Path:
    path.write_bytes(format_samples.tar_of(members))
    return path


DOCUMENTS = [np.arange(n, dtype="<u2") for n in (3, 0, 500, 1)]


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "web-000.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for j, document in enumerate(DOCUMENTS):
            writer.write({"__key__": f"part.v1/{j:06d}", "npy": document, "json": {"n": j}})
    return path


def test_a_tar_of_webdatasets_own_writer_is_read_whole(shard: Path) -> None:
    opened = Shard(shard)
    assert [opened.document(j).tolist() for j in range(len(opened))] == [d.tolist() for d in DOCUMENTS]
    assert opened.dtype == np.dtype("<u2")
    with pytest.raises(CorruptShardError, match=rf"{shard}: byte \d+: no index footer at the end; copy it again"):
        opened.table()


@pytest.mark.parametrize(("dtype", "version"), [("|u1", 1), ("<u2", 2), ("<i4", 3), ("<u4", 1), ("<i8", 1)])
def test_every_npy_version_and_integer_width_is_read(tmp_path: Path, dtype: str, version: int) -> None:
    path = tar_of(tmp_path / "a.tar", ("a.ids.npy", npy(np.arange(7, dtype=dtype), (version, 0))))
    assert Shard(path).document(0).tolist() == list(range(7))
    assert Shard(path).dtype == np.dtype(dtype)


class CountingStore(ShardAccess):
    """Notes the urls whose indexes are asked for."""

    asked: list[str]

    def index(self, url: str, expected: ShardInfo | None = None) -> ShardIndex:
        self.asked.append(url)
        return super().index(url, expected)


@pytest.mark.parametrize(("index_bytes", "scans"), [(3 * 16 * 2, 3), (3 * 16 * 2 - 1, 6), (0, 6)])
def test_indexes_in_memory_keep_to_their_limit(tmp_path: Path, index_bytes: int, scans: int) -> None:
    paths = [tar_of(tmp_path / f"{n}.tar", *((f"{j}.npy", npy(DOCUMENTS[j])) for j in (0, 2))) for n in range(3)]
    urls, store = [str(path) for path in paths], CountingStore(use_cache=False)
    store.asked = []
    table, _ = load_tars(urls, store)
    blocks = LocalBlocks(table, urls, [None] * 3, store, index_bytes=index_bytes)
    store.asked.clear()
    for _ in range(2):
        for extent in range(table.shards):
            assert [lengths.tolist() for _, lengths in blocks.index([(extent, extent + 1)])] == [[3, 500]]
    assert len(store.asked) == scans


def mark_kept(kept: Path) -> None:
    """Write other lengths to a kept index, which tell it from a scan of the tar."""
    with np.load(kept) as found:
        arrays = dict(found)
    with kept.open("wb") as file:
        np.savez(file, **{**arrays, "lengths": arrays["lengths"] + 7})


def test_the_index_is_kept_beside_the_tar_and_used(shard: Path) -> None:
    first = foreign_index(shard, shard.parent / "cache")
    assert not (shard.parent / "cache").exists()
    mark_kept(shard.parent / f".{shard.name}.index.npz")
    again = foreign_index(shard)
    assert again.starts.tolist() == first.starts.tolist()
    assert again.lengths.tolist() == [10, 7, 507, 8]


def test_a_changed_tar_is_scanned_again_and_a_cut_one_found(shard: Path) -> None:
    foreign_index(shard)
    stamp = shard.stat().st_mtime_ns
    tar_of(shard, ("a.npy", npy(np.arange(9, dtype="<u2"))))
    os.utime(shard, ns=(stamp, stamp))
    assert foreign_index(shard).lengths.tolist() == [9]
    shard.write_bytes(shard.read_bytes()[:1024])
    with pytest.raises(TruncatedShardError):
        foreign_index(shard)


def test_a_damaged_kept_index_is_made_again(shard: Path) -> None:
    wanted = foreign_index(shard).starts.tolist()
    kept = shard.parent / f".{shard.name}.index.npz"
    for raw in (b"", b"junk", kept.read_bytes()[:-30]):
        kept.write_bytes(raw)
        assert foreign_index(shard).starts.tolist() == wanted


def test_a_folder_that_cannot_be_written_gets_its_index_in_the_cache(shard: Path, tmp_path: Path) -> None:
    (shard.parent / f".{shard.name}.index.npz").mkdir()  # no file can be put there
    foreign_index(shard, tmp_path / "cache")
    (kept,) = (tmp_path / "cache" / "index").iterdir()
    mark_kept(kept)
    assert foreign_index(shard, tmp_path / "cache").lengths.tolist() == [10, 7, 507, 8]


ONE = npy(np.arange(3, dtype="<u2"))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("a.npy", ONE), ("a.npy", ONE)], "'a.npy', byte 1024: duplicate of the member at byte 0"),
        ([("a.npy", ONE), ("b.npy", ONE), ("a.json", b"{}")], "'a.json', byte 2048: key 'a' came before, at byte 0"),
        ([("a.npy", ONE), ("b.json", b"{}")], "sample 'b', byte 1024: no field .npy, only .json"),
        ([("a.json", b"{}")], "sample 'a' has no field .npy, only .json"),
        ([("a.x.npy", ONE), ("a.y.npy", ONE)], "2 fields of arrays .*x.npy, .y.npy"),
        ([("a.npy", ONE), ("b.npy", npy(np.arange(3, dtype="<u4")))], "'b.npy', byte 1536: dtype uint32, .* uint16"),
        ([("a.npy", npy(np.arange(4, dtype=">u2")))], "'a.npy', byte 512: dtype '>u2'"),
        ([("a.npy", npy(np.ones(4)))], "dtype '<f8'"),
        ([("a.npy", npy(np.zeros((2, 2), "<u2")))], r"shape \(2, 2\)"),
        ([("a.npy", npy(np.array(3, "<u2")))], r"shape \(\)"),
        ([("a.npy", ONE[:-1])], "3 items of uint16 take 134 bytes .* is 133"),
        ([("a.npy", b"PK\3\4")], "no npy array"),
        (
            [("a.npy", b"\x93NUMPY\1\0\x77\0" + ONE[10:127] + b"  " + ONE[128:])],
            "byte 512: tokens at byte 641 are not .* 2 b",
        ),
        ([("a.npy", ONE), ("b.npy", b"\x93NUMPY\x09" + ONE[7:])], "'b.npy', byte 1536: npy version 9.0"),
        ([("README", b"hello")], "no samples"),
    ],
)
def test_what_is_no_token_sample_is_refused(tmp_path: Path, members: list[tuple[str, bytes]], message: str) -> None:
    path = tar_of(tmp_path / "a.tar", *members)
    with pytest.raises((ShardError, ConfigError), match=message) as caught:
        foreign_index(path)
    assert str(path) in str(caught.value)


def test_links_are_refused_and_directories_passed_over(path: Path) -> None:
    folder, link = tarfile.TarInfo("web.v1"), tarfile.TarInfo("web.v1/b.npy")
    folder.type, link.type, link.linkname = tarfile.DIRTYPE, tarfile.LNKTYPE, "web.v1/a.npy"
    array = tarfile.TarInfo("web.v1/a.npy")
    array.size = len(ONE)
    members = folder.tobuf() + array.tobuf() + ONE.ljust(512, b"\0")
    path.write_bytes(members + bytes(1024))
    assert len(foreign_index(path).lengths) == 1
    path.write_bytes(members + link.tobuf() + bytes(1024))
    with pytest.raises(ShardError, match=r"b\.npy.*link"):
        foreign_index(path)


def test_names_split_as_webdataset_splits_them() -> None:
    from webdataset.tariterators import base_plus_ext

    for name in ["a.npy", "d.x/a.b.npy", "d.x/a", "./a.npy", "a/b/c.1.json", "noext", "a..npy"]:
        assert (sample_parts(name) or (None, None)) == base_plus_ext(name), name


SHAPES = (b"(True,)", b"(-1,)", b"[1]")


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "dtype '.O'"),
        (b"{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,), }", "no literal"),
        (b"{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (1,), }", "describes no plain array"),
        (b"{'descr': '<u2', 'fortran_order': 0, 'shape': (1,), }", "describes no plain array"),
        *((b"{'descr': '<u2', 'fortran_order': False, 'shape': %b, }" % shape, "no valid shape") for shape in SHAPES),
        (b"{'descr': '<u2', 'shape': (1,), }", "descr, fortran_order and shape"),
        (b"(" * 4097, "npy header of 4097 bytes, more than the 4096"),
        *((header, "no literal") for header in (b"(" * 3000, b"\xff\xfe", b"")),
    ],
)
def test_hostile_npy_headers_are_refused_without_being_run(header: bytes, said: str) -> None:
    raw = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(2)
    with pytest.raises(NpyError, match=said):
        parse_npy(raw, len(raw))


def test_an_npy_header_that_is_longer_than_the_payload_is_refused() -> None:
    with pytest.raises(NpyError, match="4294967295"):
        parse_npy(b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(100), 112)
    usual = b"{'descr': '<u2', 'fortran_order': False, 'shape': (0,), }".ljust(4096)  # the longest that is read
    raw = b"\x93NUMPY\x01\x00" + (4096).to_bytes(2, "little") + usual
    assert parse_npy(raw, len(raw)) == (np.dtype("<u2"), 0, 4106)
    with pytest.raises(NpyError, match=r"npy header of 4096 bytes .*payload of 4105"):
        parse_npy(raw[:-1], len(raw) - 1)
    with pytest.raises(NpyError, match=r"no npy array: it begins with b'.x93NUMPY.x01.x00'"):
        parse_npy(raw[:11], 11)


def rewrite(path: Path, change: str, kind: str) -> None:
    """Write a tar of the documents, changed in one of them, with the same names and lengths (other keys: of equal length)."""
    documents = [np.arange(n, dtype="<u2") % 97 + 1 for n in (40, 900, 40)]
    keys = ["000", "001", "002"]
    if change == "tokens":
        documents[0][3] += 1
    elif change == "the last token":
        documents[1][-1] += 1
    elif change == "a key":
        keys[1] = "00x"
    if kind == "own":
        write_shard(path, tokens=np.concatenate(documents), lengths=[40, 900, 40], keys=sorted(keys))
    else:
        tar_of(path, *((f"{key}.npy", npy(document)) for key, document in zip(keys, documents, strict=True)))


@pytest.mark.parametrize("kind", ["own", "foreign"])
@pytest.mark.parametrize("change", ["tokens", "the last token", "a key"])
def test_tars_without_a_manifest_are_known_by_their_contents(tmp_path: Path, change: str, kind: str) -> None:
    def stream(folder: Path) -> pipeline.Stream:
        return pipeline.ShardDataset(sorted(folder.glob("*.tar")), eos_id=0).shuffle(seed=1, lanes=2).pack(16)

    (tmp_path / "a").mkdir()
    for name in ("x.tar", "y.tar"):
        rewrite(tmp_path / "a" / name, "", kind)
    state = stream(tmp_path / "a").state_dict()
    shutil.copytree(tmp_path / "a", tmp_path / "copy", copy_function=shutil.copyfile)
    stream(tmp_path / "copy").load_state_dict(state)
    sizes = [path.stat().st_size for path in sorted((tmp_path / "a").iterdir())]
    rewrite(tmp_path / "a" / "y.tar", change, kind)
    assert [path.stat().st_size for path in sorted((tmp_path / "a").iterdir())] == sizes
    with pytest.raises(StateError, match="data was"):
        stream(tmp_path / "a").load_state_dict(state)


@pytest.mark.parametrize("kind", ["own", "foreign"])
def test_a_tar_that_is_rewritten_while_it_is_streamed_is_an_error(tmp_path: Path, kind: str) -> None:
    for name in ("x.tar", "y.tar"):
        rewrite(tmp_path / name, "", kind)
    stream = pipeline.ShardDataset(tmp_path, eos_id=0, epochs=1).pack(16)
    whole = [item["input_ids"].tolist() for item in stream]
    assert len(whole) == 123
    rewrite(tmp_path / "y.tar", "tokens", kind)
    size = (tmp_path / "y.tar").stat().st_size
    said = rf"y\.tar was written since .*\({size} bytes then, {size} now\).*make the stream again"
    for again in (stream, pickle.loads(pickle.dumps(stream))):
        with pytest.raises(ShardError, match=said):
            list(again)
    (tmp_path / "y.tar").unlink()
    with pytest.raises(ShardError, match=rf"y\.tar was written since .*\({size} bytes then, gone now\)"):
        list(stream)
