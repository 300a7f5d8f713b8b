"""The token stream gives what its definition says at any place, and keeps no more windows than what is read needs."""

from __future__ import annotations

import threading
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.errors import CorruptShardError
from pipeline.shards.extents.table import ExtentTable
from pipeline.shards.ranges.source import Index, Rows
from pipeline.stream.batch.rows import RowBuffer
from pipeline.stream.data.contents import Contents
from pipeline.stream.data.memory_ranges import MemoryRanges
from pipeline.stream.indexed.lookahead import Lookahead
from pipeline.stream.indexed.mixed import MixedSequences
from pipeline.stream.indexed.token_stream import Piece, TokenStream
from pipeline.stream.indexed.windows.block_pool import BlockPool
from pipeline.stream.order import Sequences, Shuffle, Step
from pipeline.stream.order.mixture import Mixture
from tests.oracle import Oracle

SIZES = st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=9).filter(
    lambda sizes: sum(map(sum, sizes)) > 0
)


class Shelf:
    """Shards in memory, each so small that it is one block, which count how often their blocks are brought."""

    def __init__(self, shards: list[list[list[int]]], *, waits: bool = True, copies: bool = False) -> None:
        self.waits = waits
        self.copies = self.rows_first = copies
        self.behind = False
        self.brought: list[int] = []
        self.asked: set[int] = set()
        self.alive = 0
        self._shards = []
        tables = []
        for documents in shards:
            lengths = np.array([len(d) for d in documents], dtype=np.int64)
            tokens = np.array([token for d in documents for token in d], dtype="<u2")
            tables.append(ExtentTable.of_documents(lengths, "<u2"))
            self._shards.append(MemoryRanges(tables[-1], tokens, lengths))
        self.table = ExtentTable.join(tables, "<u2")

    def _own(self, first: int) -> MemoryRanges:
        return self._shards[int(self.table.shard_numbers[first])]

    def index(self, firsts: Rows, lasts: Rows) -> Index:
        parts = [
            self._own(int(first)).index(firsts[k : k + 1] * 0, (lasts - firsts)[k : k + 1])
            for k, first in enumerate(firsts)
        ]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def memory(self, first: int, last: int) -> Any:
        self.brought.append(first)
        return self._own(first).memory(0, last - first)

    def memories(self, firsts: Rows, lasts: Rows) -> None:
        return

    def read(self, shard: int, offset: int, target: memoryview) -> None:
        self._shards[shard].read(0, offset, target)

    def read_all(self, wanted: list[tuple[int, int, memoryview]]) -> None:
        for each in wanted:
            self.read(*each)

    def ask(self, firsts: Rows, lasts: Rows) -> None:
        self.asked.update(firsts.tolist())

    def ask_index(self, firsts: Rows, lasts: Rows) -> None:
        return

    def ask_bytes(self, shard: int, offset: int, size: int) -> None:
        return

    def check(self, first: int, last: int) -> None:
        return

    def close(self) -> None:
        return


def stream_over(
    shards: list[list[list[int]]],
    window: int,
    seed: int | None,
    *,
    lanes: int = 1,
    stride: int = 0,
    width: int = 1,
    waits: bool = True,
    copies: bool = False,
    end: int | None = None,
) -> tuple[TokenStream, Shelf]:
    shelf = Shelf(shards, waits=waits, copies=copies)
    contents = Contents.whole(shelf.table)
    order = Shuffle(contents.blocks(), lanes, window, seed)
    sequences = Sequences(order.tokens, stride, lanes) if stride else None
    stream = TokenStream(order, BlockPool(shelf, contents, order), np.dtype("<u2"), sequences, width=width, end=end)
    return stream, shelf


def numbered(sizes: list[list[int]]) -> list[list[list[int]]]:
    token = iter(range(1, 60_000))
    return [[[next(token) for _ in range(n)] for n in shard] for shard in sizes]


