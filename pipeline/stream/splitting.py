"""Documents held out by a hash of their keys: in the same half wherever a document lies, and whatever lies beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, CorruptShardError
from .data import KeyedData, KeyedShard, PlainShard
from .order import derive_key, mix64
from .window_index import Tokens


def held_out(keys: Sequence[str], share: Fraction) -> NDArray[np.bool_]:
    """Say of each key whether its document is held out, as ``share`` of all documents are.

    The hash takes a key's UTF-8 bytes as 64-bit words, little-endian, zeros at the end, and mixes them one after another
    into a fixed start; what comes out below ``share`` of all 64-bit numbers is held out. So a document keeps its half
    in any order, company or number of shards, and a larger share holds out what a smaller one did, and more.

    >>> held_out(["000000000012", "000000000013"], Fraction(1, 2)).tolist()
    [True, False]
    """
    raw = np.array(list(map(str.encode, keys)), dtype=bytes)
    width = max(1, -(-raw.itemsize // 8))
    words = raw.astype(f"S{8 * width}").view("<u8").reshape(len(keys), width)
    hashes = np.full(len(keys), derive_key("split"), dtype=np.uint64)
    for word in words.T:
        hashes = np.where(word == 0, hashes, mix64(hashes ^ word))  # what is zero lies behind the key's end
    return hashes < np.uint64(int(share * 2**64))


def share_given(val: Any) -> Fraction:
    """Return a share as an exact rational, decimals as written; ``ConfigError`` unless it lies between 0 and 1."""
    try:
        share = Fraction(str(val))
    except ValueError:
        share = Fraction(0)
    if not 0 < share < 1 or isinstance(val, bool):
        raise ConfigError(f"val must be a share above 0 and below 1, as 0.01, got {val!r}")
    return share


class HalfData:
    """The documents of a source that are held out, or the rest of them."""

    def __init__(self, whole: KeyedData, share: Fraction, held: bool, documents: list[int], tokens: list[int]) -> None:
        self.name = whole.name
        self.split = f"{whole.split}, {'val' if held else 'without val'}={float(share):g}"
        self.dtype, self.eos_id, self.tokenizer = whole.dtype, whole.eos_id, whole.tokenizer
        self.documents, self.tokens = documents, tokens
        parts = json.dumps([whole.fingerprint, str(share), held])
        self.fingerprint = hashlib.sha256(parts.encode()).hexdigest()
        self._whole, self._share, self._held = whole, share, held

    def open(self, number: int) -> KeyedShard:
        shard = self._whole.open(number)
        ours = held_out(self._whole.keys(number, shard), self._share) == self._held
        lengths = shard.lengths[ours]
        if (len(lengths), int(lengths.sum())) != (self.documents[number], self.tokens[number]):
            raise CorruptShardError(
                f"shard {number} of split {self.split!r}: {len(lengths)} documents of {int(lengths.sum())} tokens, but it "
                f"had {self.documents[number]} of {self.tokens[number]} when it was split; it was replaced meanwhile"
            )
        return PlainShard(shard.tokens, shard.starts[ours], lengths)

    def reopen(self, number: int) -> Tokens:
        return self._whole.reopen(number)


def split_data(whole: KeyedData, share: Fraction) -> tuple[HalfData, HalfData]:
    """Return the rest and what is held out; every index is read for it, and the keys, but no token."""

    def count(number: int) -> tuple[int, int]:
        index = whole.index(number)
        held = index.lengths[held_out(whole.keys(number, index), share)]
        return len(held), int(held.sum())

    # Where shards are remote, counting them is waiting.
    with ThreadPoolExecutor(whole.index_threads, thread_name_prefix="shardwright-split") as threads:
        counts = list(threads.map(count, range(len(whole.documents))))
    documents, tokens = ([pair[k] for pair in counts] for k in range(2))
    rest = (
        [all_ - held for all_, held in zip(whole.documents, documents, strict=True)],
        [all_ - held for all_, held in zip(whole.tokens, tokens, strict=True)],
    )
    return HalfData(whole, share, False, *rest), HalfData(whole, share, True, documents, tokens)
