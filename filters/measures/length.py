"""How long a document is."""

from __future__ import annotations

from filters.text_view import Page


def characters(page: Page) -> int:
    """Return the number of characters (code points), white space included.

    >>> characters(Page("naïve"))
    5
    """
    return len(page.text)


def words(page: Page) -> int:
    """Return the number of words, marks not counted.

    >>> words(Page("Well, well..."))
    2
    """
    return len(page.words)


def lines(page: Page) -> int:
    """Return the number of lines that are not blank."""
    return len(page.lines)


def paragraphs(page: Page) -> int:
    """Return the number of paragraphs."""
    return len(page.paragraphs)


def longest_word(page: Page) -> int:
    """Return the characters of the longest word.

    >>> longest_word(Page("so looooong"))
    8
    """
    return max(map(len, page.words), default=0)
