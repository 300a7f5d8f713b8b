"""Random numbers drawn from the hash of a text: they depend on text, seed and purpose alone, not on the rest of the input.

    draw(h, seed, purpose)  = mix64(mix64(h0 ^ k0) + (h1 ^ k1)),  h0 and h1 the halves of the text's 128-bit hash
    k0, k1                  = the halves of BLAKE2b(purpose, 0, seed in decimal), little-endian
    mix64                   the finaliser of SplitMix64

Each purpose ("val", "max_tokens", "samples", "tokenizer") has its own draws. So the choice of documents for validation does not
depend on the choice of a quota.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from .integer_hash import mix64


def draws(hashes: NDArray[np.uint8], seed: int, purpose: str) -> NDArray[np.uint64]:
    """Return a uniform random number, uint64 ``[n]``, for each hash of a text, uint8 ``[n, 16]``.

    >>> from pipeline.text.hashes import text_hashes
    >>> draws(text_hashes(["a", "b"]), 0, "val").tolist() == draws(text_hashes(["b", "a"]), 0, "val").tolist()[::-1]
    True
    """
    key = np.frombuffer(hashlib.blake2b(f"{purpose}\0{seed}".encode(), digest_size=16).digest(), "<u8")
    halves = np.ascontiguousarray(hashes).view("<u8").reshape(-1, 2).astype(np.uint64, copy=False)
    return mix64(mix64(halves[:, 0] ^ key[0]) + (halves[:, 1] ^ key[1]))


def drawn(hashes: NDArray[np.uint8], seed: int, purpose: str, share: float) -> NDArray[np.bool_]:
    """Return for each text whether it is drawn, with a probability of ``share``.

    A larger share draws all texts that a smaller share draws. A share of 1 draws every text.
    """
    if share >= 1:
        return np.ones(len(hashes), bool)
    return draws(hashes, seed, purpose) < np.uint64(share * 2.0**64)


def draw_file(name: str, seed: int) -> bytes:
    """Return a key that sorts the files of a source at random, for a quota that reads only the first files."""
    return hashlib.blake2b(f"files\0{seed}\0{name}".encode("utf-8", "surrogateescape"), digest_size=16).digest()
