"""Hashes, blocks and windows: how the documents of an epoch are shuffled (sections 1 to 3 of the definition).

All randomness of a stream comes from keys and permutations of this module.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from ...integer_hash import GOLDEN, mix64
from ...weak_methods import weak_lru_cache

LANES, LANES_OF_MIX = 64, 16
_KIB, _MIB = 1 << 10, 1 << 20
_MOST_EXTENTS = 4  # of a block
_BLOCK_BYTES = 512 * _KIB
_WINDOW_BYTES, _WINDOW_BYTES_OF_MIX = 4 * _MIB, 3 * _MIB
_MIX_BYTES = 256 * _MIB  # of the windows of all lanes of all sources
_ONE_WINDOW_BYTES = 128 * _MIB  # of an epoch in one window, which takes three times its size when the epoch changes
_EPOCHS_KEPT, _BLOCKS_KEPT = 3, 1024  # lanes of a mix read many epochs of a tiny source at once


@lru_cache(maxsize=64, typed=True)  # a sampled stream derives one key for every batch
def derive_key(tag: str, *parts: int | str) -> int:
    """Return a 64-bit key for a tag and its parts: blake2b of their JSON, so that different parts have different keys.

    >>> derive_key("shards", 0, 1) == derive_key("shards", 0, 1)
    True
    >>> derive_key("shards", 0, 1) == derive_key("shards", 1, 0)
    False
    """
    return int.from_bytes(hashlib.blake2b(json.dumps([tag, *parts]).encode(), digest_size=8).digest(), "little")


def keyed_hashes(n: int, key: int) -> NDArray[np.uint64]:
    """Return mix64(mix64(number * 0x9E3779B97F4A7C15) ^ key) for each number below ``n``. No two are equal."""
    hashes: NDArray[np.uint64] = mix64(mix64(np.arange(n, dtype=np.uint64) * GOLDEN) ^ np.uint64(key))
    return hashes


def permutation(n: int, key: int) -> NDArray[np.int64]:
    """Return the numbers below ``n``, sorted by their hashes under a key.

    >>> sorted(permutation(5, derive_key("example"))) == [0, 1, 2, 3, 4]
    True
    """
    return np.argsort(keyed_hashes(n, key))


@dataclass(frozen=True, eq=False)
class Blocks:
    """The blocks of a split, in the order of the files.

    Block ``k`` holds the extents ``bounds[k]`` to ``bounds[k + 1]`` (``[blocks + 1]``), with ``tokens[k]`` tokens and
    ``documents[k]`` documents (int64). All blocks have ``bytes`` bytes. ``extents`` is ``g``, the most extents of a block.
    """

    bounds: NDArray[np.int64]
    tokens: NDArray[np.int64]
    documents: NDArray[np.int64]
    bytes: int
    extents: int

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def of_extents(
        cls,
        counts: NDArray[np.integer],
        size_sums: NDArray[np.int64],
        token_sums: NDArray[np.int64],
        document_sums: NDArray[np.int64],
        *,
        in_mix: bool = False,
    ) -> Blocks:
        """Cut blocks out of extents; ``counts`` is how many extents each shard has.

        The sums (int64 ``[extents + 1]``) are the bytes, tokens and documents before each extent, and last those of all.

        >>> sums = np.arange(6)
        >>> Blocks.of_extents(np.array([5, 0]), sums, sums, sums).bounds.tolist()
        [0, 2, 5]
        """
        extents, total = len(size_sums) - 1, int(size_sums[-1])
        most = 1 if in_mix else max(1, min(_MOST_EXTENTS, _BLOCK_BYTES * extents // max(1, total)))
        counts = np.asarray(counts, np.int64)
        blocks = -(-counts // most)
        numbers = np.arange(int(blocks.sum())) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        firsts = np.repeat(np.cumsum(counts) - counts, blocks)
        bounds = np.append(firsts + numbers * np.repeat(counts, blocks) // np.repeat(blocks, blocks), extents)
        return cls(bounds, np.diff(token_sums[bounds]), np.diff(document_sums[bounds]), total, most)


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch's blocks in their order, cut into windows.

    ``cuts`` is the index of each window's first block. ``starts`` and ``document_starts`` are the tokens and documents before
    each window. These three have one more entry for the end.
    """

    blocks: NDArray[np.int64]
    cuts: NDArray[np.int64]
    starts: NDArray[np.int64]
    document_starts: NDArray[np.int64]

    def window_blocks(self, number: int) -> NDArray[np.int64]:
        return self.blocks[self.cuts[number] : self.cuts[number + 1]]


