"""Which extents or documents a split holds out: a hash of a name and a number, or of a document's id, decides.

Documents of text have keys; `held_out` hashes the keys. The hash of extent or document ``n`` of a shard is
``mix64(mix64(n * 0x9E3779B97F4A7C15) ^ key("split", name))``, with the file name of the shard ("" for an array). Split ``level``
holds it out if ``mix64(hash ^ key("share", level))`` is below ``share * 2**64``. So both parts stay as they are when shards are
added, and a larger share holds out all that a smaller share holds out, and more.

A part can be split again: ``level`` is 0 for the first split, 1 for a split of its parts, and so on. Splits are independent:
``rest.split(val=0.1)`` holds out a tenth of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import ConfigError
from ...order import derive_key, keyed_hashes, mix64

Hashes = NDArray[np.uint64]  # of extents or documents


def held_out(keys: Sequence[str], share: Fraction, level: int = 0) -> NDArray[np.bool_]:
    """Say for each document, by its key, whether split ``level`` holds it out, as a ``share`` of all documents.

    A key's UTF-8 bytes, padded with zeros, are 64-bit words, little-endian. The hash starts as ``derive_key("split")``, or for a
    split of a part as ``derive_key("split", level)``, and mixes in one word after another. A word of 0 is skipped. A document is
    held out if its hash is below ``share * 2**64``.

    >>> held_out(["000000000012", "000000000016"], Fraction(1, 2)).tolist()
    [True, False]
    """
    encoded = [key.encode("utf-8", "surrogatepass") for key in keys]  # ids in JSON may be no UTF-8
    widths = np.array([-(-len(key) // 8) for key in encoded], dtype=np.int64)
    hashes = np.full(len(keys), derive_key("split", level) if level else derive_key("split"), dtype=np.uint64)
    for width in np.unique(widths[widths > 0]).tolist():  # each width alone: one long key must not widen the others
        rows = np.flatnonzero(widths == width)
        words = np.array([encoded[row] for row in rows.tolist()], dtype=f"S{8 * width}").view("<u8").reshape(-1, width)
        for word in words.T:
            hashes[rows] = np.where(word == 0, hashes[rows], mix64(hashes[rows] ^ word))
    return hashes < np.uint64(int(share * 2**64))


def parse_share(val: Any) -> Fraction:
    """Return a share as an exact rational; ``ConfigError`` unless it is between 0 and 1. A float is read as it is printed."""
    try:
        share = Fraction(str(val))
    except ValueError:
        share = Fraction(0)
    if not 0 < share < 1 or not isinstance(val, Real | Decimal):
        raise ConfigError(f"val must be a share above 0 and below 1, as 0.01, got {val!r}")
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
