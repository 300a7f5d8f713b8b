"""Streams read shards window by window: long documents, damage that comes later, and what stays when a stream is dropped."""

from __future__ import annotations

import gc
import os
import threading
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.errors import CorruptShardError, TruncatedShardError
from pipeline.shards.extents.table_file import decode_table
from pipeline.shards.manifest import EXTENTS_NAME
from pipeline.stream.lanes import TextWindowSize
from pipeline.stream.order import Shuffle
from pipeline.stream.sequential.lane import Lane
from pipeline.stream.sequential.shard_windows import ShardWindows
from pipeline.stream.windows.held_source import HeldSource
from pipeline.stream.windows.row_buffer import RowBuffer
from pipeline.stream.windows.window import WindowCache, WindowMaker
from tests.helpers import interpreters
from tests.helpers.extent_samples import edit_table
from tests.helpers.shard_samples import make_documents, write_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of several windows."""
    write_dataset(tmp_path / "data", [make_documents(600, seed=k, longest=1000) for k in range(6)])
    return tmp_path / "data"


def shuffled(folder: Path, **options: Any) -> pipeline.Stream:
    return pipeline.ShardDataset(folder, **options).shuffle(seed=0, lanes=1, window=1).pack(64).batch(8)


@pytest.mark.parametrize(
    ("start", "size", "blocks", "ends"),
    [
        ((0, 9, 9), 1000, 1, True),  # it reaches the bytes
        ((0, 9, 9), 999, 71, False),
        ((0, 9, 9), 100, 72, True),  # it reaches 4 * (b + r) blocks of the least bytes
        ((0, 0, 0), 100, 4, True),
        ((0, 0, 0), 999, 3, False),
        ((0, 0, 0), 99, 4, False),
    ],
)
def test_a_window_of_text_ends_when_it_reaches_its_size(
    start: tuple[int, int, int], size: int, blocks: int, ends: bool
) -> None:
    assert TextWindowSize(bytes=1000, least=100).reached(start, size, blocks) is ends


def test_a_document_longer_than_a_window_is_streamed_whole(tmp_path: Path) -> None:
    long = np.random.default_rng(0).integers(1, 60_000, 3_000_000).astype("<u2")
    documents = [*make_documents(30), long, *make_documents(30, seed=1)]
    write_dataset(tmp_path, [documents])
    tokens = np.concatenate(documents)
    source = pipeline.ShardDataset(tmp_path, epochs=1)
    found = np.concatenate([batch["input_ids"].numpy().ravel() for batch in source.pack(1024).batch(8)])
    assert (found[: len(tokens)] == tokens).all()
    batches = source.shuffle(seed=0).documents(max_length=100).batch(8)
    lengths = [int(mask.sum()) for batch in batches for mask in batch["attention_mask"]]
    assert sorted(lengths)[-61:] == sorted(min(100, len(document)) for document in documents)


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="reads /proc")
def test_a_batch_with_rows_of_two_epochs_loads_no_other_windows(tmp_path: Path) -> None:
    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    write_dataset(tmp_path, [make_documents(1500, seed=k, longest=1000) for k in range(8)])
    size = sum(path.stat().st_size for path in tmp_path.glob("*.tar"))

    def stream(**options: Any) -> pipeline.Stream:  # four rows of each lane
        return pipeline.ShardDataset(tmp_path, **options).shuffle(seed=0, lanes=16, window=2).pack(64).batch(64)

    passed = stream()
    batches = iter(passed)
    list(islice(batches, len(stream(epochs=1)) // 2))
    read = [bytes_read()]
    for _ in range(2):
        list(islice(batches, len(stream(epochs=1))))
        read.append(bytes_read())
    assert passed.stats()["epoch"] == 2
    assert np.diff(read).max() < 1.4 * size, (read, size)


@pytest.mark.parametrize("verify", [True, False])
def test_verified_streams_compare_checksums_each_time_that_they_read(folder: Path, verify: bool) -> None:
    an_epoch, batches = len(shuffled(folder, epochs=1)), iter(shuffled(folder, verify=verify))
    list(islice(batches, an_epoch))
    for path in folder.glob("*.tar"):
        raw = bytearray(path.read_bytes())
        for at in range(1024, len(raw) // 2, 2048):
            raw[at] ^= 1
        path.write_bytes(raw)  # in place: the open files are these
    if verify:
        with pytest.raises(CorruptShardError, match=r"train-00000\d\.tar: bytes \d+ to \d+ have checksum"):
            list(islice(batches, an_epoch))
    else:
        list(islice(batches, an_epoch))


def test_documents_that_a_split_reads_are_verified_too(folder: Path) -> None:
    for path in folder.glob("*.tar"):
        raw = bytearray(path.read_bytes())
        for at in range(1024 + 2, len(raw) - (1 << 16), 4096):
            raw[at] ^= 1
        path.write_bytes(raw)
    with pytest.raises(CorruptShardError, match=r"train-00000\d\.tar: bytes \d+ to \d+ have checksum"):
        pipeline.ShardDataset(folder, epochs=1, verify=True).split(val=0.02)


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("starts", 1 << 40, "outside its block of"),
        ("starts", -(1 << 40), "outside its block of"),
        (
            "starts",
            -2,
            r"document of \d+ tokens at byte 1\d{3}, outside .* of \d+ bytes from byte \d+ or inside the document before",
        ),
        (
            "lengths",
            1,
            r"from 0 on: the index holds \d+ tokens in \d+ documents, but \d+ in \d+ were counted before; the shard was",
        ),
    ],
)
def test_a_forged_index_and_checksum_read_nothing_outside_a_block(
    tmp_path: Path, column: str, change: int, message: str
) -> None:
    write_dataset(tmp_path, [make_documents(60, longest=100)], tokens_per_sample=1000)
    path, table = tmp_path / "train-000000.tar", decode_table((tmp_path / EXTENTS_NAME).read_bytes())
    assert len(table) == 1
    raw, place = bytearray(path.read_bytes()), table.index_of(0, 1)
    starts = np.frombuffer(raw, "<i8", place.documents, place.starts)
    lengths = np.frombuffer(raw, "<u4", place.documents, place.lengths)
    {"starts": starts, "lengths": lengths}[column][7] += np.array(change, starts.dtype).astype(column_dtype(column))
    forged = zlib.crc32(lengths.tobytes(), zlib.crc32(starts.tobytes()))
    path.write_bytes(raw)
    edit_table(tmp_path, "index_crc32", 0, forged)
    with pytest.raises(CorruptShardError, match=rf"train-000000\.tar: .*{message}"):
        next(iter(pipeline.ShardDataset(tmp_path).shuffle(seed=0).pack(64).batch(8)))


def column_dtype(column: str) -> str:
    return "<i8" if column == "starts" else "<u4"


def test_a_function_of_documents_gets_ids_that_it_cannot_change(folder: Path) -> None:
    def change(ids: Any, mask: Any) -> Any:
        ids[0] = 0
        return ids

    stream = pipeline.ShardDataset(folder).map_documents(change, same_length=True)
    for rows in (stream.pack(64), stream.documents(), stream.shuffle(seed=0).sample(64)):
        with pytest.raises(ValueError, match="read-only"):
            next(iter(rows))


def test_a_shard_that_is_cut_while_it_is_streamed_is_an_error(folder: Path) -> None:
    an_epoch, batches = len(shuffled(folder, epochs=1)), iter(shuffled(folder))
    list(islice(batches, an_epoch))
    for path in folder.glob("*.tar"):
        os.truncate(path, 5000)
    with pytest.raises(TruncatedShardError, match=r"train-00000\d\.tar: .*ends at byte \d+, \d+ bytes before"):
        list(islice(batches, 1000))


def test_a_process_that_ends_while_windows_are_loaded_ends_well(tmp_path: Path) -> None:
    write_dataset(tmp_path, [make_documents(9_000, seed=k, longest=300) for k in range(4)])
    code = f"""
