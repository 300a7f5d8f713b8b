"""Documents held out by a hash of their keys: in the same half wherever a document lies, and whatever lies beside it."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..atomic import write_json
from ..errors import ConfigError, CorruptShardError
from .data import KeyedData, KeyedShard, Keys, PlainShard
from .order import derive_key, mix64
from .window_index import Tokens

RULE = 1  # of the hash below
KEEP_ABOVE = 1_000_000  # documents of local shards, which take half a second to count, and are kept from there on
_TOGETHER = 4096  # keys that are hashed at once, each in the room of the longest


def held_out(keys: Keys, share: Fraction) -> NDArray[np.bool_]:
    """Say of each key whether its document is held out, as ``share`` of all documents are.

    The hash takes a key's UTF-8 bytes as 64-bit words, little-endian, zeros at the end, and mixes them one after another
    into a fixed start; what comes out below ``share`` of all 64-bit numbers is held out. So a document keeps its half
    in any order, company or number of shards, and a larger share holds out what a smaller one did, and more.

    >>> held_out(["000000000012", "000000000016"], Fraction(1, 2)).tolist()
    [True, False]
    """
    if len(keys) > _TOGETHER:
        parts = (keys[start : start + _TOGETHER] for start in range(0, len(keys), _TOGETHER))
        return np.concatenate([held_out(part, share) for part in parts])
    if not isinstance(keys, np.ndarray):  # names in tars, and ids in JSON, may hold what is no UTF-8
        keys = np.array([key.encode("utf-8", "surrogatepass") for key in keys], dtype=bytes)
    width = max(1, -(-keys.itemsize // 8))
    words = keys.astype(f"S{8 * width}").view("<u8").reshape(len(keys), width)
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
    """Return the rest and what is held out; every index is read for it, and the keys, but no token.

    Where that takes long, the counts are kept for the next time, under a name that covers shards, share and rule.
    """
    about = json.dumps([RULE, whole.fingerprint, str(share)])
    place = whole.kept and whole.kept / f"split-{hashlib.sha256(about.encode()).hexdigest()[:32]}.json"
    kept = _kept(place, whole)
    counts = kept or _count(whole, share)
    if place is not None and kept is None and (whole.index_threads > 1 or sum(whole.documents) > KEEP_ABOVE):
        with suppress(OSError):  # a read-only folder or a full disk: they are counted each time
            place.parent.mkdir(parents=True, exist_ok=True)
            write_json(place, counts)
    rest = {
        name: [all_ - held for all_, held in zip(getattr(whole, name), counts[name], strict=True)] for name in counts
    }
    return HalfData(whole, share, False, **rest), HalfData(whole, share, True, **counts)


def _count(whole: KeyedData, share: Fraction) -> dict[str, list[int]]:
    """Return how many documents and tokens of every shard are held out."""

    def count(number: int) -> tuple[int, int]:
        index = whole.index(number)
        held = index.lengths[held_out(whole.keys(number, index), share)]
        return len(held), int(held.sum())

    # Where shards are remote, counting them is waiting.
    with ThreadPoolExecutor(whole.index_threads, thread_name_prefix="shardwright-split") as threads:
        counts = list(threads.map(count, range(len(whole.documents))))
    return {"documents": [documents for documents, _ in counts], "tokens": [tokens for _, tokens in counts]}


def _kept(place: Path | None, whole: KeyedData) -> dict[str, list[int]] | None:
    """Return counts that were kept, or None where there are none that fit."""
    if place is None or not place.exists():
        return None
    try:
        counts = json.loads(place.read_text())
        for name, most in (("documents", whole.documents), ("tokens", whole.tokens)):
            if not all(0 <= held <= all_ for held, all_ in zip(counts[name], most, strict=True)):
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {"documents": counts["documents"], "tokens": counts["tokens"]}
