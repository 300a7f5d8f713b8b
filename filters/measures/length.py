"""The length of a document."""

from __future__ import annotations

from filters.text_view import By, Page


def characters(page: Page) -> int:
    """Return the number of characters (code points), white space included.

    >>> characters(Page("naïve"))
    5
    """
    return len(page.text)


def words(page: Page, *, by: By = "spaces") -> int:
    """Return the number of words.

    A word is a run of characters without white space. With ``by="pieces"``, punctuation marks end a word and are not counted.

    >>> words(Page("Well, well - well...")), words(Page("Well, well - well..."), by="pieces")
    (4, 3)
    """
    return len(page.parts(by).words)


def lines(page: Page) -> int:
    """Return the number of lines that are not blank."""
    return len(page.lines)


def paragraphs(page: Page) -> int:
    """Return the number of paragraphs."""
    return len(page.paragraphs)


def longest_word(page: Page, *, by: By = "spaces") -> int:
    """Return the number of characters of the longest word.

    >>> longest_word(Page("so looooong"))
    8
    """
    return max(map(len, page.parts(by).words), default=0)
