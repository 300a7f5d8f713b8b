"""The token stream gives what its definition says at any place, and refuses an index that does not fit it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.errors import CorruptShardError
from pipeline.stream.batch.rows import RowBuffer
from pipeline.stream.indexed.token_stream import Piece
from tests.oracle import Oracle
from tests.token_streams import SIZES, numbered, stream_over


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


def test_behind_its_end_a_stream_is_zeros() -> None:
    stream, _ = stream_over(numbered([[3, 4], [5]]), 1, 1, end=2)
    out = np.ones(40, "<u2")
    stream.read(0, out)
    assert np.count_nonzero(out) == 24
    assert not out[24:].any()
    stream.read(30, out)
    assert not out.any()
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
