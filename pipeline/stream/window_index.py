"""The documents of one shuffle window in their shuffled order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[Any]
_NEAR = 128  # documents


class OpenShard(Protocol):
    """What a shard offers: all its elements, and where its documents begin (in elements) and how long they are.

    ``tokens`` is None where they are not on this machine yet: ``reopen`` brings them.
    """

    @property
    def tokens(self) -> Tokens | None: ...

    @property
    def starts(self) -> NDArray[np.int64]: ...

    @property
    def lengths(self) -> NDArray[np.int64]: ...


@dataclass(slots=True)
class WindowIndex:
    """The documents of a window in their shuffled order.

    ``ends[j]`` tokens come before document ``j`` (int64, one more entry than documents); it begins at element
    ``begins[j]`` (int64) of shard ``shards[j]`` (int32). ``empty`` says that some hold no token.
    """

    ends: NDArray[np.int64]
    begins: NDArray[np.int64]
    shards: NDArray[np.int32]
    empty: bool

    @classmethod
    def of(cls, numbers: list[int], opened: Sequence[OpenShard], order: NDArray[np.int64] | None) -> WindowIndex:
        """Join the indexes of shards ``numbers``, and put the documents in ``order``, if there is one."""
        lengths = np.concatenate([shard.lengths for shard in opened])
        begins = np.concatenate([shard.starts for shard in opened])
        shards = np.repeat(np.asarray(numbers, dtype=np.int32), [len(shard.lengths) for shard in opened])
        if order is not None:
            lengths, begins, shards = lengths[order], begins[order], shards[order]
        ends = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=ends[1:])
        return cls(ends, begins, shards, empty=bool(len(lengths)) and int(lengths.min()) == 0)

    def slices(self, first: int, last: int) -> tuple[list[int], list[int], list[int]]:
        """Return shard, begin and stop of documents ``first`` to ``last`` as Python integers."""
        begins, ends = self.begins[first:last], self.ends[first : last + 1]
        return self.shards[first:last].tolist(), begins.tolist(), (begins + ends[1:] - ends[:-1]).tolist()

    def cut(self, start: int, stop: int) -> tuple[int, int]:
        """Return the documents, first and after the last, that hold tokens ``start`` to ``stop``."""
        # "right" skips documents of no tokens that end where the first one begins.
        first = int(self.ends.searchsorted(start, side="right")) - 1
        near = self.ends[first : first + _NEAR]  # most often enough, and in the cache
        if int(near[-1]) < stop:
            near = self.ends[first:]
        return first, first + int(near.searchsorted(stop, side="left"))

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """Addresses of ends, begins and shards, and how many documents there are, as `kernels.gather` wants them."""
        return self.ends.ctypes.data, self.begins.ctypes.data, self.shards.ctypes.data, len(self.begins)
