"""Where documents start follows from their lengths, with the table of extents."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.shards.extents.loading import payload_bytes
from pipeline.shards.extents.table import ExtentTable
from pipeline.shards.format import HEADERS
from pipeline.shards.index import Index
from pipeline.shards.ranges.document_starts import starts_by_lengths
from pipeline.shards.reader import read_index
from pipeline.shards.writer import write_shard

# Tokens of documents: none, few, those that fill a block of the tar, and more than an extent holds.
LENGTHS = st.lists(
    st.one_of(st.just(0), st.integers(1, 9), st.integers(0, 400), st.sampled_from([192, 256, 128, 5000])),
    min_size=1,
    max_size=50,
)


class Shard(NamedTuple):
    index: Index
    table: ExtentTable

    def run(self, first: int, last: int) -> tuple[bytes, bytes]:
        """Return the starts and lengths of the documents of extents."""
        part = slice(int(self.table.document_sums[first]), int(self.table.document_sums[last]))
        starts, lengths = self.index.starts[part].astype("<i8"), self.index.lengths[part].astype("<u4")
        return starts.tobytes(), lengths.tobytes()

    def most_members_that_end(self, first: int, last: int) -> int:
        """Return how many members end in one of these extents, at most."""
        most = 0
        for row in range(first, last):
            raw, counts = self.run(row, row + 1)
            starts, sizes = np.frombuffer(raw, "<i8"), np.frombuffer(counts, "<u4").astype(int) * self.table.itemsize
            end = int(self.table.offsets[row]) + int(self.table.sizes[row])
            next_ones = np.append(starts[1:], end + HEADERS * (row == len(self.table) - 1))
            most = max(most, np.count_nonzero(next_ones - starts - sizes >= HEADERS))
        return most


def shard_of(lengths: list[int], dtype: str, tokens_per_sample: int, extent_bytes: int) -> Shard:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train-000000.tar")
        keys = [f"{number:06d}" for number in range(len(lengths))]
        tokens = np.arange(sum(lengths)).astype(dtype)
        write_shard(path, tokens=tokens, lengths=lengths, keys=keys, tokens_per_sample=tokens_per_sample)
        index = read_index(path)
    columns = index.starts, index.lengths, dtype, payload_bytes(index)
    return Shard(index, ExtentTable.of_shard(*columns, indexed=True, extent_bytes=extent_bytes))


SHARDS = st.builds(
    shard_of, LENGTHS, st.sampled_from(["<u2", "<u4"]), st.integers(0, 3000), st.sampled_from([600, 2000, 5000, 20_000])
)
EXTENTS = st.integers(1, 4)


@given(SHARDS, EXTENTS)
def test_lengths_alone_tell_where_documents_start_where_two_members_end_in_an_extent_at_most(
    shard: Shard, extents: int
) -> None:
    for first in range(max(1, len(shard.table) - extents + 1)):
        last = min(len(shard.table), first + extents)
        starts, lengths = shard.run(first, last)
        found = starts_by_lengths(shard.table, first, last, np.frombuffer(lengths, "<u4"))
        if found is not None or shard.most_members_that_end(first, last) <= 2:
            assert found is not None
            assert found.astype("<i8").tobytes() == starts


@given(LENGTHS, st.sampled_from(["<u2", "<u4"]), st.sampled_from([600, 5000]))
def test_documents_that_are_members_of_their_own_are_told_by_the_table(
    lengths: list[int], dtype: str, extent_bytes: int
) -> None:
    shard = shard_of(lengths, dtype, 0, extent_bytes)
    for row in range(len(shard.table)):
        starts, counts = shard.run(row, row + 1)
        found = starts_by_lengths(shard.table, row, row + 1, np.frombuffer(counts, "<u4"))
        assert found is not None
        assert found.astype("<i8").tobytes() == starts


def test_wrong_lengths_tell_nothing() -> None:
    shard = shard_of([300, 200, 7, 0, 900] * 20, "<u2", 2000, 4000)
    for row in range(len(shard.table)):
        lengths = np.frombuffer(shard.run(row, row + 1)[1], "<u4").copy()
        lengths[0] += 1
        assert starts_by_lengths(shard.table, row, row + 1, lengths) is None
