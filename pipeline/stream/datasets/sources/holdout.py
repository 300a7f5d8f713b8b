"""Which extents or documents a split holds out or a subset has: a hash of a name and a number, or of a document's id, decides.

Documents of text have keys; `held_out` hashes the keys. The hash of extent or document ``n`` of a shard is
``mix64(mix64(n * 0x9E3779B97F4A7C15) ^ key("split", name))``, with the file name of the shard ("" for an array). Split ``level``
holds it out if ``mix64(hash ^ key("share", level))`` is below ``share * 2**64``. So both parts stay as they are when shards are
added, and a larger share holds out all that a smaller share holds out, and more.

A part can be split again: ``level`` is 0 for the first split, 1 for a split of its parts, and so on. Splits are independent:
``rest.split(val=0.1)`` holds out a tenth of the rest.

``.subset(share)`` keeps in each shard the extents or documents of the least ``hash = mix64(hash ^ key("subset"))``, so that they
have ``share`` of the shard's tokens. If ``before`` tokens of the shard have lesser hashes, those of ``n`` tokens are kept if
``before + n * (mix64(hash) >> 11) / 2**53`` is below ``share`` of all its tokens. So a subset has the share up to one extent or
document of each shard, is inside every larger one, and stays as it is when shards are added. Documents of text are kept if the
hash of their keys, which then starts as ``derive_key("subset")``, is below ``share * 2**64``.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....errors import ConfigError
from ....shards.extents.extent_table import running_sums
from ...order import derive_key, keyed_hashes, mix64

Hashes = NDArray[np.uint64]  # of extents or documents


class Units(NamedTuple):
    """The extents or documents from which a part is drawn: their hashes, shards (ascending) and tokens."""

    hashes: Hashes
    shards: NDArray[np.int64]
    tokens: NDArray[np.int64]


def held_out(keys: Sequence[str], share: Fraction, level: int | None = 0) -> NDArray[np.bool_]:
    """Say for each document, by its key, whether split ``level`` holds it out, as a ``share`` of all documents.

    ``level`` None is that of ``.subset``, which starts as ``derive_key("subset")``.

    A key's UTF-8 bytes, padded with zeros, are 64-bit words, little-endian. The hash starts as ``derive_key("split")``, or for a
    split of a part as ``derive_key("split", level)``, and mixes in one word after another. A word of 0 is skipped. A document is
    held out if its hash is below ``share * 2**64``.

    >>> held_out(["000000000012", "000000000016"], Fraction(1, 2)).tolist()
    [True, False]
    """
    encoded = [key.encode("utf-8", "surrogatepass") for key in keys]  # ids in JSON may be no UTF-8
    widths = np.array([-(-len(key) // 8) for key in encoded], dtype=np.int64)
    start = derive_key("subset") if level is None else derive_key("split", level) if level else derive_key("split")
    hashes = np.full(len(keys), start, dtype=np.uint64)
    for width in np.unique(widths[widths > 0]).tolist():  # each width alone: one long key must not widen the others
        rows = np.flatnonzero(widths == width)
        words = np.array([encoded[row] for row in rows.tolist()], dtype=f"S{8 * width}").view("<u8").reshape(-1, width)
        for word in words.T:
            hashes[rows] = np.where(word == 0, hashes[rows], mix64(hashes[rows] ^ word))
    return hashes < np.uint64(int(share * 2**64))


def parse_share(name: str, value: Any) -> Fraction:
    """Return a share as an exact rational; ``ConfigError`` unless it is between 0 and 1. A float is read as it is printed."""
    try:
        share = Fraction(str(value))
    except ValueError:
        share = Fraction(0)
    if not 0 < share < 1 or not isinstance(value, Real | Decimal):
        raise ConfigError(f"{name} must be a share above 0 and below 1, as 0.01, got {value!r}")
    return share


def hashes_of(names: Sequence[str], counts: NDArray[np.integer[Any]]) -> Hashes:
    """Return the hashes of the extents or documents of shards. ``counts`` is their number in each shard."""
    pairs = zip(names, counts.tolist(), strict=True)
    hashes = [keyed_hashes(count, derive_key("split", name)) for name, count in pairs]
    return np.concatenate([np.zeros(0, np.uint64), *hashes])


def hashes_held_out(hashes: Hashes, share: Fraction, level: int) -> NDArray[np.bool_]:
    """Say for each extent or document whether split ``level`` holds it out."""
    drawn: NDArray[np.uint64] = mix64(hashes ^ np.uint64(derive_key("share", level)))
    return drawn < np.uint64(int(share * 2**64))


def in_subset(units: Units, share: Fraction) -> NDArray[np.bool_]:
    """Say for each extent or document whether the subset of a ``share`` has it.

    >>> units = Units(np.arange(8, dtype=np.uint64), np.repeat([0, 1], 4), np.full(8, 10))
    >>> [int(in_subset(units, Fraction(part, 8)).sum()) for part in (2, 4, 6)]
    [2, 4, 6]
    """
    drawn: NDArray[np.uint64] = mix64(units.hashes ^ np.uint64(derive_key("subset")))
    order = np.lexsort((drawn, units.shards))
    tokens, shards = units.tokens[order], units.shards[order]
    before = running_sums(tokens)
    begins, ends = (shards.searchsorted(shards, side=side) for side in ("left", "right"))
    parts = (mix64(drawn[order]) >> np.uint64(11)) / 2**53  # how much of each must be below the share
    kept = np.zeros(len(order), np.bool_)
    kept[order] = before[:-1] - before[begins] + tokens * parts < (before[ends] - before[begins]) * float(share)
    return kept