@dataclass(frozen=True, eq=False)
class Shuffle:
    """The order of blocks and documents over epochs.

    ``window`` counts blocks; ``seed`` None keeps the order of the files. ``name`` is part of every key, so that sources with the
    same seed are shuffled differently.
    """

    blocks: Blocks
    lanes: int
    window: int
    seed: int | None
    name: str = ""

    @cached_property
    def windows(self) -> int:
        """The number of windows of an epoch."""
        return window_count(len(self.blocks), self.lanes, self.window, self.blocks.bytes)

    @cached_property
    def tokens(self) -> int:
        """The number of tokens of an epoch."""
        return int(self.blocks.tokens.sum())

    @cached_property
    def documents(self) -> int:
        """The number of documents of an epoch."""
        return int(self.blocks.documents.sum())

    def epoch(self, epoch: int) -> Epoch:
        """Return the order of an epoch. The last few epochs are cached, more of them if they have few blocks."""
        return self._epochs(epoch)

    @cached_property
    def _epochs(self) -> Callable[[int], Epoch]:
        most = max(_EPOCHS_KEPT, _BLOCKS_KEPT // max(1, len(self.blocks)))
        kept: Callable[[int], Epoch] = weak_lru_cache(self._make_epoch, most)
        return kept

    def _make_epoch(self, epoch: int) -> Epoch:
        count = len(self.blocks)
        blocks = np.arange(count) if self.seed is None else permutation(count, self._key("blocks", epoch))
        cuts = np.arange(self.windows + 1) * count // self.windows
        starts, document_starts = (
            _before(counts, blocks)[cuts] for counts in (self.blocks.tokens, self.blocks.documents)
        )
        return Epoch(blocks, cuts, starts, document_starts)

    def document_order(self, epoch: int, window: int, count: int) -> NDArray[np.int64] | None:
        """Return the order of a window's ``count`` documents, or None to keep the order of the files."""
        if self.seed is None or count < 2:
            return None
        return permutation(count, self._key("block documents", epoch, window))

    def _key(self, tag: str, *parts: int) -> int:
        assert self.seed is not None
        return derive_key(tag, self.name, self.seed, *parts)


def window_count(blocks: int, lanes: int, window: int, size: int = 0) -> int:
    """Return how many windows an epoch of ``blocks`` blocks and ``size`` bytes has.

    >>> window_count(512, 64, 8), window_count(513, 64, 8), window_count(512, 64, 8, size=1 << 28)
    (1, 63, 63)
    """
    if blocks <= lanes * window and size <= _ONE_WINDOW_BYTES:
        return 1
    count = max(1, blocks // window)
    while math.gcd(count, lanes) != 1:
        count -= 1
    return count


def default_window(blocks: Blocks) -> int:
    """Return how many blocks of a single source make a window by default."""
    return sequential_window(blocks, _WINDOW_BYTES)


def mix_window(blocks: Blocks, lanes: int, sources: int) -> int:
    """Return how many blocks of a source of a mix make a window by default."""
    return sequential_window(blocks, min(_WINDOW_BYTES_OF_MIX, _MIX_BYTES // (lanes * sources)))


def sequential_window(blocks: Blocks, size: int) -> int:
    """Return how many blocks make about ``size`` bytes, at least one."""
    total = max(1, blocks.bytes)
    return max(1, (2 * size * len(blocks) + total) // (2 * total))


def _before(counts: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    sums = np.zeros(len(order) + 1, np.int64)
    np.cumsum(counts[order], out=sums[1:])
    return sums
