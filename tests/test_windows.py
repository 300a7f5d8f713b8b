from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import CorruptShardError
from pipeline.stream.data import PlainShard
from pipeline.stream.order import ShardOrder
from pipeline.stream.pool import ShardPool
from pipeline.stream.rows import RowBuffer
from pipeline.stream.windows import TokenStream
from tests.oracle import Oracle


class Shelf:
    """Shards in memory that count how often they are opened."""

    def __init__(self, shards: list[list[list[int]]]) -> None:
        self.opened: list[int] = []
        self.reopened: list[int] = []
        self.shards = []
        for documents in shards:
            lengths = np.array([len(d) for d in documents], dtype=np.int64)
            tokens = np.array([token for d in documents for token in d], dtype="<u2")
            self.shards.append(PlainShard(tokens, np.cumsum(lengths) - lengths, lengths))

    def open(self, number: int) -> PlainShard:
        self.opened.append(number)
        return self.shards[number]

    def reopen(self, number: int) -> Any:
        self.reopened.append(number)
        return self.shards[number].tokens


def stream_over(
    shards: list[list[list[int]]], window: int, seed: int | None, *, lanes: int = 1, limit: int = 99
) -> tuple[TokenStream, Shelf]:
    shelf = Shelf(shards)
    order = ShardOrder([len(s) for s in shards], [sum(map(len, s)) for s in shards], window, seed)
    return TokenStream(order, ShardPool(shelf.open, shelf.reopen, limit), np.dtype("<u2"), lanes), shelf


def numbered(sizes: list[list[int]]) -> list[list[list[int]]]:
    token = iter(range(1, 60_000))
    return [[[next(token) for _ in range(n)] for n in shard] for shard in sizes]


def documents_from(stream: TokenStream, start: int, count: int) -> list[Any]:
    """Return documents ``start`` to ``start + count`` of the endless stream."""
    found: list[Any] = []
    while len(found) < count:
        epoch, first = divmod(start + len(found), stream.documents_per_epoch)
        last = min(first + count - len(found), stream.documents_per_epoch)
        found += stream.documents_at(epoch, np.arange(first, last))
    return found


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 9), max_size=7), min_size=1, max_size=7).filter(
        lambda s: sum(map(sum, s)) > 0
    ),
    window=st.integers(1, 8),
    seed=st.none() | st.integers(0, 9),
    limit=st.integers(1, 4),
    start=st.integers(0, 200),
    count=st.integers(1, 200),
)
def test_any_range_reads_the_defined_tokens_and_document_ends(
    sizes: list[list[int]], window: int, seed: int | None, limit: int, start: int, count: int
) -> None:
    shards = numbered(sizes)
    stream, _ = stream_over(shards, window, seed, limit=limit)
    oracle = Oracle(shards, seed, min(window, len(shards)), 1)
    epochs = (start + count) // stream.tokens_per_epoch + 1
    documents = [d for e in range(epochs) for d in oracle.documents(e)]
    out = np.zeros(count, dtype="<u2")
    ends: list[Any] = []
    stream.read(start, out, ends)
    assert out.tolist() == [t for d in documents for t in d][start : start + count]
    all_ends = np.unique(np.cumsum([len(d) for d in documents]))
    expected = all_ends[(all_ends > start) & (all_ends <= start + count)] - start
    assert np.concatenate(ends).tolist() == expected.tolist()
    some = documents_from(stream, start, min(count, 20))
    later = [d for e in range((start + 20) // stream.documents_per_epoch + 1) for d in oracle.documents(e)]
    assert [d.tolist() for d in some] == later[start : start + min(count, 20)]
    stream.close()


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 9), max_size=30), min_size=1, max_size=7).filter(
        lambda s: sum(map(sum, s)) > 0
    ),
    window=st.integers(1, 8),
    seed=st.none() | st.integers(0, 9),
    limit=st.integers(1, 8),
    width=st.integers(1, 25),
    batches=st.lists(st.lists(st.integers(0, 10**6), min_size=1, max_size=6), min_size=1, max_size=4),
    epoch=st.integers(0, 2),
)
def test_rows_filled_at_once_are_those_read_one_by_one(
    sizes: list[list[int]],
    window: int,
    seed: int | None,
    limit: int,
    width: int,
    batches: list[list[int]],
    epoch: int,
) -> None:
    shards = numbered(sizes)
    stream, _ = stream_over(shards, window, seed, limit=limit, lanes=2)
    plain, _ = stream_over(shards, window, seed, limit=limit)
    buffer = RowBuffer(width, np.dtype("<u2"), with_ends=True)
    hints = np.array([0, 10**9])  # whatever a hint says, it is only where to look first
    for places in batches * 2:
        tokens = np.array(places) % stream.tokens_per_epoch
        buffer.clear(len(tokens))
        backwards = np.arange(len(tokens))[::-1].copy()
        stream.fill(buffer, backwards, epoch, tokens, np.arange(len(tokens)) % 2, hints)
        for row, token in zip(backwards.tolist(), tokens.tolist(), strict=True):
            expected, expected_ends = np.zeros(width, "<u2"), []
            plain.read(epoch * plain.tokens_per_epoch + token, expected, expected_ends)
            assert buffer._tokens[row].tolist() == expected.tolist()
            assert buffer.places[slice(*buffer.spans[row])].tolist() == np.concatenate(expected_ends).tolist()
    stream.close()
    plain.close()


