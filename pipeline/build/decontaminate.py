"""Documents that share long word n-grams with an evaluation set.

An overlap is any run of 13 words, as in appendix C of Brown et al. 2020 (GPT-3); words are those of the shingles,
``re.findall(r"\\w+", text.lower())``. An evaluation text of fewer words counts as one n-gram of all of them, unless it is
too short to mean anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

NGRAM = 13
SHORTEST = 8  # words of an evaluation text that still makes an n-gram by itself
_WORDS = re.compile(r"\w+")


class Decontaminator:
    """Holds the n-grams of evaluation sets, given as ``{name: texts}``.

    >>> question = "which of these thirteen words in a row will be found again in a web page"
    >>> Decontaminator({"quiz": [question]}).overlaps([f"So: {question}!", "nothing of it"])
    [(4, 'quiz'), (0, None)]
    """

    def __init__(self, texts: Mapping[str, Iterable[str]], ngram: int = NGRAM) -> None:
        self.ngram = ngram
        self._names: dict[str, str] = {}
        self._lengths: dict[int, None] = {}
        for name, each in texts.items():
            for text in each:
                words = _WORDS.findall(text.lower())
                length = min(len(words), ngram)
                if length >= min(SHORTEST, ngram):
                    self._lengths[length] = None
                    for gram in _grams(words, length):
                        self._names.setdefault(gram, name)

    def overlaps(self, texts: Sequence[str]) -> list[tuple[int, str | None]]:
        """Return, for each text, how many of its n-grams an evaluation set holds, and the first such set's name."""
        found = []
        for text in texts:
            words = _WORDS.findall(text.lower())
            names = [name for length in self._lengths for g in _grams(words, length) if (name := self._names.get(g))]
            found.append((len(names), names[0] if names else None))
        return found


def _grams(words: Sequence[str], length: int) -> Iterator[str]:
    return (" ".join(words[k : k + length]) for k in range(len(words) - length + 1))
