"""The cut of shards into extents: every rule, every sum; and the table in memory and in its file."""

from __future__ import annotations

import zlib
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.errors import CorruptShardError
from pipeline.shards.extents.extent_table import CHECKSUMS, COUNTS, EXTENT_BYTES, PER_SHARD, ExtentTable, cut_extents
from pipeline.shards.extents.table_file import decode_table, encode_table, table_of_index
from pipeline.shards.writer import write_shard
from tests.helpers.shard_samples import read_index

KIB = 1024
# Tokens of documents: empty, short, about an extent, longer than several.
TOKENS = st.one_of(st.just(0), st.integers(1, 400), st.integers(90 * KIB, 100 * KIB), st.integers(200 * KIB, 400 * KIB))
LENGTHS = st.lists(st.tuples(TOKENS, st.integers(1, 60)), max_size=12)
FEW_LENGTHS = st.lists(st.tuples(TOKENS, st.integers(1, 4)), max_size=6)


def laid_out(lengths: list[int], itemsize: int, grouped: int) -> tuple[NDArray[np.int64], int]:
    """Return where documents begin, and the payload's size, in a tar of ``grouped`` documents a member."""
    starts, at = [], 0
    for first in range(0, len(lengths), grouped):
        at += 512 + 128
        for length in lengths[first : first + grouped]:
            starts.append(at)
            at += length * itemsize
        at += -at % 512
    return np.array(starts, np.int64), at