@settings(max_examples=150, deadline=None)
@given(
    sizes=SIZES,
    window=st.integers(1, 8),
    lanes=st.integers(1, 4),
    seed=st.none() | st.integers(0, 9),
    start=st.integers(0, 200),
    count=st.integers(1, 200),
)
def test_any_range_reads_the_defined_tokens_and_document_ends(
    sizes: list[list[int]], window: int, lanes: int, seed: int | None, start: int, count: int
) -> None:
    shards = numbered(sizes)
    stream, _ = stream_over(shards, window, seed, lanes=lanes)
    oracle = Oracle(shards, seed, window, lanes)
    epochs = (start + count) // stream.tokens_per_epoch + 1
    documents = [d for e in range(epochs) for d in oracle.documents(e)]
    out = np.zeros(count, dtype="<u2")
    ends: list[Any] = []
    stream.read(start, out, ends)
    assert out.tolist() == [t for d in documents for t in d][start : start + count]
    all_ends = np.unique(np.cumsum([len(d) for d in documents]))
    expected = all_ends[(all_ends > start) & (all_ends <= start + count)] - start
    assert np.concatenate(ends).tolist() == expected.tolist()
    stream.close()


@settings(max_examples=150, deadline=None)
@given(
    sizes=SIZES,
    window=st.integers(1, 8),
    seed=st.none() | st.integers(0, 9),
    width=st.integers(1, 25),
    batches=st.lists(st.lists(st.integers(0, 10**6), min_size=1, max_size=6), min_size=1, max_size=4),
    epoch=st.integers(0, 2),
)
# Rows that go on behind windows without tokens.
@example(sizes=[[3], [0, 0], [4], [0], [5], [2]], window=1, seed=None, width=9, batches=[[0, 1]], epoch=0)
def test_rows_filled_at_once_are_those_read_one_by_one(
    sizes: list[list[int]], window: int, seed: int | None, width: int, batches: list[list[int]], epoch: int
) -> None:
    shards = numbered(sizes)
    stream, _ = stream_over(shards, window, seed, lanes=2)
    plain, _ = stream_over(shards, window, seed, lanes=2)
    buffer = RowBuffer(width, np.dtype("<u2"), with_ends=True)
    hints = np.array([0, 10**9])  # whatever a hint says, it is only where to look first
    for places in batches * 2:
        tokens = np.array(places) % stream.tokens_per_epoch
        found = buffer.rows(len(tokens))
        backwards = np.arange(len(tokens))[::-1].copy()
        stream.fill(buffer, [Piece(epoch, backwards, tokens, np.arange(len(tokens)) % 2)], hints)
        assert found.tokens is not None
        assert found.document_ends is not None
        places, spans = found.document_ends
        for row, token in zip(backwards.tolist(), tokens.tolist(), strict=True):
            expected, expected_ends = np.zeros(width, "<u2"), []
            plain.read(epoch * plain.tokens_per_epoch + token, expected, expected_ends)
            assert found.tokens[row].tolist() == expected.tolist()
            assert places[slice(*spans[row])].tolist() == np.concatenate(expected_ends).tolist()
    stream.close()
    plain.close()


@settings(max_examples=80, deadline=None)
@given(
    sizes=SIZES,
    window=st.integers(1, 3),
    seed=st.none() | st.integers(0, 9),
    most=st.none() | st.integers(0, 9),
    places=st.lists(st.integers(0, 10**6), max_size=20),
)
def test_documents_are_found_at_any_places_of_an_epoch(
    sizes: list[list[int]], window: int, seed: int | None, most: int | None, places: list[int]
) -> None:
    shards = numbered(sizes)
    stream, _ = stream_over(shards, window, seed)
    expected = Oracle(shards, seed, window, 1).documents(1)
    places = [place % len(expected) for place in places]
    tokens, lengths = stream.joined(1, np.array(places, np.int64), most)
    assert lengths.tolist() == [len(expected[place][:most]) for place in places]
    assert tokens.tolist() == [token for place in places for token in expected[place][:most]]
    assert stream.lengths(1, np.array(places, np.int64)).tolist() == [len(expected[place]) for place in places]
    stream.close()


