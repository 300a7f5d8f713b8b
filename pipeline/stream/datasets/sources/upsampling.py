"""``.upsample``: a field of scores says how often an epoch reads each document, by quantile.

The shards are listed as often as the documents of the highest number are read. Listing ``k`` has the documents that are read more
than ``k`` times. So copies take no disk, and the blocks of each listing are shuffled independently.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import ConfigError
from .selection import Repeats
from .shard_data import ShardFiles


def upsampled(files: ShardFiles, by: str, times: Sequence[int]) -> ShardFiles:
    """Return shards whose documents an epoch reads as often as ``times`` says for their quantile of the field ``by``.

    A redacted document keeps its score if that is a number with a fraction. Without a score, it is in no quantile, and not read.
    """
    table, most = files.extents.table, max(times)
    lengths, scores = files.field(by)
    of_document = _times(files, by, scores, times)
    kept = [of_document > listing for listing in range(most)]
    tokens, documents = (
        np.concatenate([np.add.reduceat(own * each, table.document_sums[:-1]) for each in kept])
        for own in (lengths, np.int64(1))
    )
    repeats = Repeats(of_document, tokens, documents, most)
    shards = [*(files.selection.shards or range(table.shards))] * most
    digest = hashlib.sha256(of_document.tobytes()).hexdigest()
    return files.part(
        replace(files.selection, shards=shards, rows=np.flatnonzero(documents), repeats=repeats),
        split=f"{files.split}, upsampled by {by} {','.join(map(str, times))}",
        label=f"{files.label}.upsample({by!r}, {list(times)})",
        fingerprint=hashlib.sha256(json.dumps([files.fingerprint, "upsampled", digest]).encode()).hexdigest(),
    )


def _times(files: ShardFiles, by: str, scores: list[Any], times: Sequence[int]) -> NDArray[np.uint8]:
    """Return how often an epoch reads each document, by its score."""
    table, rows = files.extents.table, files.selection.rows
    streamed = np.ones(len(scores), bool)
    if rows is not None:  # of a split
        streamed = np.repeat(np.isin(np.arange(len(table)), rows), table.documents)
    selection = replace(files.selection, rows=None)
    for ordinal in np.flatnonzero(selection.among(selection.redacted, *selection.documents())).tolist():
        streamed[ordinal] &= scores[ordinal] is not None
    numbers = np.flatnonzero(streamed)
    of_document = np.zeros(len(scores), np.uint8)
    quantile = quantiles(_numbers(by, [scores[number] for number in numbers.tolist()]), len(times))
    of_document[numbers] = np.array(times, np.uint8)[quantile]
    return of_document


def quantiles(scores: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return which of ``count`` quantiles each score is in, 0 for the lowest. Equal scores are in the same quantile.

    The rank of a score is the share of scores below it, plus half the share of scores that equal it.

    >>> quantiles(np.array([0.3, 0.1, 0.2, 0.4]), 2).tolist(), quantiles(np.array([3, 3, 3, 3, 5]), 4).tolist()
    ([1, 0, 0, 1], [1, 1, 1, 1, 3])
    """
    ordered = np.sort(scores)
    twice = np.searchsorted(ordered, scores, side="left") + np.searchsorted(ordered, scores, side="right")
    found: NDArray[np.int64] = twice * count // max(1, 2 * len(scores))
    return found


def _numbers(by: str, values: list[Any]) -> NDArray[np.float64]:
    """Return the values of a field as numbers; ``ConfigError`` says how many are no numbers."""
    odd = [value for value in values if type(value) not in (int, float) or math.isnan(value)]
    if odd:
        raise ConfigError(
            f"{len(odd):,} of {len(values):,} documents have no number in {by!r}, such as {odd[0]!r}; leave them out when you "
            f"build: --where '{by} is not null'"
        )
    return np.array(values, np.float64)
