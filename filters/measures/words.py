"""Whether a document is worded like prose: the quality rules of Gopher that look at words.

Denominators count *pieces*, words and marks, as datatrove's do (its words are spaCy's tokens): in English prose
every seventh piece is a mark, so 0.8 alphabetic pieces ask more than 0.8 of the words between spaces would.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from filters.text_view import Page, share


def mean_word_length(page: Page) -> float:
    """Return the mean number of characters of a word, 0 without words.

    >>> mean_word_length(Page("To be, or not to be!"))
    2.1666666666666665
    """
    return share(sum(map(len, page.words)), len(page.words))


def alphabetic_ratio(page: Page) -> float:
    """Return the share of pieces that are words with a letter.

    >>> alphabetic_ratio(Page("10 % of it"))
    0.5
    """
    return share(len(page.alphabetic_words), len(page.pieces))


def hash_ratio(page: Page) -> float:
    """Return the number of ``#`` per piece."""
    return share(page.text.count("#"), len(page.pieces))


def ellipsis_ratio(page: Page) -> float:
    """Return the number of ``...`` and ``…`` per piece."""
    return share(page.text.count("...") + page.text.count("…"), len(page.pieces))


def stop_words(page: Page, *, words: Sequence[str]) -> int:
    """Return how many of `words` occur at least once, as written, capitalised or in capitals.

    >>> stop_words(Page("THE cat and the hat"), words=["the", "and", "of"])
    2
    """
    spellings = stop_word_spellings(tuple(words))
    return len({spellings[word] for word in page.words if word in spellings})


@functools.lru_cache(maxsize=4096)
def stop_word_spellings(words: tuple[str, ...]) -> dict[str, int]:
    """Return every spelling that counts, with the place in `words` of the stop word it spells."""
    spellings: dict[str, int] = {}
    for place, word in enumerate(words):
        for spelling in (word, word.capitalize(), word.upper()):
            spellings.setdefault(spelling, place)
    return spellings
