"""Windows are loaded ahead of their rows, each block once, and no more of them are kept than what is read needs."""

from __future__ import annotations

import threading
import time
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.stream.batch.rows import RowBuffer
from pipeline.stream.indexed.lookahead import Lookahead
from pipeline.stream.indexed.mixed import MixedSequences
from pipeline.stream.indexed.token_stream import Piece, TokenStream
from pipeline.stream.order import Sequences, Step
from pipeline.stream.order.mixture import Mixture
from tests.token_streams import Shelf, numbered, stream_over


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


@settings(max_examples=100, deadline=None)
@given(
    begins=st.lists(st.integers(0, 300), min_size=1, max_size=8),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    ranks=st.sampled_from([1, 2, 3]),
)
def test_a_step_has_the_same_rows_whatever_was_asked_before(begins: list[int], sizes: list[int], ranks: int) -> None:
    order = Sequences(tokens=1000, stride=3, lanes=4)
    ahead = Lookahead(order, lambda pieces: None, window=500)
    for number, begin in enumerate(begins):
        size = sizes[number % len(sizes)] * ranks
        for later in (begin, begin + size, begin + 2 * size):
            step = Step(later, size, rank=ranks - 1, ranks=ranks, lanes=4)
            alone = Lookahead(order, lambda pieces: None, window=500).pieces(step)
            assert str(ahead.pieces(step)) == str(alone)


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