def test_documents_are_found_at_any_places_of_an_epoch() -> None:
    shards = numbered([[3, 0, 5], [], [1], [2, 2, 0, 4]])
    stream, _ = stream_over(shards, window=2, seed=3, limit=1)
    expected = Oracle(shards, 3, 2, 1).documents(1)
    for places in ([7, 0, 3, 3], list(range(8)), [], [6]):
        found = stream.documents_at(1, np.array(places, np.int64))
        assert [d.tolist() for d in found] == [expected[place] for place in places]
    stream.close()


def test_rows_of_loaded_windows_need_no_reading_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, _ = stream_over(numbered([[7] * 50] * 8), window=4, seed=1, lanes=3)
    tokens, lanes, hints = np.array([0, 100, 1500]), np.arange(3), np.zeros(3, np.int64)
    buffer = RowBuffer(40, np.dtype("<u2"), with_ends=False)
    buffer.clear(3)
    stream.fill(buffer, lanes, 0, tokens, lanes, hints)
    monkeypatch.setattr(TokenStream, "_read", None)
    for step in range(1, 25):
        stream.fill(buffer, lanes, 0, tokens + 40 * step, lanes, hints)
    assert stream.bytes_read == 25 * 3 * 40 * 2
    stream.close()


def test_lanes_that_need_more_shards_than_may_be_open_open_them_for_many_rows_at_once() -> None:
    shards = numbered([[5] * 200] * 24)
    stream, shelf = stream_over(shards, window=4, seed=1, lanes=6, limit=4)
    plain, _ = stream_over(shards, window=4, seed=1)
    buffer = RowBuffer(20, np.dtype("<u2"), with_ends=True)
    lanes, hints = np.arange(6), np.zeros(6, np.int64)
    for row in range(180):
        tokens = lanes * 4000 + row * 20
        buffer.clear(6)
        stream.fill(buffer, lanes, 0, tokens, lanes, hints)
        for lane, token in enumerate(tokens.tolist()):
            expected, ends = np.zeros(20, "<u2"), []
            plain.read(token, expected, ends)
            assert buffer._tokens[lane].tolist() == expected.tolist()
            assert buffer.places[slice(*buffer.spans[lane])].tolist() == np.concatenate(ends).tolist()
    assert len(shelf.reopened) < 4 * 6 * 180 / 8
    stream.close()
    plain.close()


