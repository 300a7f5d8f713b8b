"""Measures how well documents are shuffled: the share of neighbours in a stream within 1% of a sorted corpus."""

from __future__ import annotations

import statistics
from functools import lru_cache

import numpy as np

from pipeline.shards.extents.extent_table import ExtentTable, running_sums
from pipeline.stream.order import LANES, Blocks, Sequences, Shuffle, default_window
from scripts.bench.data import SEQ_LEN

TOKENS_PER_DOCUMENT = 1000


def near_pairs(shards: int, documents: int, epoch: int, tenth: int, *, draws: int = 40) -> float:
    """Return the share of near pairs among neighbours in one tenth of an epoch. Documents have equal lengths."""
    order = equal_documents(shards, documents // shards, TOKENS_PER_DOCUMENT)
    sequences = Sequences(order.tokens, SEQ_LEN, LANES)
    documents = order.documents
    firsts = np.cumsum(order.blocks.documents) - order.blocks.documents
    first, after = sequences.first(epoch), sequences.first(epoch + 1)
    begin = first + (after - first) * tenth // 10

    @lru_cache(maxsize=2 * LANES)
    def permuted(epoch: int, window: int) -> list[int]:
        """Return the positions in the files of a window's documents, in the order of the stream."""
        blocks = order.epoch(epoch).window_blocks(window)
        listed = np.concatenate([np.arange(order.blocks.documents[block]) + firsts[block] for block in blocks])
        inside = order.document_order(epoch, window, len(listed))
        assert inside is not None  # there is a seed
        numbers: list[int] = listed[inside].tolist()
        return numbers

    def corpus_number(document: int) -> int:
        epoch, inside = divmod(document, documents)
        starts = order.epoch(epoch).document_starts
        number = int(np.searchsorted(starts, inside, side="right")) - 1
        return permuted(epoch, number)[inside - int(starts[number])]

    generator = np.random.default_rng(tenth)
    shares = []
    for _ in range(draws):
        i = begin + int(generator.integers(0, max(1, (after - first) // 10 - 400)))
        corpus_numbers: dict[int, None] = {}
        while len(corpus_numbers) < 512:
            epoch = sequences.epoch(i)
            (token,) = (
                sequences.positions(epoch, np.array([i - sequences.first(epoch)])) + epoch * sequences.tokens
            ).tolist()
            span = range(token // TOKENS_PER_DOCUMENT, (token + SEQ_LEN - 1) // TOKENS_PER_DOCUMENT + 1)
            corpus_numbers |= dict.fromkeys(map(corpus_number, span))
            i += 1
        at = np.array(list(corpus_numbers)[:512])
        gaps = np.abs(at[:, None] - at[None, :])[np.triu_indices(512, 1)]
        shares.append(float((gaps <= documents // 100).mean()))
    return statistics.mean(shares)


def equal_documents(shards: int, documents: int, tokens: int) -> Shuffle:
    """Return the default order of ``shards`` with ``documents`` each, of ``tokens`` each."""
    table = ExtentTable.of_documents(np.full(documents, tokens), "<u2")
    columns = (np.tile(column, shards) for column in (table.sizes, table.tokens, table.documents))
    blocks = Blocks.of_extents(np.full(shards, len(table)), *map(running_sums, columns))
    return Shuffle(blocks, LANES, default_window(blocks), seed=0)
