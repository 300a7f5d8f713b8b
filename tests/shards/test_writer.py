from __future__ import annotations

import hashlib
import resource
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError
from pipeline.shards.format import member_header, npy_header
from pipeline.shards.shard_plan import lay_out
from pipeline.shards.writer import TokenBlocks, write_shard
from tests.helpers.shard_samples import Shard, make_documents, write_documents


def test_tarfile_reads_every_member_and_equal_documents_give_equal_bytes(tmp_path: Path) -> None:
    documents = make_documents(20)
    info = write_documents(tmp_path / "a.tar", documents)
    raw = (tmp_path / "a.tar").read_bytes()
    assert write_documents(tmp_path / "b.tar", documents) == info._replace(name="b.tar")
    assert (info.sha256, info.bytes) == (hashlib.sha256(raw).hexdigest(), len(raw))
    assert (info.name, info.documents, info.tokens) == ("a.tar", 20, sum(map(len, documents)))
    with tarfile.open(tmp_path / "a.tar") as tar:
        members = tar.getmembers()
        assert [m.name for m in members[20:]] == [f"__index__/{n}" for n in "starts lengths documents footer".split()]
        assert {(m.mtime, m.uid, m.gid, m.mode, tuple(m.pax_headers)) for m in members} == {(0, 0, 0, 0o644, ())}
        tar.extractall(tmp_path / "out", filter="data")
    for member, document in zip(members, documents, strict=False):
        np.testing.assert_array_equal(np.load(tmp_path / "out" / member.name, allow_pickle=False), document)
    assert np.load(tmp_path / "out/__index__/lengths").tolist() == [len(d) for d in documents]


def test_headers_equal_those_of_tarfile_and_numpy() -> None:
    entry = tarfile.TarInfo("000000000007.npy")
    entry.size = 123_456
    theirs, ours = entry.tobuf(tarfile.USTAR_FORMAT), member_header(entry.name, entry.size)
    ours_read, theirs_read = (tarfile.TarInfo.frombuf(each, "ascii", "strict").get_info() for each in (ours, theirs))
    assert ours_read == theirs_read
    assert len(npy_header("<u2", 10**9)) == 128


