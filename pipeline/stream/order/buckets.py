"""Documents of similar length side by side: how a group of them is arranged (section 7 of the definition).

A batch that divides the bucket is of one length, neighbouring batches are not, and the order stays a function of the
sequence index alone: epochs hold what they held, and nothing depends on batch size, ranks or workers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .hashing import permutation

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
