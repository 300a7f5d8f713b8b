"""The two halves of ``.split(val=)``: what a hash of the shard's name and a number in it holds out, and the rest.

Of a source of more than 1,000 extents, or of more than 200 MB of tokens, extents are held out: a half is a selection of rows
of the table of extents. Of a smaller one documents are, which are read into memory, each half as an array. Documents stay
whole either way. Extent or document ``n`` of a shard is known by ``mix64(mix64(n * 0x9E3779B97F4A7C15) ^ key("split", name))``
of the shard's name (the file's, "" of an array); split ``level`` holds it out where ``mix64(that ^ key("share", level))`` is
below the share of all 64-bit numbers. So a half stays as it is when shards are added, and a larger share holds out what a
smaller one did, and more.

A half can be split again: ``level`` is 0 for the first split, 1 for that of one of its halves, and so on, so that splits are
independent: of ``rest.split(val=0.1)`` a tenth of the rest is held out. Halves belong to one build of a dataset: another has
other shards.

Documents of text have keys, which `held_out` judges.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, partial
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...daemon_threads import DaemonThreads
from ...errors import ConfigError, CorruptShardError
from ...shards.extents.table import running_sums
from ...shards.ranges.source import Source as Ranges
from ..order import derive_key, keyed_hashes, mix64
from .contents import Contents
from .shards import MemoryData, NamedShards

MOST_EXTENTS, MOST_BYTES = 1_000, 200_000_000  # of a source whose documents are split
_KEYS_AT_ONCE = 4096  # are hashed, each in the room of the longest

Keys = Sequence[str] | NDArray[np.bytes_]  # as text, or its UTF-8
Marks = NDArray[np.uint64]  # what extents or documents are known by


def held_out(keys: Keys, share: Fraction, level: int = 0) -> NDArray[np.bool_]:
    """Say of each key of a text whether split ``level`` holds its document out, as ``share`` of all documents are.

    The hash takes a key's UTF-8 bytes as 64-bit words, little-endian, zeros at the end, and mixes them one after another
    into a fixed start, ``derive_key("split")``, of a split of a half ``derive_key("split", level)``; what comes out
    below ``share`` of all 64-bit numbers is held out.

    >>> held_out(["000000000012", "000000000016"], Fraction(1, 2)).tolist()
    [True, False]
    """
    if len(keys) > _KEYS_AT_ONCE:
        parts = (keys[start : start + _KEYS_AT_ONCE] for start in range(0, len(keys), _KEYS_AT_ONCE))
        return np.concatenate([held_out(part, share, level) for part in parts])
    if not isinstance(keys, np.ndarray):  # ids in JSON may hold what is no UTF-8
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


class SelectedExtents(NamedShards):
    """Some of the extents of a source: ``rows`` of its table."""

    def __init__(self, whole: NamedShards, half: _Half, rows: NDArray[np.int64]) -> None:
        self.name = whole.name
        self.dtype, self.eos_id, self.tokenizer = whole.dtype, whole.eos_id, whole.tokenizer
        self.vocab_size = whole.vocab_size
        self.split, self.splits, self.fingerprint = half.split, whole.splits + 1, half.fingerprint
        self.shard_names = whole.shard_names
        self._label = half.label
        self._root: NamedShards = whole._root if isinstance(whole, SelectedExtents) else whole
        self._rows = rows
        table = whole.contents.table
        bounds = np.searchsorted(rows, table.shard_bounds)
        self.documents, self.tokens = (
            np.diff(running_sums(column[rows])[bounds]).tolist() for column in (table.documents, table.tokens)
        )

    def __repr__(self) -> str:
        return self._label

    @cached_property
    def contents(self) -> Contents:
        return Contents(self._root.contents.table, self._rows)

    def ranges(self) -> Ranges:
        return self._root.ranges()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "contents"}


class SelectedDocuments(MemoryData):
    """Some of the documents of a source, in memory; ``marks``: what they are known by."""

    def __init__(
        self, whole: NamedShards, half: _Half, tokens: NDArray[Any], lengths: NDArray[np.int64], marks: Marks
    ) -> None:
        super().__init__(tokens, lengths, whole.eos_id, whole.tokenizer, half.label, fingerprint=half.fingerprint)
        self.name, self.split, self.splits = whole.name, half.split, whole.splits + 1
        self.vocab_size = whole.vocab_size
        self.marks = marks


class _Half:
    """What tells one half of a split from others."""

    def __init__(self, whole: NamedShards, share: Fraction, held: bool) -> None:
        about = json.dumps([whole.fingerprint, str(share), held])
        self.fingerprint = hashlib.sha256(about.encode()).hexdigest()
        self.split = f"{whole.split}, {'val' if held else 'without val'}={float(share):g}"
        self.label = f"{whole!r}.split(val={float(share):g})[{int(held)}]"


def split_data(whole: NamedShards, share: Fraction) -> tuple[NamedShards, NamedShards]:
    """Return the rest and what is held out; of few extents all documents are read for it."""
    table, rows = whole.contents.table, whole.contents.rows
    halves = _Half(whole, share, held=False), _Half(whole, share, held=True)
    if rows is None:
        rows = np.arange(len(table))
    if len(rows) > MOST_EXTENTS or int(table.tokens[rows].sum(dtype=np.int64)) * table.itemsize > MOST_BYTES:
        marks = _marks(whole.shard_names, table.extents)[rows]
        out = _is_held_out(marks, share, whole.splits)
        return SelectedExtents(whole, halves[0], rows[~out]), SelectedExtents(whole, halves[1], rows[out])
    if isinstance(whole, SelectedDocuments):
        marks = whole.marks
    else:
        counts = table.per_shard(table.document_sums)
        marks = _marks(whole.shard_names, counts)[_documents_of(whole.contents)]
    tokens, lengths = _read(whole)
    out = _is_held_out(marks, share, whole.splits)
    rest, val = (
        SelectedDocuments(whole, half, tokens[np.repeat(kept, lengths)], lengths[kept], marks[kept])
        for half, kept in zip(halves, (~out, out), strict=True)
    )
    return rest, val


def _marks(names: Sequence[str], counts: NDArray[np.integer[Any]]) -> Marks:
    """Return what the extents or documents of shards are known by, of which each shard has ``counts``."""
    pairs = zip(names, counts.tolist(), strict=True)
    marks = [keyed_hashes(count, derive_key("split", name)) for name, count in pairs]
    return np.concatenate([np.zeros(0, np.uint64), *marks])


def _is_held_out(marks: Marks, share: Fraction, level: int) -> NDArray[np.bool_]:
    hashes: NDArray[np.uint64] = mix64(marks ^ np.uint64(derive_key("share", level)))
    return hashes < np.uint64(int(share * 2**64))


def _documents_of(contents: Contents) -> NDArray[np.int64]:
    """Return the numbers, among those of all shards, of the documents of the extents that are streamed."""
    table, rows = contents.table, contents.rows
    if rows is None:
        return np.arange(int(table.document_sums[-1]))
    counts = table.documents[rows].astype(np.int64)
    return np.arange(int(counts.sum())) + np.repeat(table.document_sums[rows] - running_sums(counts)[:-1], counts)


def _read(whole: NamedShards) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the tokens of all documents, one behind the other, and how many each has."""
    contents, itemsize = whole.contents, whole.dtype.itemsize
    table, bounds = contents.table, contents.blocks().bounds
    source = whole.ranges()

    def read(first: int, last: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        starts, lengths = source.index(first, last)
        raw = np.empty(int(table.size_sums[last] - table.size_sums[first]), np.uint8)
        source.read(first, last, raw.data)
        begins = starts - int(table.offset_of(first))
        pairs = zip(begins.tolist(), (begins + lengths * np.int64(itemsize)).tolist(), strict=True)
        parts = [np.zeros(0, np.uint8), *(raw[begin:end] for begin, end in pairs)]
        tokens = np.concatenate(parts).view(whole.dtype)
        if len(tokens) != int(table.token_sums[last] - table.token_sums[first]):
            shard, byte = source.name(int(table.shard_of(first))), int(table.offset_of(first))
            raise CorruptShardError(
                f"{shard}: the documents from byte {byte} on hold {len(tokens)} tokens, but another number was counted "
                "before; the shard was replaced meanwhile"
            )
        return tokens, lengths.astype(np.int64)

    first, last = contents.table_rows(bounds[:-1], bounds[1:])
    threads = DaemonThreads(source.threads, "split")
    pending = [threads.submit(partial(read, *run)) for run in zip(first.tolist(), last.tolist(), strict=True)]
    try:
        blocks = [future.result() for future in pending]
    finally:
        for future in pending:
            future.cancel()
        threads.close()
    tokens = np.concatenate([np.zeros(0, whole.dtype), *(tokens for tokens, _ in blocks)])
    return tokens, np.concatenate([np.zeros(0, np.int64), *(lengths for _, lengths in blocks)])
