"""Documents of similar length side by side, so that batches of them need little padding.

    group       the global order of an epoch is cut at the multiples of 64 buckets, and each group sorted by length
    bucket      ... and cut again at the multiples of one bucket; which of its buckets holds the shortest documents,
                which the next, and so on, is a permutation under a hash of (seed, epoch, group)

So a batch that divides the bucket is of one length, neighbouring batches are not, and the order stays a function of the
number alone: epochs hold what they held, and nothing depends on batch size, ranks or workers.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .order import derive_key, permutation
from .sequences import DocumentSequences
from .windows import TokenStream

GROUP = 64  # buckets: enough to tell lengths finely apart, few enough that a group is arranged within milliseconds


def arrange(lengths: NDArray[np.int64], first: int, bucket: int, key: int | None) -> NDArray[np.int64]:
    """Return which of a group's documents stands at each of its places.

    ``lengths`` are those of the documents in global order from ``first`` on; buckets, cut at multiples of ``bucket``,
    take their turns of the sorted documents in an order hashed by ``key``, or as they stand for None.

    >>> arrange(np.array([9, 1, 8, 2, 7]), first=3, bucket=2, key=None).tolist()
    [1, 3, 4, 2, 0]
    """
    stop = first + len(lengths)
    cuts = np.array([first, *range(first - first % bucket + bucket, stop, bucket), stop]) - first
    turns = np.arange(len(cuts) - 1) if key is None else permutation(len(cuts) - 1, key)
    places = np.concatenate([np.arange(cuts[turn], cuts[turn + 1]) for turn in turns.tolist()])
    arranged = np.empty(len(lengths), np.int64)
    arranged[places] = np.argsort(lengths, kind="stable")
    return arranged


class BucketedDocuments(DocumentSequences):
    """Whole documents, of which ``bucket`` neighbours are of similar length."""

    def __init__(self, stream: TokenStream, *, lanes: int, bucket: int, seed: int | None) -> None:
        super().__init__(stream, lanes=lanes)
        self._bucket = bucket
        self._seed = seed
        self._group = lru_cache(maxsize=2)(self._arrange)

    def documents(self, numbers: range) -> list[NDArray[Any]]:
        """Return the token ids of documents ``numbers`` of the global order, as read-only views."""
        found: list[NDArray[Any]] = []
        for epoch, those in groupby(numbers, self.epoch):
            inside = []
            for i in those:
                first, arranged = self._group(epoch, i // (GROUP * self._bucket))
                inside.append(first - self.first(epoch) + int(arranged[i - first]))
            found += self._inside(epoch, np.array(inside))
        return found

    def _arrange(self, epoch: int, group: int) -> tuple[int, NDArray[np.int64]]:
        """Return the first place of a group, as much of it as lies in the epoch, and which document stands where."""
        begin, size = self.first(epoch), GROUP * self._bucket
        first, stop = max(begin, group * size), min(self.first(epoch + 1), (group + 1) * size)
        documents, _ = self.order.places(epoch, np.arange(first - begin, stop - begin))
        lengths = self.stream.lengths(epoch, documents)
        key = None if self._seed is None else derive_key("buckets", self._seed, epoch, group)
        return first, arrange(lengths, first, self._bucket, key)
