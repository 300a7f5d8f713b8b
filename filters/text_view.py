"""A document as the measures see it: its words, lines and paragraphs, each split once.

What the parts are, for every measure of this package:

* A *piece* is a word or a mark, as near to spaCy's English tokens, by which datatrove counts, as a few rules come.
* A *word* is a run of letters and digits with their combining marks, in which full stops and underscores (between
  letters or digits) and commas and colons (between digits) may stand: ``example.org``, ``snake_case``, ``1,000``.
  Initials keep their last full stop: ``U.S.``. Hyphens part words, and an apostrophe inside one begins the next:
  ``well - known``, ``it 's``. In scripts written without spaces each Han character or Hiragana is a word, and in
  Thai, Lao, Khmer, Burmese and their neighbours each orthographic syllable: a consonant with its vowel signs, tone
  marks and stacked consonants. Such words are shorter than a dictionary's, so limits on counts are looser there.
* A *mark* is any other visible character, or a run of the same one: ``,`` or ``...`` or ``-----``.
* A *line* is what stands between line feeds, stripped of surrounding white space; blank lines are no lines.
* A *paragraph* is a run of lines without a blank one between them.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping
from typing import Any

from filters.unicode_classes import ALPHABETIC, NUMBER, SPACES, kinds

DEFINITION = "shardwright-1"
"""The name of the definitions above; it stands in recipes, and changes when one of them does."""

_PIECES = re.compile(
    r"""
      a (?: \.a )+ \. (?![a0.])                       # initials
    | (?: (?<=[a0~+k])' )? [a0]                        # a word of a script with spaces
      (?: [a0~+k] | [._](?=[a0]) | (?<=0),(?=0) )*
    | h [~+k]*                                        # an ideograph
    | (?: e?t | e ) (?: [~+k] | (?<=\+)t | t(?=k) )*   # a syllable of Thai, Lao, Khmer, Burmese
    | [^ ]                                            # one character of a mark
    """,
    re.VERBOSE,
)
_LETTERS = frozenset(ALPHABETIC)
_WORD_KINDS = _LETTERS | {NUMBER}


class Page:
    """A text, what is known about it, and its parts, each split at first use.

    `context` is what the caller knows beside the text, for measures to use. A build gives three keys, all of the
    language identifier: ``language`` (a code such as "en"), ``language_score`` (the model's probability, 0 to 1) and
    ``language_label`` (what the model said, such as "en" or "eng_Latn"). Fields of the record are not among them.

    >>> page = Page("To be, or not...\\n\\nto be?", {"language": "en"})
    >>> page.pieces
    ['To', 'be', ',', 'or', 'not', '...', 'to', 'be', '?']
    >>> page.words
    ['To', 'be', 'or', 'not', 'to', 'be']
    >>> page.lines
    ['To be, or not...', 'to be?']
    """

    def __init__(self, text: str, context: Mapping[str, Any] | None = None) -> None:
        self.text = text
        self.context: Mapping[str, Any] = {} if context is None else context

    @functools.cached_property
    def _split(self) -> tuple[list[str], list[str], list[str]]:
        """Pieces, the words among them, the words with a letter."""
        text, letters = self.text, kinds(self.text)
        pieces: list[str] = []
        words: list[str] = []
        alphabetic: list[str] = []
        mark_end = -1
        for match in _PIECES.finditer(letters):
            start, end = match.span()
            if not _WORD_KINDS.isdisjoint(match[0]):
                pieces.append(text[start:end])
                words.append(pieces[-1])
                if not _LETTERS.isdisjoint(match[0]):
                    alphabetic.append(pieces[-1])
            elif start == mark_end and text[start] == text[start - 1]:
                pieces[-1] += text[start]
                mark_end = end
            else:
                pieces.append(text[start])
                mark_end = end
        return pieces, words, alphabetic

    @property
    def pieces(self) -> list[str]:
        """Words and marks, in order."""
        return self._split[0]

    @property
    def words(self) -> list[str]:
        """Pieces that are words, in order."""
        return self._split[1]

    @property
    def alphabetic_words(self) -> list[str]:
        """Words with at least one letter, in order."""
        return self._split[2]

    @functools.cached_property
    def lines(self) -> list[str]:
        """Lines, stripped, without the blank ones."""
        stripped = (line.strip(SPACES) for line in self.text.split("\n"))
        return [line for line in stripped if line]

    @functools.cached_property
    def paragraphs(self) -> list[str]:
        """Paragraphs: their lines, stripped, joined by line feeds."""
        stripped = (line.strip(SPACES) for line in self.text.split("\n"))
        return ["\n".join(lines) for visible, lines in itertools.groupby(stripped, key=bool) if visible]


def share(part: float, whole: float) -> float:
    """Return `part / whole`, and 0 of nothing.

    >>> share(1, 4), share(0, 0)
    (0.25, 0.0)
    """
    return part / whole if whole else 0.0