def defined_cut(starts: NDArray[np.int64], lengths: list[int], itemsize: int, size: int) -> list[int]:
    """Cut as the definition reads, one extent after the other, in exact fractions."""
    if not lengths:
        return []
    extents = max(1, (2 * size + EXTENT_BYTES) // (2 * EXTENT_BYTES))
    ends = [start + length * itemsize for start, length in zip(starts.tolist(), lengths, strict=True)]
    runs, first = [], 0
    for extent in range(extents):
        limit = Fraction((extent + 1) * size, extents)
        last = next((k for k, end in enumerate(ends) if end >= limit), len(ends) - 1)
        if last >= first:
            runs.append(first)
            first = last + 1
    kept = runs[:1]
    for run in runs[1:]:
        if (starts[kept[-1]] if kept[-1] else 0) < starts[run] < size:
            kept.append(run)
    return kept


def expanded(runs: list[tuple[int, int]]) -> list[int]:
    return [length for length, times in runs for _ in range(times)]


@settings(max_examples=40, deadline=None)
@given(runs=LENGTHS, itemsize=st.sampled_from([1, 2, 4, 8]), grouped=st.sampled_from([1, 3, 1000]))
def test_extents_are_cut_as_defined(runs: list[tuple[int, int]], itemsize: int, grouped: int) -> None:
    lengths = expanded(runs)
    starts, size = laid_out(lengths, itemsize, grouped)
    firsts = cut_extents(starts, np.array(lengths, np.int64), itemsize, size)
    assert firsts.dtype == np.int64
    assert firsts.tolist() == defined_cut(starts, lengths, itemsize, size)


@settings(max_examples=150, deadline=None)
@given(runs=LENGTHS, itemsize=st.sampled_from([2, 4]), grouped=st.sampled_from([1, 3, 1000]))
def test_extents_tile_a_shard_and_none_is_empty(runs: list[tuple[int, int]], itemsize: int, grouped: int) -> None:
    lengths = np.array(expanded(runs), np.int64)
    starts, size = laid_out(lengths.tolist(), itemsize, grouped)
    table = ExtentTable.of_shard(starts, lengths, f"<u{itemsize}", size, indexed=True)
    assert (table.documents > 0).all()
    assert (table.sizes > 0).all()
    assert table.per_shard(table.size_sums).tolist() == [size if len(lengths) else 0]
    assert table.per_shard(table.token_sums).tolist() == [lengths.sum()]
    assert table.per_shard(table.document_sums).tolist() == [len(lengths)]
    ends = table.offsets + table.sizes
    assert table.offsets[1:].tolist() == ends[:-1].tolist()
    for extent, first in enumerate(table.document_sums[:-1].tolist()):
        mine = slice(first, first + int(table.documents[extent]))
        assert table.offsets[extent] == (starts[first] if extent else 0)
        assert starts[mine][0] >= table.offsets[extent]
        assert (starts[mine] + lengths[mine] * itemsize).max() <= ends[extent]
        assert table.tokens[extent] == lengths[mine].sum()
        items = lengths[mine].astype("<u4"), starts[mine].astype("<u8")
        assert table.index_crc32[extent] == zlib.crc32(items[0], zlib.crc32(items[1]))


def test_empty_documents_behind_the_last_byte_belong_to_the_last_extent() -> None:
    size = 4 * EXTENT_BYTES
    lengths = np.array([(size - 640) // 2, 0, 0, 0])
    table = ExtentTable.of_shard(np.array([640, size, size, size]), lengths, "<u2", size, indexed=False)
    assert (table.documents.tolist(), table.sizes.tolist()) == ([4], [size])


def test_an_extent_that_would_have_no_bytes_joins_the_next() -> None:
    # Two thirds of the shard end in the header before a member of three empty documents: the first would be alone.
    border = 2 * EXTENT_BYTES
    starts = np.array([640, *[border + 128] * 3, border + 1152])
    lengths = np.array([border - 1280, 0, 0, 0, EXTENT_BYTES - 1152])
    table = ExtentTable.of_shard(starts, lengths, "|u1", 3 * EXTENT_BYTES, indexed=False)
    assert table.sizes.tolist() == [border + 128, EXTENT_BYTES - 128]


@pytest.mark.parametrize(("end", "firsts"), [(EXTENT_BYTES, [0, 2]), (EXTENT_BYTES + 1, [0, 1, 2])])
def test_an_end_reaches_the_border_of_an_extent_only_exactly(end: int, firsts: list[int]) -> None:
    size = 3 * EXTENT_BYTES + 1  # a third is 196,608 and 1/3: one byte less does not reach it
    starts, lengths = np.array([0, end, 2 * EXTENT_BYTES + 1]), np.array([end, 9, EXTENT_BYTES])
    lengths[1] = 2 * EXTENT_BYTES + 1 - end
    assert cut_extents(starts, lengths, 1, size).tolist() == firsts


@pytest.mark.parametrize(
    ("starts", "lengths"), [([0, 10], [6, 1]), ([10, 0], [1, 1]), ([-2], [1]), ([0], [51]), ([0, 98], [1, 2])]
)
def test_documents_that_do_not_follow_each_other_are_refused(starts: list[int], lengths: list[int]) -> None:
    with pytest.raises(CorruptShardError, match=r"a\.tar: its index is wrong: .* first 100 bytes"):
        ExtentTable.of_shard(np.array(starts), np.array(lengths), "<u2", 100, indexed=False, name="a.tar")


@settings(max_examples=12, deadline=None)
@given(runs=FEW_LENGTHS, dtype=st.sampled_from(["<u2", "<u4"]), grouped=st.sampled_from([0, 1_000, 1 << 20]))
def test_the_writer_gives_the_table_and_every_checksum_that_its_file_has(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int]], dtype: str, grouped: int
) -> None:
    lengths = np.array(expanded(runs), np.int64)
    path, keys = tmp_path_factory.mktemp("written") / "a.tar", [f"{k:012d}" for k in range(len(lengths))]
    tokens = np.arange(lengths.sum()).astype(dtype)
    info, table = write_shard(path, tokens=tokens, lengths=lengths, keys=keys, tokens_per_sample=grouped)
    raw, index = path.read_bytes(), read_index(path)
    assert info == write_shard(path, tokens=tokens, lengths=lengths, keys=keys, tokens_per_sample=grouped)[0]
    ends = (table.offsets + table.sizes).tolist()
    crc32 = [zlib.crc32(raw[first:last]) for first, last in zip(table.offsets.tolist(), ends, strict=True)]
    assert_equal(table, replace(table_of_index(index, "a.tar"), crc32=np.array(crc32, "<u4")))
    assert ends[-1:] == [index.footer["starts"][0] - 512][: len(ends)]
    for first in range(len(table)):
        place = table.index_of(first, len(table))
        wanted = slice(place.first, place.first + place.documents)
        assert np.frombuffer(raw, "<u8", place.documents, place.starts).tolist() == index.starts[wanted].tolist()
        assert np.frombuffer(raw, "<u4", place.documents, place.lengths).tolist() == lengths[wanted].tolist()
    path.unlink()


@cache
def some_table(shards: int = 7, seed: int = 0, crc32: bool = True) -> ExtentTable:
    """Return the table of small shards, the first of them empty."""
    generator = np.random.default_rng(seed)
    tables = []
    for number in range(shards):
        lengths = generator.integers(0, 60_000, 20 * min(1, number))
        starts, size = laid_out(lengths.tolist(), 2, 1)
        table = ExtentTable.of_shard(starts, lengths, "<u2", size, indexed=True)
        tables.append(table.with_checksums(memoryview(generator.bytes(size))) if crc32 else table)
    return ExtentTable.join(tables, "<u2")


COLUMNS = (*PER_SHARD, *COUNTS, *CHECKSUMS)


def assert_equal(found: ExtentTable, wanted: ExtentTable) -> None:
    assert found.dtype == wanted.dtype
    for name in COLUMNS:
        one, other = getattr(found, name), getattr(wanted, name)
        assert (one is None) == (other is None)
        assert one is None or one.tolist() == other.tolist(), name


@settings(max_examples=30, deadline=None)
@given(shards=st.integers(0, 9), seed=st.integers(0, 1_000), crc32=st.booleans())
def test_a_table_comes_back_from_its_bytes(shards: int, seed: int, crc32: bool) -> None:
    table = some_table(shards, seed, crc32)
    raw = encode_table(table)
    found = decode_table(raw)
    assert_equal(found, table)
    assert encode_table(found) == raw


def test_a_document_over_4_gib_widens_the_columns() -> None:
    long = ExtentTable.of_documents(np.array([5, 1 << 33]), "<u2")
    assert long.tokens.tolist() == [5 + (1 << 33)]
    both = ExtentTable.join([ExtentTable.of_documents(np.array([3]), "<u2"), long], "<u2")
    assert_equal(decode_table(encode_table(both), indexed=False), both)


@settings(max_examples=60, deadline=None)
@given(chosen=st.lists(st.integers(0, 6), max_size=9))
def test_a_selection_of_shards_is_the_join_of_their_tables(chosen: list[int]) -> None:
    table = some_table()
    found = table.select(chosen)
    parts = [table.select([number]) for number in chosen]
    assert_equal(found, ExtentTable.join(parts, "<u2"))
    assert found.shards == len(chosen)
    assert found.offsets.tolist() == [at for part in parts for at in part.offsets.tolist()]


def test_an_index_or_bytes_other_than_the_table_says_are_named_by_their_place() -> None:
    lengths = np.full(3_000, 500)
    starts, size = laid_out(lengths.tolist(), 2, 1)
    table = ExtentTable.of_shard(starts, lengths, "<u2", size, indexed=True)
    tokens = lengths.astype(np.uint32)
    mine = slice(int(table.document_sums[2]), int(table.document_sums[4]))
    assert table.wrong_index(2, 4, starts[mine], tokens[mine]) is None
    for part in (slice(mine.start, mine.stop - 1), slice(0, 0)):
        for numbers in (starts[mine], starts[part]):
            count, said = len(tokens[part]), f"says {mine.stop - mine.start} documents"
            wrong = table.wrong_index(2, 4, numbers, tokens[part])
            assert f"from document {mine.start} on holds {len(numbers)} starts and {count} lengths" in str(wrong)
            assert said in str(wrong)
    wrong = starts[mine].copy()
    wrong[-1] += 2
    last = int(table.document_sums[3])
    said = f"byte {size + 640 + 8 * last}: the index of documents {last} to {mine.stop} has checksum "
    assert str(table.wrong_index(2, 4, wrong, tokens[mine])).startswith(said)
    data = bytearray(size)
    table = table.with_checksums(memoryview(data))
    begin, end = table.size_sums[[3, 4]].tolist()
    data[end - 1] = 1
    said = f"bytes {begin} to {end} have checksum {zlib.crc32(data[begin:end])}, but the table of extents says {table.crc32[3]}"
    assert table.wrong_bytes(2, 4, memoryview(data)[int(table.size_sums[2]) : end]) == said
    assert table.wrong_bytes(2, 3, memoryview(data)[int(table.size_sums[2]) : begin]) is None
    with pytest.raises(ValueError, match=r"tables of one dtype .*got uint16, uint32"):
        ExtentTable.join([table], "<u4")