def test_a_shard_that_shrinks_while_it_is_open_is_an_error_not_a_read_past_its_end() -> None:
    stream, shelf = stream_over(numbered([[5] * 4]), window=1, seed=None)
    buffer, alone = RowBuffer(5, np.dtype("<u2"), with_ends=False), np.zeros(1, np.int64)
    buffer.clear(1)

    def read(token: int) -> None:
        stream.fill(buffer, alone, 0, np.array([token]), alone, np.zeros(1, np.int64))

    read(0)
    shorter = shelf.shards[0].tokens[:13]
    stream._pool.views[0] = shorter.data
    stream._pool.table[0, 1] = len(shorter)
    read(5)
    with pytest.raises(CorruptShardError, match=r"\[0\] hold 3 of 10 tokens"):
        read(10)
    stream.close()


def test_only_the_shards_of_the_window_asked_for_are_opened() -> None:
    stream, shelf = stream_over(numbered([[300, 300]] * 40), window=4, seed=1)
    stream.read(600 * 4 * 5, np.zeros(10, dtype="<u2"))
    stream.close()
    # Windows of 2,400 tokens are shorter than what is built ahead, so the next one is opened too.
    assert set(shelf.opened) <= {s for w in (5, 6) for s in stream.order.epoch(0).window_shards(w)}


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_open_shards_stay_within_their_limit(limit: int) -> None:
    stream, shelf = stream_over(numbered([[5] * 4] * 9), window=3, seed=1, limit=limit)
    out = np.zeros(7, dtype="<u2")
    for start in range(0, 180, 7):
        stream.read(start, out)
        assert len(stream._pool.views) <= limit
    assert shelf.reopened
    stream.close()


def test_windows_in_memory_do_not_grow_with_epochs() -> None:
    stream, _ = stream_over(numbered([[5] * 4] * 12), window=2, seed=1, lanes=3)
    out = np.zeros(11, dtype="<u2")
    for start in range(0, 240 * 20, 11):
        stream.read(start, out)
        assert len(stream._windows) <= 5
        assert len(stream._ahead) <= 6
    stream.close()


def test_lanes_that_leave_their_windows_together_do_not_evict_each_others() -> None:
    lanes, size = 8, 20 * 50
    stream, _ = stream_over(numbered([[50] * 20] * 24), window=1, seed=1, lanes=lanes)
    built: list[tuple[int, int]] = []
    build = stream._build

    def counting(epoch: int, number: int) -> Any:
        built.append((epoch, number))
        return build(epoch, number)

    stream._build = counting  # type: ignore[method-assign]
    out = np.zeros(300, dtype="<u2")
    for row in range(0, 3 * size - 300, 300):
        for lane in range(lanes):
            stream.read(lane * 3 * size + row, out)
    stream.close()
    # A lane looks ahead once into the window where the next lane began, which may be gone by then.
    assert len(built) <= len(set(built)) + lanes


def test_an_error_while_building_ahead_is_raised_when_that_window_is_read() -> None:
    stream, shelf = stream_over(numbered([[50] * 4] * 6), window=2, seed=None)

    def failing(number: int) -> PlainShard:
        if number == 2:
            raise OSError("shard 2 is gone")
        return Shelf.open(shelf, number)

    stream._pool._open_shard = failing
    stream.read(0, np.zeros(400, dtype="<u2"))
    with pytest.raises(OSError, match="shard 2 is gone"):
        stream.read(400, np.zeros(1, dtype="<u2"))
    stream.close()


def test_closing_leaves_no_thread() -> None:
    before = threading.active_count()
    stream, _ = stream_over(numbered([[50] * 4] * 6), window=2, seed=0)
    stream.read(0, np.zeros(900, dtype="<u2"))
    stream.close()
    for thread in threading.enumerate():
        if thread.name.startswith("shardwright-windows"):
            thread.join(5)
    assert threading.active_count() <= before