import pipeline
kept = iter(pipeline.ShardDataset({str(tmp_path)!r}).shuffle(seed=0, lanes=4, window=1).pack(64).batch(4))
next(kept)
"""
    ended = interpreters.run("-c", code)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_stream_that_is_dropped_keeps_no_thread_and_no_file(tmp_path: Path) -> None:
    write_dataset(tmp_path, [make_documents(2000, seed=k, longest=1000) for k in range(6)])

    def batches() -> Iterator[Any]:
        return iter(pipeline.ShardDataset(tmp_path).shuffle(seed=0, lanes=2, window=1).pack(64).batch(8))

    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    next(batches())  # what a process opens once
    gc.collect()
    threads, before = set(threading.enumerate()), files()
    gc.disable()
    try:
        iterator = batches()
        list(islice(iterator, 20))
        started = set(threading.enumerate()) - threads
        del iterator
        for thread in started:
            thread.join(40)
        assert started
        assert not any(thread.is_alive() for thread in started)
        assert files() <= before
    finally:
        gc.enable()


class CountedReads:
    """Blocks of a source, and how often they were read."""

    def __init__(self, source: Any) -> None:
        self.source, self.threads, self.reads = source, source.threads, 0
        self.name, self.index = source.name, source.index

    def read(self, runs: Any, out: memoryview) -> None:
        self.reads += 1
        self.source.read(runs, out)


@pytest.mark.parametrize("seed", [None, 3])
def test_small_epochs_are_read_once_and_share_windows(tmp_path: Path, seed: int | None) -> None:
    write_dataset(tmp_path, [make_documents(9 - shard, seed=shard, longest=5) for shard in range(3)])
    data = pipeline.ShardDataset(tmp_path)._data
    order = Shuffle(data.extents.blocks(in_mix=True), 16, 4, seed, "small")
    source = CountedReads(data.ranges())
    shared, single = (WindowMaker(data, order, most=most) for most in (7 * order.tokens, 0))
    shared.source = single.source = source
    assert (shared.epochs, single.epochs) == (7, 1)
    for first in (0, 14, 7):
        alone = [single.make(epoch, 0) for epoch in range(first, first + 7)]
        window, listing = shared.make(first, 0), shared.listing(first, 0)
        assert window.tokens.tolist() == [token for one in alone for token in one.tokens.tolist()]
        assert np.diff(window.ends).tolist() == [n for one in alone for n in np.diff(one.ends).tolist()]
        assert listing.ends.tolist() == window.ends.tolist()
    assert source.reads == 2  # once by each


@pytest.mark.parametrize(("held", "window"), [(True, 2), (True, 1), (False, 1)])
def test_windows_in_pieces_give_the_rows_of_whole_windows_from_every_cursor_on(
    tmp_path: Path, held: bool, window: int
) -> None:
    write_dataset(tmp_path, [make_documents(40, seed=shard, longest=60) for shard in range(3)])
    data = pipeline.ShardDataset(tmp_path)._data
    order = Shuffle(data.extents.blocks(in_mix=True), 2, window, 3)
    assert order.windows == (1 if window == 2 else 3)

    def lane(cursor: list[int], most_bytes: int | None, in_memory: bool) -> Lane:
        maker = WindowMaker(data, order)
        windows = ShardWindows(
            WindowCache(maker, 2), order, lanes=2, size=16, starts={1: (cursor[0], cursor[1], cursor[2])},
            filters=(lambda ids: len(ids) % 5 > 0,), epochs=2, held=HeldSource(maker) if in_memory else None,
            most_bytes=most_bytes,
        )  # fmt: skip
        return Lane(lambda start: windows.make(1, start), cursor, 20, 1, lambda: None)

    def rows(lane: Lane) -> Iterator[tuple[list[int], list[int]]]:
        while lane.ready():
            cursor, buffer = lane.cursor, RowBuffer(21, data.dtype, with_ends=False)
            buffer.begin(1)
            size = lane.fill(buffer, 0)
            yield cursor, buffer.tokens[0, :size].tolist()

    expected = list(rows(lane([0, 0, 0, 0], None, False)))
    assert len({tuple(cursor[:3]) for cursor, _ in expected}) > 6  # windows
    assert list(rows(lane([0, 0, 0, 0], 100, held))) == expected
    for number in range(0, len(expected), 7):
        assert list(rows(lane(expected[number][0], 100, held))) == expected[number:]


def test_each_epoch_of_a_small_filtered_stream_has_its_own_order() -> None:
    data = pipeline.ShardDataset.from_tokens(range(30), lengths=[3] * 10).shuffle(seed=1, lanes=1)
    streams = data.filter(lambda ids: True, name="all").documents(), data.documents()
    filtered, indexed = ([int(row["input_ids"][0]) // 3 for row in islice(stream, 60)] for stream in streams)
    assert filtered == indexed
    assert len({tuple(filtered[begin : begin + 10]) for begin in range(0, 60, 10)}) == 6
