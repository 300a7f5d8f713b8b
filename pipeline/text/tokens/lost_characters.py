"""Counts characters that a tokenizer drops: a BPE without an unknown token has no id for them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from .tokenizer_files import parsed

_UNSEEN, _HAS_TOKEN, _LOST = 0, 1, 2


class LostCharacters:
    """Counts the characters that a BPE drops. Each distinct character is looked up once."""

    def __init__(self, definition: str) -> None:
        self._tokenizer: Any = parsed(definition)
        model = self._tokenizer.model
        before, after = model.continuing_subword_prefix or "", model.end_of_word_suffix or ""
        self._symbols = {
            token.removeprefix(before).removesuffix(after) or token for token in self._tokenizer.get_vocab()
        }
        self._kinds = np.zeros(0x110000, np.uint8)

    def count(self, texts: Sequence[str]) -> int:
        """Return how many characters of the texts have no token."""
        points = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4")
        for point in np.unique(points[self._kinds[points] == _UNSEEN]).tolist():
            self._kinds[point] = _LOST if self._is_lost(chr(point)) else _HAS_TOKEN
        return int((self._kinds[points] == _LOST).sum())

    def _is_lost(self, character: str) -> bool:
        text, tokenizer = character, self._tokenizer
        if tokenizer.normalizer is not None:
            text = tokenizer.normalizer.normalize_str(text)
        if tokenizer.pre_tokenizer is not None:
            text = "".join(piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
        return not self._symbols.issuperset(text)


@functools.lru_cache(maxsize=1)
def lost_characters(definition: str) -> LostCharacters:
    """Return the counter of a definition. The last one is cached."""
    return LostCharacters(definition)