def walk(stream: TokenStream, sequences: Sequences, steps: int, rows: int) -> list[int]:
    """Read steps as packed sequences are, and return how many windows were in memory after each."""
    ahead, buffer = (
        Lookahead(sequences, stream.prepare, stream.window),
        RowBuffer(stream._width, np.dtype("<u2"), with_ends=False),
    )
    hints, held = np.zeros(sequences.lanes, np.int64), []
    for number in range(steps):
        step = Step(number * rows, rows, 0, 1, sequences.lanes)
        found, pieces = buffer.rows(rows), ahead.pieces(step)
        stream.fill(buffer, pieces, hints)
        assert found.tokens is not None
        for epoch, own, tokens, _ in pieces:
            for row, token in zip(own.tolist(), tokens.tolist(), strict=True):
                assert found.tokens[row].tolist() == expected_tokens(stream, epoch, token)
        held.append(len(stream._loaded.windows))
    return held


def expected_tokens(stream: TokenStream, epoch: int, token: int) -> list[int]:
    plain, _ = PLAIN[id(stream)]
    out = np.zeros(stream._width, "<u2")
    plain.read(epoch * stream.tokens_per_epoch + token, out)
    return out.tolist()


PLAIN: dict[int, tuple[TokenStream, Shelf]] = {}


