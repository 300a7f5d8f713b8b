"""The identity of a text: its hash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def text_hashes(texts: Sequence[str]) -> NDArray[np.uint8]:
    """Return the 128-bit BLAKE2b of each text's UTF-8, uint8 ``[n, 16]``: equal only for equal texts."""
    digests = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16)


def text_hash(text: str) -> str:
    """Return the hash of one text as the tables of shards have it: 32 hexadecimal digits.

    >>> text_hash("a rose")
    '0b6122bf52167ffd89c314c1954ee42a'
    """
    return text_hashes([text]).tobytes().hex()
