"""The documents of one shuffle window in their shuffled order, and the memory that holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import CorruptShardError
from .gather import arrange

_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ShuffleWindow:
    """The documents of a window in their order.

    ``ends[j]`` tokens come before document ``j`` (int64, one more entry than documents). ``places[j]`` is the number of its
    block in the window, shifted by `gather.PLACE_BITS`, and its first token in that block. ``blocks`` (``[blocks, 2]``): the
    address of each block's first token, 0 where its tokens are read when they are needed, and how many it holds.
    ``memory`` keeps what lies at the addresses alive, for each block (None: nothing does) or for all. ``shards`` and
    ``offsets`` say where each block begins.
    """

    ends: NDArray[np.int64]
    places: NDArray[np.int64]
    blocks: NDArray[np.int64]
    memory: list[Any]
    shards: NDArray[np.integer[Any]]
    offsets: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        starts: NDArray[np.int64],
        lengths: NDArray[np.uint32],
        documents: NDArray[np.int64],
        offsets: NDArray[np.int64],
        sizes: NDArray[np.int64],
        order: NDArray[np.int64] | None,
        blocks: NDArray[np.int64],
        memory: list[Any],
        item: int,
        shards: NDArray[np.integer[Any]] = _NONE,
    ) -> ShuffleWindow:
        """Put documents in ``order``: their ``starts`` (bytes in their files) and ``lengths``, listed block by block.

        Each block has so many ``documents``, begins at byte ``offsets`` of its file and has ``sizes`` bytes. Raises
        ``CorruptShardError`` for a document that does not lie in its block, naming their numbers.
        """
        places, ends = np.empty(len(starts), np.int64), np.empty(len(starts) + 1, np.int64)
        given = np.stack([documents, offsets, sizes // item], axis=1)
        wrong = arrange(starts, lengths, given, _NONE if order is None else order, item, ends, places)
        if wrong >= 0:
            block = int(np.searchsorted(np.cumsum(documents), wrong, side="right"))
            raise CorruptShardError(
                f"block {block} of a window: the index puts a document at byte {int(starts[wrong])} with "
                f"{int(lengths[wrong])} tokens, outside its block of {int(sizes[block])} bytes from byte {int(offsets[block])}"
            )
        return cls(ends, places, blocks, memory, shards, offsets)

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        """Addresses of ends, places and blocks, and how many documents there are, as `gather` wants them."""
        return self.ends.ctypes.data, self.places.ctypes.data, self.blocks.ctypes.data, len(self.places)

    def origin(self, block: int, skipped: int) -> tuple[int, int]:
        """Return the shard of a block, and the byte there that lies ``skipped`` bytes behind the block's first."""
        return int(self.shards[block]), int(self.offsets[block]) + skipped

    def cut(self, start: int, stop: int) -> tuple[int, int]:
        """Return the documents, first and behind the last, that hold tokens ``start`` to ``stop``."""
        # "right" skips documents of no tokens that end where the first one begins.
        first = int(self.ends.searchsorted(start, side="right")) - 1
        return first, first + int(self.ends[first:].searchsorted(stop, side="left"))
