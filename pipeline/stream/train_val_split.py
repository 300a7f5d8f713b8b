"""The two parts of ``.split(val=)``: the extents or documents that `data.holdout` holds out, and the rest.

A source of more than 1,000 extents, or more than 200 MB of tokens, is split by extents: each part selects rows of the table of
extents. A smaller source is split by documents: its documents are read into two arrays in memory. Documents stay whole either
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

from ..shards.extents.extent_table import running_sums, runs
from .datasets.sources.counted_data import CountedData
from .datasets.sources.holdout import Hashes, hashes_held_out, hashes_of
from .datasets.sources.shard_data import MemoryData
from .order import Shuffle
from .windows.window import WindowCache, WindowMaker, join_masks

MOST_EXTENTS, MOST_BYTES = 1_000, 200_000_000  # of a source that is split by documents


def hold_out(whole: CountedData, share: Fraction) -> tuple[CountedData, CountedData]:
    """Return the rest and the part held out. For a small source, all its documents are read."""
    table, rows = whole.extents.table, whole.selection.rows
    if rows is None:
        rows = np.arange(len(table))
    by_extents = len(rows) > MOST_EXTENTS or int(table.tokens[rows].sum(dtype=np.int64)) * table.itemsize > MOST_BYTES
    if by_extents:
        hashes = hashes_of(whole.shard_names, table.extents)[rows]
    else:
        hashes = _hashes_of_documents(whole)
        tokens, lengths, redacted = _read(whole)
    out, parts = hashes_held_out(hashes, share, whole.split_level), list[CountedData]()
    for kept, is_val in ((~out, False), (out, True)):
        split = f"{whole.split}, {'val' if is_val else 'without val'}={float(share):g}"
        label = f"{whole!r}.split(val={float(share):g})[{int(is_val)}]"
        fingerprint = hashlib.sha256(json.dumps([whole.fingerprint, str(share), is_val]).encode()).hexdigest()
        if by_extents:
            selection = replace(whole.selection, rows=rows[kept])
            parts.append(whole.part(selection, split=split, label=label, fingerprint=fingerprint))
        else:
            arrays = tokens[np.repeat(kept, lengths)], lengths[kept]
            drawn = MemoryData(*arrays, whole.eos_id, whole.tokenizer_sha256, label, fingerprint=fingerprint)
            drawn.split, drawn.hashes = split, hashes[kept]
            drawn.vocab_size, drawn.tokenizer_name = whole.vocab_size, whole.tokenizer_name
            if redacted[kept].any():
                drawn.selection = replace(drawn.selection, redacted={0: np.flatnonzero(redacted[kept])})
            parts.append(drawn)
        parts[-1].split_level = whole.split_level + 1
    return parts[0], parts[1]


def _hashes_of_documents(whole: CountedData) -> Hashes:
    """Return the hashes of the documents of the extents that are streamed."""
    if isinstance(whole, MemoryData) and whole.hashes is not None:
        return whole.hashes
    table, rows = whole.extents.table, whole.selection.rows
    hashes = hashes_of(whole.shard_names, table.per_shard(table.document_sums))
    if rows is None:
        return hashes
    return hashes[runs(table.document_sums[rows], table.documents[rows].astype(np.int64))]


def _read(whole: CountedData) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the tokens of all documents in file order, the number of tokens of each, and whether each is redacted."""
    order = Shuffle(whole.extents.blocks(), 1, 1, None)
    with closing(WindowCache(WindowMaker(whole, order), spare=0)) as cache:
        keys = [(0, number) for number in range(order.windows)]
        cache.request(keys)
        windows = [cache.get(key) for key in keys]
    tokens = np.concatenate([window.tokens for window in windows])
    mask = join_masks([window.mask for window in windows], [len(window.tokens) for window in windows])
    lengths = np.concatenate([np.diff(window.ends) for window in windows])
    if mask is None:
        return tokens, lengths, np.zeros(len(lengths), np.bool_)
    return tokens, lengths, np.append(mask, 1)[running_sums(lengths)[:-1]] == 0