def test_a_block_is_brought_once_an_epoch_and_twice_where_its_window_straddles_two_lanes() -> None:
    shards = numbered([[40] * 20] * 70)
    lanes, width = 4, 21
    stream, shelf = stream_over(shards, 2, 1, lanes=lanes, stride=width - 1, width=width)
    PLAIN[id(stream)] = stream_over(shards, 2, 1, lanes=lanes)
    sequences = Sequences(stream.tokens_per_epoch, width - 1, lanes)
    held = walk(stream, sequences, 3 * sequences.first(1) // 8, 8)
    stream.close()
    assert max(held) <= 3 * lanes  # each lane's, those at a border, and those that are loaded ahead
    assert len(shelf.brought) <= 3 * (70 + 2 * (lanes + 1) * 2) + 4 * 2 * lanes


@pytest.mark.parametrize("end", [None, 1])
def test_windows_of_the_next_epoch_are_asked_for_before_the_border_unless_the_stream_ends_there(
    end: int | None,
) -> None:
    shards = numbered([[40] * 20] * 70)
    stream, _ = stream_over(shards, 2, 1, lanes=4, stride=20, width=21, end=end)
    PLAIN[id(stream)] = stream_over(shards, 2, 1, lanes=4, end=end)
    sequences = Sequences(stream.tokens_per_epoch, 20, 4)
    walk(stream, sequences, sequences.first(1) // 8, 8)
    loaded = stream._loaded
    behind = {key for key in (*loaded.windows, *loaded.pending, *loaded.asked) if key[0] == 1}
    stream.close()
    assert len(behind) >= 4 if end is None else not behind  # of every lane


def test_behind_its_end_a_stream_is_zeros() -> None:
    stream, _ = stream_over(numbered([[3, 4], [5]]), 1, 1, end=2)
    out = np.ones(40, "<u2")
    stream.read(0, out)
    assert np.count_nonzero(out) == 24
    assert not out[24:].any()
    stream.read(30, out)
    assert not out.any()
    stream.close()


def test_windows_ahead_of_every_lane_are_asked_for_before_they_are_read() -> None:
    shards = numbered([[40] * 20] * 70)
    stream, shelf = stream_over(shards, 2, 1, lanes=4, stride=20, width=21)
    sequences = Sequences(stream.tokens_per_epoch, 20, 4)
    for begin in range(0, 160, 8):
        places, lanes = sequences.places(0, np.arange(begin, begin + 8))
        stream.prepare([Piece(0, np.arange(8), places, lanes)])
        read_rows(stream, places, lanes)
    await_asked(shelf, {int(b) for place in places for b in blocks_from(stream, int(place))})
    stream.close()


def test_a_stream_reads_its_first_rows_before_it_asks_for_whole_blocks() -> None:
    shards = numbered([[40] * 20] * 70)
    stream, shelf = stream_over(shards, 2, 1, lanes=4, stride=20, width=21)
    places, lanes = Sequences(stream.tokens_per_epoch, 20, 4).places(0, np.arange(4))
    stream.prepare([Piece(0, np.arange(4), places, lanes)])
    for loading in stream._loaded.pending.values():
        loading.result()
    assert not shelf.asked
    read_rows(stream, places, lanes)
    # Then for those of these rows, and not yet for those behind them.
    first = {int(b) for place in places for b in blocks_from(stream, int(place))[:2]}
    await_asked(shelf, first)
    assert shelf.asked == first
    stream.close()


def test_where_bytes_are_copied_first_rows_are_read_before_their_blocks() -> None:
    shards = numbered([[40] * 20] * 70)
    stream, shelf = stream_over(shards, 2, 1, lanes=4, stride=20, width=21, copies=True)
    plain, _ = stream_over(shards, 2, 1, lanes=4)
    PLAIN[id(stream)] = plain, shelf
    places, lanes = Sequences(stream.tokens_per_epoch, 20, 4).places(0, np.arange(4))
    stream.prepare([Piece(0, np.arange(4), places, lanes)])
    expected = [expected_tokens(stream, 0, token) for token in places.tolist()]
    assert read_rows(stream, places, lanes) == expected
    windows = [stream._loaded.windows[key] for key in stream._loaded.completing]
    assert len(windows) == len(stream._loaded.windows) > 0
    for coming in list(stream._loaded.completing.values()):
        coming.result(10)
    assert all((window.blocks[:, 0] > 0).all() for window in windows)
    assert len(shelf.brought) == sum(len(window.blocks) for window in windows)
    assert read_rows(stream, places, lanes) == expected
    stream.close()


def read_rows(stream: TokenStream, places: NDArray[np.int64], lanes: NDArray[np.int64]) -> list[list[int]]:
    """Return rows of epoch 0."""
    buffer = RowBuffer(stream._width, np.dtype("<u2"), with_ends=False)
    found = buffer.rows(len(places), None)
    stream.fill(buffer, [Piece(0, np.arange(len(places)), places, lanes)], np.zeros(4, np.int64))
    rows: list[list[int]] = found.tokens.tolist()
    return rows


def await_asked(shelf: Shelf, wanted: set[int]) -> None:
    deadline = time.monotonic() + 10
    while not wanted <= shelf.asked and time.monotonic() < deadline:
        time.sleep(0.01)
    assert wanted <= shelf.asked


def test_a_first_step_looks_for_no_other_and_later_ones_for_ever_more() -> None:
    found: list[int] = []
    sequences = Sequences(100_000, 20, 4)
    ahead = Lookahead(sequences, lambda pieces: found.append(sum(len(piece.places) for piece in pieces)), 25_000)
    for begin in range(0, 1208, 8):
        ahead.pieces(Step(begin, 8, 0, 1, 4))
    assert found == [8, 64, 512, 624]  # at the most an eighth of a window of each lane


def test_a_mix_of_tiny_sources_makes_its_first_batch_without_the_windows_of_many_epochs() -> None:
    streams, shelves = {}, []
    for name in ("a", "b", "c"):
        stream, shelf = stream_over(numbered([[10] * 3]), 1, 0, lanes=4, stride=10, width=11, waits=False)
        streams[name] = stream, Sequences(30, 10, 4)
        shelves.append(shelf)
    mixture = Mixture(list(streams), 0, 4, [(0, dict.fromkeys(streams, Fraction(1, 3)))])
    mixed = MixedSequences(streams, mixture, width=11, boundaries=False)
    mixed.read(Step(0, 8, 0, 1, 4))
    made = [len(stream._loaded.tables) for stream, _ in streams.values()]
    assert max(made) <= 8
    assert sum(len(shelf.brought) for shelf in shelves) <= 2 * 8
    assert [stream.order._epochs.cache_info().misses <= 10 for stream, _ in streams.values()] == [True] * 3
    mixed.close()


def blocks_from(stream: TokenStream, token: int) -> list[int]:
    """Return the blocks of the window of a token of epoch 0 and of the next one."""
    order = stream.order.epoch(0)
    window = int(np.searchsorted(order.starts, token, side="right")) - 1
    after = min(window + 1, stream.order.windows - 1)
    return [*order.window_blocks(window).tolist(), *order.window_blocks(after).tolist()]


def test_windows_that_nothing_prepared_do_not_pile_up_over_epochs() -> None:
    stream, _ = stream_over(numbered([[5] * 4] * 30), window=2, seed=1)
    out = np.zeros(11, dtype="<u2")
    for start in range(0, 600 * 20, 11):
        stream.read(start, out)
        assert len(stream._loaded.windows) <= 8
        assert len(stream._loaded.tables) <= 2
    stream.close()


def test_an_error_while_loading_ahead_is_raised_when_that_window_is_read() -> None:
    stream, shelf = stream_over(numbered([[50] * 4] * 6), window=2, seed=None, stride=50, width=50)
    memory = shelf.memory

    def failing(first: int, last: int) -> Any:
        if first == 2:
            raise OSError("shard 2 is gone")
        return memory(first, last)

    shelf.memory = failing  # type: ignore[method-assign]
    lanes = np.zeros(4, np.int64)
    stream.prepare([Piece(0, np.arange(4), np.arange(4) * 100, lanes)])
    stream.read(0, np.zeros(400, dtype="<u2"))
    with pytest.raises(OSError, match="shard 2 is gone"):
        stream.read(400, np.zeros(1, dtype="<u2"))
    stream.close()


def test_an_index_that_points_outside_its_block_is_an_error_not_a_read_past_its_end() -> None:
    stream, shelf = stream_over(numbered([[5] * 4]), window=1, seed=None)
    index = shelf.index
    far = np.array([0, 1, 2, (1 << 56) - 1])
    shelf.index = lambda firsts, lasts: (far, index(firsts, lasts)[1])  # type: ignore[method-assign]
    with pytest.raises(CorruptShardError, match="outside its block"):
        stream.read(0, np.zeros(3, "<u2"))
    stream.close()


def test_an_index_of_other_counts_than_the_order_was_made_of_is_refused() -> None:
    stream, shelf = stream_over(numbered([[5] * 4, [6] * 4]), window=1, seed=None)
    index = shelf.index
    shelf.index = lambda firsts, lasts: index(firsts + 1, lasts + 1)  # type: ignore[method-assign]
    with pytest.raises(CorruptShardError, match=r"shard 0, documents from 0 on.*24 tokens.*but 20"):
        stream.read(0, np.zeros(3, "<u2"))
    stream.close()


def test_closing_leaves_no_thread() -> None:
    before = threading.active_count()
    stream, _ = stream_over(numbered([[50] * 4] * 6), window=1, seed=0, lanes=2, stride=50, width=50)
    stream.prepare([Piece(0, np.arange(2), np.array([0, 600]), np.arange(2))])
    stream.read(0, np.zeros(900, dtype="<u2"))
    stream.close()
    for thread in threading.enumerate():
        if thread.name.startswith("shardwright-windows"):
            thread.join(5)
    assert threading.active_count() <= before
