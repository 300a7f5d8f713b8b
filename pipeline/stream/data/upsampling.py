"""``.upsample``: a field of scores says how often an epoch reads each document, by quantile.

The shards are listed as often as the documents of the highest number are read. Listing ``k`` has the documents that are read more
than ``k`` times. So copies take no disk, and the blocks of each listing are shuffled independently.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...shards.extents.extent_table import running_sums
from .counted_data import Repeats
from .shard_data import ShardFiles


class UpsampledFiles(ShardFiles):
    """Shards of which an epoch reads each document as often as ``times`` says for its quantile of the field ``by``.

    A redacted document keeps its score if that is a number with a fraction. Without a score, it is in no quantile, and not read.
    """

    def __init__(self, files: ShardFiles, by: str, times: Sequence[int]) -> None:
        table, most = files.selected_extents.table, max(times)
        lengths, scores = files.field(by)
        of_document = _times(files, by, scores, times)
        kept = [of_document > listing for listing in range(most)]
        tokens, documents = (
            np.concatenate([np.add.reduceat(own * each, table.document_sums[:-1]) for each in kept])
            for own in (lengths, np.int64(1))
        )
        vars(self).update(vars(files.listed([*range(table.shards)] * most)))
        self._whole = files
        self.repeats, self.rows = Repeats(of_document, tokens, documents), np.flatnonzero(documents)
        self.tokens, self.documents = (
            np.diff(running_sums(counts.reshape(most, -1).sum(0))[table.shard_bounds]).tolist()
            for counts in (tokens, documents)
        )
        self.split = f"{files.split}, upsampled by {by} {','.join(map(str, times))}"
        self.label = f"{files.label}.upsample({by!r}, {list(times)})"
        digest = hashlib.sha256(of_document.tobytes()).hexdigest()
        self.fingerprint = hashlib.sha256(json.dumps([files.fingerprint, "upsampled", digest]).encode()).hexdigest()

    def find(self, document: str) -> list[tuple[int, int]]:
        """Return shard and number of the document in each listing that has it, or in the first listing if none has it."""
        assert self.repeats is not None
        table, found = self._whole.table(), self._whole.find(document)
        ordinals = [int(table.document_sums[table.shard_bounds[shard]]) + number for shard, number in found]
        times = [max(1, int(each)) for each in self.repeats.times[ordinals]]
        return [
            (listing * table.shards + shard, number)
            for (shard, number), count in zip(found, times, strict=True)
            for listing in range(count)
        ]


def _times(files: ShardFiles, by: str, scores: list[Any], times: Sequence[int]) -> NDArray[np.uint8]:
    """Return how often an epoch reads each document, by its score."""
    table, rows = files.selected_extents.table, files.rows
    streamed = np.ones(len(scores), bool)
    if rows is not None:  # of a split
        streamed = np.repeat(np.isin(np.arange(len(table)), rows), table.documents)
    for shard, redacted in files.redacted.items():
        for ordinal in (table.document_sums[table.shard_bounds[shard]] + redacted).tolist():
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
