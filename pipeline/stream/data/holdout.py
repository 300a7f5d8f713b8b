"""Documents held out by a hash of their keys: in the same half wherever a document with that key lies.

Keys of a built dataset are the numbers of its documents, so halves belong to one build of it.

A half can be split again. The hash of split ``level`` (0 for the first, 1 for a split of one of its halves, ...) starts from
a key of its own, so the splits are independent: of ``rest.split(val=0.1)`` a tenth of the rest is held out.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...atomic import atomic_file
from ...errors import ConfigError, CorruptShardError
from ...shards.extents.table import running_sums
from ...shards.ranges.source import Source as Ranges
from ...user_cache import make_private
from ..order import derive_key, mix64
from .contents import Contents, Selection
from .shards import KeyedData, Keys

RULE = 1  # of the hash below
KEEP_ABOVE = 1_000_000  # documents of local shards, which take half a second to count, and are kept from there on
_TOGETHER = 4096  # keys that are hashed at once, each in the room of the longest


def held_out(keys: Keys, share: Fraction, level: int = 0) -> NDArray[np.bool_]:
    """Say of each key whether split ``level`` holds its document out, as ``share`` of all documents are.

    The hash takes a key's UTF-8 bytes as 64-bit words, little-endian, zeros at the end, and mixes them one after another
    into a fixed start, ``derive_key("split")``, of a split of a half ``derive_key("split", level)``; what comes out
    below ``share`` of all 64-bit numbers is held out. So a key has its half in any order, company or number of
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
    if not 0 < share < 1 or not isinstance(val, Real | Decimal):
        raise ConfigError(f"val must be a share above 0 and below 1, as 0.01, got {val!r}")
    return share


class HoldoutData(KeyedData):
    """The documents of a source that are held out, or the rest of them: ``selection`` says which of all documents."""

    def __init__(self, whole: KeyedData, share: Fraction, held: bool, selection: Selection) -> None:
        self.name = whole.name
        self.split = f"{whole.split}, {'val' if held else 'without val'}={float(share):g}"
        self.dtype, self.eos_id, self.tokenizer = whole.dtype, whole.eos_id, whole.tokenizer
        self.index_threads, self.kept = whole.index_threads, whole.kept
        self.splits = whole.splits + 1
        self.fingerprint = _digest([whole.fingerprint, str(share), held])
        self.selection = selection
        self._root = whole.root
        bounds = self.root.contents.table.shard_bounds
        self.documents, self.tokens = (
            np.diff(running_sums(counts)[bounds]).tolist() for counts in (selection.documents, selection.tokens)
        )
        self._label = f"{whole!r}.split(val={float(share):g})[{int(held)}]"

    def __repr__(self) -> str:
        return self._label

    @property
    def root(self) -> KeyedData:
        return self._root

    def selected(self) -> Selection:
        return self.selection

    @cached_property
    def contents(self) -> Contents:
        selection = self.selection
        return Contents.selected(self.root.contents.table, selection.tokens, selection.documents, selection.keeps)

    def ranges(self, max_open: int) -> Ranges:
        return self.root.ranges(max_open)


def split_data(whole: KeyedData, share: Fraction, keep_above: int = KEEP_ABOVE) -> tuple[HoldoutData, HoldoutData]:
    """Return the rest and what is held out; every index is read for it, and the keys, but no token.

    Where that takes long, as for more than ``keep_above`` documents, what was found is kept for the next time, under a name
    that covers shards, share and rule.
    """
    given = whole.selected()
    about = _digest([RULE, whole.splits, whole.fingerprint, str(share)])
    place = whole.kept and whole.kept / f"split-{about[:32]}.npz"
    held = _kept(place, given)
    if held is None:
        held = _select(whole.root, given, share, whole.splits)
        if place is not None and (whole.index_threads > 1 or sum(whole.documents) > keep_above):
            _keep(place, held)
    return HoldoutData(whole, share, False, given.without(held)), HoldoutData(whole, share, True, held)


def _select(root: KeyedData, given: Selection, share: Fraction, level: int) -> Selection:
    """Return the documents that are held out of those given."""
    table = root.contents.table

    def select(number: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        index = root.index(number)
        extents = slice(int(table.shard_bounds[number]), int(table.shard_bounds[number + 1]))
        firsts = table.first_documents[extents]
        if len(index.lengths) != int(table.documents[extents].sum(dtype=np.int64)):
            raise CorruptShardError(
                f"shard {number} of split {root.split!r}: {len(index.lengths)} documents, but another number was counted "
                "before; it was replaced meanwhile"
            )
        held = held_out(root.keys(number, index), share, level) & given.keeps(number, 0, len(index.lengths))
        counts = (np.where(held, index.lengths, 0), held.astype(np.int64))
        sums = [np.add.reduceat(each, firsts) if len(firsts) else np.zeros(0, np.int64) for each in counts]
        return np.packbits(held), sums[0], sums[1]

    # Where shards are remote, reading them is waiting.
    with ThreadPoolExecutor(root.index_threads, thread_name_prefix="shardwright-split") as threads:
        found = list(threads.map(select, range(table.shards)))
    bits, tokens, documents = (np.concatenate([each[k] for each in found]) for k in range(3))
    return Selection(bits, tokens, documents, given.firsts)


def _keep(place: Path, held: Selection) -> None:
    with suppress(OSError):  # a read-only folder or a full disk: it is found out each time
        make_private(place.parent)
        with atomic_file(place) as file:
            np.savez(file, allow_pickle=False, bits=held.bits, tokens=held.tokens, documents=held.documents)


def _kept(place: Path | None, given: Selection) -> Selection | None:
    """Return what was kept, or None where there is nothing that fits what is split: it is only a cache."""
    if place is None:
        return None
    try:
        with np.load(place, allow_pickle=False) as kept:
            held = Selection(kept["bits"], kept["tokens"], kept["documents"], given.firsts)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError):
        return None
    if held.bits.dtype != np.uint8 or held.bits.shape != given.bits.shape:
        return None
    for counts, most in ((held.tokens, given.tokens), (held.documents, given.documents)):
        if counts.dtype != np.int64 or counts.shape != most.shape or (counts < 0).any() or (counts > most).any():
            return None
    return held


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
