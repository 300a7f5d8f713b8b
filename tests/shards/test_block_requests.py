"""Requests for the blocks of a window: side by side, one for neighbours, and no more of them than that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.errors import CorruptShardError
from pipeline.shards.blocks.remote_blocks import REQUEST_BYTES, ByteRange, neighbours
from pipeline.stream.stream import Stream
from tests.helpers.faulty_server import FaultyServer, running_server
from tests.helpers.shard_samples import flipped
from tests.helpers.text_streams import ids

SHARDS = 4


STREAMS: dict[str, Any] = {
    "packed": lambda data: data.shuffle(seed=3).pack(64),
    "documents": lambda data: data.shuffle(seed=3).documents(max_length=64),
    "best fit": lambda data: data.shuffle(seed=3).pack(64, best_fit=True),
    "filtered": lambda data: data.shuffle(seed=3).filter(len, name="any").pack(64),
    "four windows": lambda data: data.shuffle(seed=3, lanes=4, window=16).pack(64),
    "four windows, best fit": lambda data: data.shuffle(seed=3, lanes=8, window=16).pack(64, best_fit=True),
}


def stream(kind: str, source: Any, **options: Any) -> Stream:
    made: Stream = STREAMS[kind](pipeline.ShardDataset(source, epochs=1, **options))
    return made.batch(8)


def side_by_side(requests: int, read: Callable[[FaultyServer], None]) -> FaultyServer:
    """Return a server that so many requests waited for at once; it answers later if these were too few."""
    for latency in (0.05, 0.1, 0.2, 0.5):
        with running_server() as server:
            server.latency = latency
            read(server)
        if server.most_waiting >= requests:
            return server
    raise AssertionError(f"at most {server.most_waiting} of {requests} requests wait at once")


@pytest.mark.parametrize(
    ("kind", "cached"), [("packed", True), ("best fit", True), *((kind, False) for kind in STREAMS)]
)
def test_blocks_come_at_once_neighbours_by_one_request(
    tmp_path: Path, in_extents: Path, kind: str, cached: bool
) -> None:
    wanted = ids(stream(kind, in_extents))

    def read(server: FaultyServer) -> None:
        url, cache = server.serve(in_extents), tmp_path / f"cache for {server.root[-5:]}"
        for _ in range(2):
            assert ids(stream(kind, url, cache_dir=cache if cached else None)) == wanted

    server = side_by_side(SHARDS, read)
    asked = server.count("/data/train")
    if "windows" not in kind:  # lengths, perhaps starts, tokens of each shard; from a cache nothing
        assert asked <= 3 * SHARDS * (1 if cached else 2)


def test_sources_of_a_mix_are_read_side_by_side(in_extents: Path) -> None:
    def read(server: FaultyServer) -> None:
        sources = {name: pipeline.ShardDataset(server.serve(in_extents, name), cache_dir=None) for name in "abcd"}
        next(iter(pipeline.mix(sources, dict.fromkeys("abcd", 1.0)).shuffle(seed=1, window=1000).pack(32).batch(64)))

    side_by_side(3 * SHARDS + 1, read)  # of one source, two epochs at most, and on a busy machine some of the next


def test_lanes_of_a_sequential_stream_begin_side_by_side(in_extents: Path) -> None:
    def read(server: FaultyServer) -> None:
        data = pipeline.ShardDataset(server.serve(in_extents), cache_dir=None)
        windows = data.shuffle(seed=3, lanes=8, window=1)  # of one block each, so that no window has several requests
        next(iter(windows.pack(64, best_fit=True).batch(1)))

    side_by_side(8, read)


def test_a_request_that_pauses_does_not_stop_the_others(in_extents: Path) -> None:
    with running_server() as server:
        url = server.serve(in_extents)
        server.busy = {f"data/train-{number:06d}.tar" for number in range(SHARDS)}
        paths = {f"/{path}" for path in server.busy}

        def wait_for_all() -> None:
            while not paths <= {each.path for each in server.asked}:
                time.sleep(0.01)
            server.busy.clear()

        threading.Thread(target=wait_for_all, daemon=True).start()
        assert ids(stream("packed", url, cache_dir=None)) == ids(stream("packed", in_extents))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3 * REQUEST_BYTES // 2), st.integers(0, 40_000)), max_size=30),
    st.integers(0, 50_000),
)
def test_neighbours_cover_each_span_once_in_runs_of_a_request(drawn: list[tuple[int, int, int]], gap: int) -> None:
    spans, end = [], [0, 0, 0]
    for shard, size, skipped in sorted(drawn, key=lambda each: each[0]):
        begin = end[shard] + skipped
        end[shard] = begin + size
        spans.append(ByteRange(shard, begin, end[shard]))
    runs = [spans[part] for part in neighbours(spans, gap)]
    assert [span for run in runs for span in run] == spans
    for run in runs:
        assert len({span.shard for span in run}) == 1
        assert len(run) == 1 or run[-1].end - run[0].begin <= REQUEST_BYTES
        assert all(after.begin - before.end <= gap for before, after in pairwise(run))
    for run, following in pairwise(runs):
        after = following[0]
        far = after.shard != run[0].shard or after.begin - run[-1].end > gap
        assert far or after.end - run[0].begin > REQUEST_BYTES


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("at", [0.01, 0.5, 0.97])
def test_a_flipped_byte_in_any_extent_is_found(
    tmp_path: Path, server: FaultyServer, in_extents: Path, cached: bool, at: float
) -> None:
    url, name = server.serve(in_extents), "data/train-000002.tar"
    sound = server.files[name]
    extents = len(sound) - 600 * 12 - 8192  # the index follows them
    server.files[name] = flipped(sound, int(at * extents))
    with pytest.raises(CorruptShardError, match=r"train-000002\.tar: bytes .*checksum"):
        ids(stream("packed", url, cache_dir=tmp_path / "cache" if cached else None))
