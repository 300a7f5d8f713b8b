"""The plan of a new dataset's shards: the split of each document, and the documents of each shard."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..draws import drawn

TRAIN, VAL = 0, 1
SPLITS = ("train", "val")
TOKENS_PER_SHARD = 64_000_000  # 128 MB of uint16: large enough for object stores, small enough to shuffle by
SHARDS_WANTED = 16  # a smaller dataset is also cut into this many, so that it shuffles well,
DOCUMENTS_PER_SHARD = 1_000  # if each holds this many documents


def in_validation(hashes: NDArray[np.uint8], seed: int, val_fraction: float) -> NDArray[np.bool_]:
    """Return which documents belong to validation, by the hashes of their contents (uint8 ``[n, 16]``).

    The answer depends neither on the order of the documents, nor on other documents, nor on the cut into shards.
    """
    return drawn(hashes, seed, "val", val_fraction)


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard to write: survivors ``[first, last)`` of its split, counted in input order, all of one source."""

    split: str
    number: int
    first: int
    last: int
    source: str = ""

    @property
    def name(self) -> str:
        return f"{self.split}-{self.number:06d}.tar"


def lay_out(
    lengths: NDArray[np.int64], split: str, tokens_per_shard: int | None, runs: Sequence[tuple[str, int]] = ()
) -> list[ShardPlan]:
    """Cut the documents of a split into shards of balanced token counts, so that none is much smaller than the others.

    ``lengths`` are the tokens of the documents in order. ``runs`` are their sources in order, each with its number of
    consecutive documents. A shard holds documents of one source alone, so that a stream can mix the sources with other
    weights. The shards of each source are balanced.

    >>> [(s.first, s.last) for s in lay_out(np.full(10, 100), "train", 300)]
    [(0, 3), (3, 6), (6, 10)]
    >>> [(s.first, s.last, s.source) for s in lay_out(np.full(10, 100), "train", 300, [("a", 4), ("b", 6)])]
    [(0, 4, 'a'), (4, 7, 'b'), (7, 10, 'b')]
    """
    if not len(lengths):
        return []
    runs, ends = runs or [("", len(lengths))], np.cumsum(lengths)
    starts = np.cumsum([0, *(number for _, number in runs)])
    tokens, tokens_before = int(ends[-1]), [0, *ends[starts[1:] - 1].tolist()]  # tokens before each run
    wanted = max(1, round(tokens / (tokens_per_shard or TOKENS_PER_SHARD)))
    if tokens_per_shard is None:
        wanted = max(wanted, min(SHARDS_WANTED, len(lengths) // DOCUMENTS_PER_SHARD))
    targets: list[int] = []
    for begin, end in itertools.pairwise(tokens_before):
        shards = max(1, round((end - begin) * wanted / max(1, tokens)))
        targets += [begin + (end - begin) * k // shards for k in range(1, shards)]
    cuts = np.searchsorted(ends, targets, side="right")
    bounds = sorted({*starts.tolist(), *cuts.tolist()})  # a document longer than a shard makes equal cuts
    source = [runs[int(np.searchsorted(starts, first, side="right")) - 1][0] for first in bounds[:-1]]
    return [ShardPlan(split, k, a, b, source[k]) for k, (a, b) in enumerate(itertools.pairwise(bounds))]
