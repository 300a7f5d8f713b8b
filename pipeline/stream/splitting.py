"""Documents held out by a hash of their keys: in the same half wherever a document lies, and whatever lies beside it.

A half can be split again. The hash of split ``level`` (0 for the first, 1 for a split of one of its halves, ...) starts from
a key of its own, so the splits are independent: of ``rest.split(val=0.1)`` a tenth of the rest is held out.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..atomic import write_json
from ..errors import ConfigError, CorruptShardError
from .data import Indexed, KeyedData, Keys, PlainShard
from .order import derive_key, mix64
from .window_index import Tokens

RULE = 1  # of the hash below
KEEP_ABOVE = 1_000_000  # documents of local shards, which take half a second to count, and are kept from there on
_TOGETHER = 4096  # keys that are hashed at once, each in the room of the longest
_NO_STARTS = np.zeros(0, np.int64)


def held_out(keys: Keys, share: Fraction, level: int = 0) -> NDArray[np.bool_]:
    """Say of each key whether split ``level`` holds its document out, as ``share`` of all documents are.

    The hash takes a key's UTF-8 bytes as 64-bit words, little-endian, zeros at the end, and mixes them one after another
    into a fixed start, ``derive_key("split")``, of a split of a half ``derive_key("split", level)``; what comes out
    below ``share`` of all 64-bit numbers is held out. So a document keeps its half in any order, company or number of
    shards, and a larger share holds out what a smaller one did, and more.

    >>> held_out(["000000000012", "000000000016"], Fraction(1, 2)).tolist()
    [True, False]
    """
    if len(keys) > _TOGETHER:
        parts = (keys[start : start + _TOGETHER] for start in range(0, len(keys), _TOGETHER))
        return np.concatenate([held_out(part, share, level) for part in parts])
    if not isinstance(keys, np.ndarray):  # names in tars, and ids in JSON, may hold what is no UTF-8
        keys = np.array([key.encode("utf-8", "surrogatepass") for key in keys], dtype=bytes)
    width = max(1, -(-keys.itemsize // 8))
    words = keys.astype(f"S{8 * width}").view("<u8").reshape(len(keys), width)
    start = derive_key("split", level) if level else derive_key("split")
    hashes = np.full(len(keys), start, dtype=np.uint64)
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


@dataclass(slots=True)
class SelectedShard(PlainShard):
    """The selected documents of a shard, with their keys."""

    keys: Keys = ()


class HalfData:
    """The documents of a source that are held out, or the rest of them; ``level`` says how many splits came before."""

    def __init__(self, whole: KeyedData, share: Fraction, held: bool, documents: list[int], tokens: list[int]) -> None:
        self.name = whole.name
        self.split = f"{whole.split}, {'val' if held else 'without val'}={float(share):g}"
        self.dtype, self.eos_id, self.tokenizer = whole.dtype, whole.eos_id, whole.tokenizer
        self.documents, self.tokens = documents, tokens
        self.index_threads, self.kept, self.open_files = whole.index_threads, whole.kept, whole.open_files
        self.level = level_of(whole)
        parts = json.dumps([whole.fingerprint, str(share), held])
        self.fingerprint = hashlib.sha256(parts.encode()).hexdigest()
        self._whole, self._share, self._held = whole, share, held

    def __repr__(self) -> str:
        return f"{self._whole!r}.split(val={float(self._share):g})[{int(self._held)}]"

    def open(self, number: int) -> SelectedShard:
        shard = self._whole.open(number)
        keys = self._whole.keys(number, shard)
        selected = self._selects(keys)
        lengths = shard.lengths[selected]
        if (len(lengths), int(lengths.sum())) != (self.documents[number], self.tokens[number]):
            raise CorruptShardError(
                f"shard {number} of split {self.split!r}: {len(lengths)} documents of {int(lengths.sum())} tokens, but it "
                f"had {self.documents[number]} of {self.tokens[number]} when it was split; it was replaced meanwhile"
            )
        return SelectedShard(shard.tokens, shard.starts[selected], lengths, keys=_of_selected(keys, selected))

    def reopen(self, number: int) -> Tokens:
        return self._whole.reopen(number)

    def index(self, number: int) -> SelectedShard:
        index = self._whole.index(number)
        keys = self._whole.keys(number, index)
        selected = self._selects(keys)
        return SelectedShard(None, _NO_STARTS, index.lengths[selected], keys=_of_selected(keys, selected))

    def keys(self, number: int, index: Indexed) -> Keys:
        assert isinstance(index, SelectedShard)
        return index.keys

    def _selects(self, keys: Keys) -> NDArray[np.bool_]:
        return held_out(keys, self._share, self.level) == self._held


def level_of(data: object) -> int:
    """Return the level that a split of this data has."""
    return data.level + 1 if isinstance(data, HalfData) else 0


def _of_selected(keys: Keys, selected: NDArray[np.bool_]) -> Keys:
    if isinstance(keys, np.ndarray):
        return keys[selected]
    return [key for key, ours in zip(keys, selected.tolist(), strict=True) if ours]


def split_data(whole: KeyedData, share: Fraction) -> tuple[HalfData, HalfData]:
    """Return the rest and what is held out; every index is read for it, and the keys, but no token.

    Where that takes long, the counts are kept for the next time, under a name that covers shards, share and rule.
    """
    about = json.dumps([RULE, level_of(whole), whole.fingerprint, str(share)])
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
    level = level_of(whole)

    def count(number: int) -> tuple[int, int]:
        index = whole.index(number)
        held = index.lengths[held_out(whole.keys(number, index), share, level)]
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
