"""Parts of a dataset: the two of ``.split(val=)``, and that of ``.subset(share)``. `sources.holdout` draws them.

A source of more than 1,000 extents, or more than 200 MB of tokens, is drawn by extents: a part selects rows of the table of
extents. A smaller source is drawn by documents: its documents are read into an array in memory. Documents stay whole either
way. Another build of the dataset has other shards, and so other parts.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError
from ...notices import say_once
from ...shards.extents.extent_table import runs
from ..order import Shuffle
from ..windows.window import WindowCache, WindowMaker
from .sources.counted_data import CountedData
from .sources.holdout import Units, hashes_held_out, hashes_of, in_subset
from .sources.shard_data import Drawn, MemoryData
from .sources.sources import Source
from .sources.text_data import TextData

_UNEVEN = 0.1  # of a share: a subset that is further from it logs so
MOST_EXTENTS, MOST_BYTES = 1_000, 200_000_000  # of a source that is drawn by documents


def hold_out(whole: CountedData, share: Fraction) -> tuple[CountedData, CountedData]:
    """Return the rest and the part held out. For a small source, all its documents are read."""
    drawing = _Drawing(whole)
    held, halves = hashes_held_out(drawing.units.hashes, share, whole.split_level), list[CountedData]()
    for kept, is_val in ((~held, False), (held, True)):
        split = f"{whole.split}, {'val' if is_val else 'without val'}={float(share):g}"
        label = f"{whole!r}.split(val={float(share):g})[{int(is_val)}]"
        halves.append(drawing.part(kept, split, label, [str(share), is_val]))
        halves[-1].split_level = whole.split_level + 1
    return halves[0], halves[1]


def subset(whole: Source, share: Fraction) -> Any:
    """Return the part of ``.subset(share)``; ``ConfigError`` if it holds nothing. Texts are told apart when they are read."""
    whole.check_stage("subset")
    if isinstance(whole, TextData):
        return whole.part(subset=whole.subset * share)
    assert isinstance(whole, CountedData)
    drawing, label = _Drawing(whole), f"{whole!r}.subset({share})"
    kept = in_subset(drawing.units, share)
    part = drawing.part(kept, f"{whole.split}, subset={share}", label, ["subset", str(share)])
    if whole.total_tokens and not part.total_tokens:
        raise ConfigError(f"{label} holds no document: the whole has {whole.sizes()}; take a larger share")
    wanted = float(whole.total_tokens * share)
    if abs(part.total_tokens - wanted) > _UNEVEN * wanted:
        say_once(
            f"{label} has {part.total_tokens:,} tokens, but its share is {wanted:,.0f}, since documents stay whole: a proxy "
            "repeats it more or less often than the large run; take a larger share, or build smaller documents"
        )
    return part


class _Drawing:
    """The extents or documents of a source, from which parts are drawn."""

    def __init__(self, whole: CountedData) -> None:
        extents = whole.extents
        table, rows = extents.table, extents.rows
        if rows is None:
            rows = np.arange(len(table))
        self._whole, self._rows = whole, rows
        tokens = table.tokens[rows].astype(np.int64)
        self._by_extents = len(rows) > MOST_EXTENTS or int(tokens.sum()) * table.itemsize > MOST_BYTES
        if self._by_extents:
            self.units = Units(hashes_of(whole.shard_names, table.extents)[rows], table.shard_of(rows), tokens)
            return
        self._tokens, lengths = _read(whole)
        self._places = extents.documents()
        if isinstance(whole, MemoryData) and whole.drawn is not None:
            self._drawn = whole.drawn
        else:
            hashes = hashes_of(whole.shard_names, table.per_shard(table.document_sums))
            documents = runs(table.document_sums[rows], table.documents[rows].astype(np.int64))
            self._drawn = Drawn(whole, *self._places, hashes[documents])
        self.units = Units(self._drawn.hashes, self._drawn.shards, lengths)

    def part(self, kept: NDArray[np.bool_], split: str, label: str, identity: list[Any]) -> CountedData:
        """Return the part of the ``kept`` extents or documents; with the whole's fingerprint, ``identity`` identifies it."""
        whole = self._whole
        fingerprint = hashlib.sha256(json.dumps([whole.fingerprint, *identity]).encode()).hexdigest()
        if self._by_extents:
            selection = replace(whole.selection, rows=self._rows[kept])
            return whole.part(selection, split=split, label=label, fingerprint=fingerprint)
        _, _, lengths = self.units
        source, shards, numbers, hashes = self._drawn
        drawn = Drawn(source, shards[kept], numbers[kept], hashes[kept])
        arrays = self._tokens[np.repeat(kept, lengths)], lengths[kept]
        part = MemoryData(*arrays, whole.eos_id, whole.tokenizer_sha256, label, fingerprint=fingerprint, drawn=drawn)
        shards, numbers = (each[kept] for each in self._places)
        part.selection = replace(part.selection, **whole.selection.masks_of(shards, numbers))
        part.split, part.vocab_size, part.tokenizer_name = split, whole.vocab_size, whole.tokenizer_name
        part.split_level = whole.split_level
        return part


def _read(whole: CountedData) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the tokens of all documents in file order, and the number of tokens of each."""
    order = Shuffle(whole.extents.blocks(), 1, 1, None)
    with closing(WindowCache(WindowMaker(whole, order), spare=0)) as cache:
        keys = [(0, number) for number in range(order.windows)]
        cache.request(keys)
        windows = [cache.get(key) for key in keys]
    tokens = np.concatenate([window.tokens for window in windows])
    return tokens, np.concatenate([np.diff(window.ends) for window in windows])
