"""Texts to show: a few of every outcome, chosen by the hash of the text, so that each text has the same chance.

The order of the corpus and of the work does not matter, and no text is shown twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..dedup.minhash import text_hashes
from ..draws import draws
from .count_types import Sample

SAMPLES = 5  # texts shown of each outcome
SAMPLE_CHARACTERS, ID_CHARACTERS = 600, 200  # shown of each text and id, which may be of any length


class Samples:
    """The texts of each outcome with the smallest keys among those added.

    >>> samples = Samples()
    >>> for key in (5, 3, 9, 3, 1, 8, 7):
    ...     samples.add("words", key, {"id": "", "text": f"text {key}"})
    >>> [sample["text"] for sample in samples.shown()["words"]]
    ['text 1', 'text 3', 'text 5', 'text 7', 'text 8']
    """

    def __init__(self) -> None:
        self._chosen: dict[str, dict[int, Sample]] = {}

    def wants(self, outcome: str, key: int) -> bool:
        """Return whether a text would be shown if no other were added after it."""
        chosen = self._chosen.get(outcome, {})
        return key not in chosen and (len(chosen) < SAMPLES or key < max(chosen))

    def add(self, outcome: str, key: int, sample: Sample) -> None:
        if self.wants(outcome, key):
            chosen = self._chosen.setdefault(outcome, {})
            chosen[key] = {**sample, "id": sample["id"][:ID_CHARACTERS], "text": sample["text"][:SAMPLE_CHARACTERS]}
            if len(chosen) > SAMPLES:
                del chosen[max(chosen)]

    def update(self, chosen: Mapping[str, Iterable[tuple[int, Sample]]]) -> None:
        """Add what ``to_json`` gave."""
        for outcome, samples in chosen.items():
            for key, sample in samples:
                self.add(outcome, key, sample)

    def to_json(self) -> dict[str, list[tuple[int, Sample]]]:
        return {outcome: sorted(chosen.items()) for outcome, chosen in sorted(self._chosen.items())}

    def shown(self) -> dict[str, list[Sample]]:
        """Return the samples of each outcome, in the order of their keys."""
        return {outcome: [sample for _, sample in samples] for outcome, samples in self.to_json().items()}


def sample_keys(texts: Sequence[str], seed: int) -> list[int]:
    """Return the key of each text, drawn from its hash and the seed."""
    keys: list[int] = hash_keys(text_hashes(texts), seed).tolist()
    return keys


def hash_keys(hashes: NDArray[np.uint8], seed: int) -> NDArray[np.uint64]:
    """Return the keys, uint64 ``[n]``, of texts with these hashes, uint8 ``[n, 16]``."""
    return draws(hashes, seed, "samples")
