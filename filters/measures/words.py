"""Whether the words of a document are those of prose: the quality rules of Gopher that look at words.

Gopher's paper does not define a word. By default, words are the runs between white space, as in NeMo Curator and in DCLM's
filters of word length, symbols, letters and stop words. datatrove counts spaCy's tokens, which include most punctuation
marks: ``by = "tokens"`` does the same. ``by = "pieces"`` counts words and marks in a compiled pass, as fast as the default.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from filters.text_view import By, Page, share


def mean_word_length(page: Page, *, by: By = "spaces") -> float:
    """Return the mean number of characters of a word, 0 without words.

    >>> mean_word_length(Page("To be, or not to be!"))
    2.5
    >>> mean_word_length(Page("To be, or not to be!"), by="pieces")
    2.1666666666666665
    """
    words = page.parts(by).words
    return share(sum(map(len, words)), len(words))


def alphabetic_ratio(page: Page, *, by: By = "spaces") -> float:
    """Return the share of words that contain a letter.

    With ``by="pieces"``, punctuation marks are words, too.

    >>> alphabetic_ratio(Page("10 % of it.")), alphabetic_ratio(Page("10 % of it."), by="pieces")
    (0.5, 0.4)
    """
    parts = page.parts(by)
    return share(len(parts.alphabetic), len(parts.pieces))


def hash_ratio(page: Page, *, by: By = "spaces") -> float:
    """Return the number of ``#`` per word.

    With ``by="pieces"``, punctuation marks are words, too.
    """
    return share(page.text.count("#"), len(page.parts(by).pieces))


def ellipsis_ratio(page: Page, *, by: By = "spaces") -> float:
    """Return the number of ``...`` and ``…`` per word.

    With ``by="pieces"``, punctuation marks are words, too.
    """
    return share(page.text.count("...") + page.text.count("…"), len(page.parts(by).pieces))


def stop_words(page: Page, *, words: Sequence[str], by: By = "spaces", any_case: bool = True) -> int:
    """Return how many different stop words the text contains.

    The stop words are `words`. With `any_case`, "The" and "THE" count as "the".

    >>> stop_words(Page("THE cat and the hat"), words=["the", "and", "of"])
    2
    """
    spellings = stop_word_spellings(tuple(words)) if any_case else {word: index for index, word in enumerate(words)}
    return len({spellings[word] for word in page.parts(by).words if word in spellings})


@functools.lru_cache(maxsize=4096)
def stop_word_spellings(words: tuple[str, ...]) -> dict[str, int]:
    """Return every spelling that counts, with the index in `words` of its stop word."""
    spellings: dict[str, int] = {}
    for index, word in enumerate(words):
        for spelling in (word, word.capitalize(), word.upper()):
            spellings.setdefault(spelling, index)
    return spellings