@pytest.mark.parametrize(("name", "size"), [("x" * 101, 1), ("x", 1 << 33)])
def test_a_member_that_ustar_cannot_hold_is_refused(name: str, size: int) -> None:
    with pytest.raises(ValueError, match="ustar"):
        member_header(name, size)


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(0, 30), max_size=30), group=st.integers(0, 60), wide=st.booleans())
def test_whatever_the_grouping_every_document_comes_back(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], group: int, wide: bool
) -> None:
    path = tmp_path_factory.mktemp("w") / "a.tar"
    dtype = np.uint32 if wide else np.uint16
    tokens = np.arange(sum(lengths), dtype=dtype)
    keys = [f"{j:04d}" for j in range(len(lengths))]
    table = {"id": keys}
    info, _ = write_shard(path, tokens=tokens, lengths=lengths, keys=keys, table=table, tokens_per_sample=group)
    blocks = TokenBlocks(dtype, np.array_split(tokens, 1 + group % 7))
    other = path.with_name("b.tar")
    write_shard(other, tokens=blocks, lengths=lengths, keys=keys, table=table, tokens_per_sample=group)
    assert other.read_bytes() == path.read_bytes()
    shard = Shard(path, info)
    ends = np.cumsum([0, *lengths])
    for j in range(len(lengths)):
        np.testing.assert_array_equal(shard.document(j), tokens[ends[j] : ends[j + 1]])
    assert shard.table()["id"] == keys
    with tarfile.open(path) as tar:
        samples = [m for m in tar.getmembers() if m.name.endswith(".npy")]
    assert len(samples) == len(lengths) if group == 0 else len(samples) <= len(lengths)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.zeros(3, np.int64)}, "got <i8, 1-D"),
        ({"tokens": np.zeros((3, 1), np.uint16)}, "1-D array of <u2 or <u4, got <u2, 2-D"),
        ({"lengths": [1, 1]}, "sum to 2 tokens, but 3"),
        ({"lengths": [4, -1]}, r"lengths must be 0 to 2\*\*32 - 1, got -1 to 4"),
        ({"tokens": TokenBlocks("<u2", []), "lengths": [0, 1 << 32]}, "got 0 to 4294967296"),
        ({"tokens": TokenBlocks("<u2", [np.zeros(2, "<u2")])}, "sum to 3 tokens, but the blocks held fewer"),
        ({"tokens": TokenBlocks("<u2", [np.zeros(2, "<u2")] * 2)}, "sum to 3 tokens, but the blocks held more"),
        ({"tokens": TokenBlocks("<u2", [np.zeros(3, "<u4")])}, "block of tokens is <u4, but <u2 was announced"),
        ({"tokens": TokenBlocks("<i8", [])}, "got <i8, 1-D"),
        ({"keys": ["a"]}, "'keys' has 1 values for 2"),
        ({"keys": ["b", "a"]}, "'a' follows 'b'"),
        ({"keys": ["a", "a"]}, "'a' follows 'a'"),
        ({"keys": ["a.b", "c"]}, "without dots"),
        ({"keys": ["a/b", "c"]}, "without dots"),
        ({"keys": ["__a", "b"]}, "not starting"),
        ({"table": {"id": [1]}}, "'id' has 1 values for 2"),
    ],
)
def test_what_would_make_a_bad_shard_is_refused_with_its_value(tmp_path: Path, change: dict, message: str) -> None:
    arguments = {"tokens": np.zeros(3, np.uint16), "lengths": [1, 2], "keys": ["a", "b"], **change}
    with pytest.raises(ConfigError, match=message):
        write_shard(tmp_path / "a.tar", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_half_way_leaves_neither_shard_nor_temporary(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_documents(tmp_path / "a.tar", make_documents(50))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [p.name for p in tmp_path.iterdir()] == ["a.tar"]
    assert (tmp_path / "a.tar").read_bytes() == b"before"


# Documents are cut into shards of balanced sizes, in order, each of one source.


@pytest.mark.parametrize("documents", [999, 1_000, 1_001, 1_499, 1_501])
def test_no_shard_is_a_runt(documents: int) -> None:
    lengths = np.full(documents, 7, dtype=np.int64)
    sizes = [shard.last - shard.first for shard in lay_out(lengths, "train", 700)]
    assert len(sizes) == round(documents * 7 / 700)
    assert max(sizes) - min(sizes) <= 1


def test_documents_larger_than_a_shard_get_one_each() -> None:
    shards = lay_out(np.array([1_000, 1_000, 1_000]), "val", 100)
    assert [(shard.first, shard.last) for shard in shards] == [(0, 1), (1, 2), (2, 3)]
    assert shards[0].name == "val-000000.tar"


@pytest.mark.parametrize(("documents", "shards"), [(10, 1), (3_000, 3), (100_000, 16)])
def test_a_small_dataset_is_cut_to_shuffle_well(documents: int, shards: int) -> None:
    assert len(lay_out(np.full(documents, 100), "train", None)) == shards


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 300), min_size=1, max_size=30)), max_size=8),
    st.integers(1, 2_000),
)
def test_shards_of_sources_hold_each_document_once(runs: list[tuple[str, list[int]]], tokens: int) -> None:
    lengths = np.array([length for _, held in runs for length in held], np.int64)
    names = [name for name, held in runs for _ in held]
    shards = lay_out(lengths, "train", tokens, [(name, len(held)) for name, held in runs])
    assert [k for shard in shards for k in range(shard.first, shard.last)] == list(range(len(lengths)))
    for shard in shards:
        assert shard.first < shard.last
        assert set(names[shard.first : shard.last]) == {shard.source}


# Our shards are plain: readers that know nothing of us see every document and nothing else.


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_webdataset_alone_decodes_every_document_in_order(tmp_path: Path, dtype: str) -> None:
    import webdataset

    documents = make_documents(40, dtype=dtype)
    write_documents(tmp_path / "train-000000.tar", documents)
    samples = list(webdataset.WebDataset(str(tmp_path / "train-000000.tar"), shardshuffle=False).decode())
    assert [s["__key__"] for s in samples] == [f"{j:012d}" for j in range(40)]
    for sample, document in zip(samples, documents, strict=True):
        np.testing.assert_array_equal(sample["npy"], document)


def test_hugging_face_datasets_decodes_every_document_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    documents = make_documents(40)
    write_documents(tmp_path / "train-000000.tar", documents)
    options = {"data_files": {"train": str(tmp_path / "*.tar")}, "split": "train", "cache_dir": str(tmp_path / "cache")}
    rows = list(datasets.load_dataset("webdataset", **options))
    assert [row["__key__"] for row in rows] == [f"{j:012d}" for j in range(40)]
    for row, document in zip(rows, documents, strict=True):
        np.testing.assert_array_equal(np.asarray(row["npy"]), document)
