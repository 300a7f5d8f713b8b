"""A document as the measures see it: its words, lines and paragraphs, each split once.

The definitions of these parts, for every measure of this package:

* A *word* is a run of visible characters between white space, as ``str.split`` returns it: ``well-known,`` is one word, and
  so is ``--``. The zero-width space (U+200B) and the byte order mark (U+FEFF) are white space, too. A run
  with letters of a script that is written without spaces is split into pieces instead: its words are the pieces that are
  not marks, and its marks do not count, like those in ``well-known,``.
* A *piece* is a smaller part: a word or a mark. Here words are runs of letters and digits with their combining marks.
  Full stops and underscores may occur between letters or digits, commas and colons between digits: ``example.org``,
  ``snake_case``, ``1,000``. Initials keep their last full stop: ``U.S.``. Hyphens separate words, and an apostrophe inside a
  word begins the next: ``well - known``, ``it 's``. In scripts written without spaces, each character of Han, Hiragana,
  Bopomofo or Yi is a word, and so is a run of Katakana. In Thai, Khmer, Burmese, Javanese and their
  neighbours, each orthographic syllable is a word: a consonant with its vowel signs, tone marks and stacked consonants. Such
  words are shorter than those of a dictionary, so limits on counts are looser there.
* A *mark* is any other visible character, or a run of the same one: ``,`` or ``...`` or ``-----``.
* A *line* is the text between line feeds, stripped of surrounding white space; blank lines do not count.
* A *paragraph* is a run of lines without a blank one between them.
* A *token* is a part that spaCy's English tokenizer, and so datatrove, counts (`filters.spacy_tokens`). Here words are the
  tokens that are not punctuation alone.

A measure that counts words has a parameter `by`: "spaces" (default), "pieces" or "tokens". The last is not compiled, and
needs the extra ``shardwright[datatrove]``.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from filters.spacy_tokens import is_symbol, split_tokens
from filters.unicode_classes import ALPHABETIC, MARK, NUMBER, SPACES, UNSPACED, kinds
from filters.words import UNSPACED_WORD

DEFINITION = "shardwright-4"
"""The version of the definitions above. Recipes hold it; it changes with each definition."""

_PIECES = re.compile(
    r"""
      a (?: \.a )+ \. (?![a0.])                       # initials
    | (?: (?<=[a0~+k])' )? [a0]                        # a word of a script with spaces
      (?: [a0~+k] | [._](?=[a0]) | (?<=0),(?=0) )*
    | """
    + UNSPACED_WORD
    + r"""
    | [^ ]                                            # one character of a mark
    """,
    re.VERBOSE,
)
_RUNS = re.compile("[^ ]+")
_LETTERS = frozenset(ALPHABETIC)
_WORD_KINDS = _LETTERS | {NUMBER}
_UNSPACED = frozenset(UNSPACED)

By = Literal["spaces", "pieces", "tokens"]
"""How words are counted."""

Count = Annotated[int, 0]
"""A parameter of a rule: a whole number of at least 0."""

Positive = Annotated[int, 1]
"""A parameter of a rule: a whole number of at least 1."""


class Parts(NamedTuple):
    """The parts of a text, in order: all of them (`pieces`), the words among them, and the words with a letter.

    Counted by spaces, every part is a word.
    """

    pieces: list[str]
    words: list[str]
    alphabetic: list[str]


class Page:
    """A text, its context, and its parts, each split at first use.

    `context` holds further facts for measures. A build sets three keys, all from the language identifier: ``language`` (a
    code such as "en"), ``language_score`` (the model's probability, 0 to 1) and ``language_label`` (the model's label, such as
    "en" or "eng_Latn"). If a rule reads fields of the record, ``metadata`` holds them.

    >>> page = Page("To be, or not...\\n\\nto be?", {"language": "en"})
    >>> page.words
    ['To', 'be,', 'or', 'not...', 'to', 'be?']
    >>> page.pieces
    ['To', 'be', ',', 'or', 'not', '...', 'to', 'be', '?']
    >>> page.lines
    ['To be, or not...', 'to be?']
    """

    def __init__(self, text: str, context: Mapping[str, Any] | None = None) -> None:
        self.text = text
        self.context: Mapping[str, Any] = {} if context is None else context

    def parts(self, by: By) -> Parts:
        """Return the parts by one of the definitions: ``"spaces"``, ``"pieces"`` or ``"tokens"``."""
        if by == "spaces":
            return self._by_spaces
        return self._by_pieces if by == "pieces" else self._by_tokens

    @functools.cached_property
    def _by_spaces(self) -> Parts:
        text, letters = self.text, kinds(self.text)
        parts = Parts([], [], [])
        for match in _RUNS.finditer(letters):
            start, end = match.span()
            if not _UNSPACED.isdisjoint(match[0]):
                for part in _split_pieces(text, letters, start, end):
                    if part[2]:
                        _add(parts, *part)
            else:
                _add(parts, text[start:end], match[0], True)
        return parts

    @functools.cached_property
    def _by_pieces(self) -> Parts:
        parts = Parts([], [], [])
        for part in _split_pieces(self.text, kinds(self.text), 0, len(self.text)):
            _add(parts, *part)
        return parts

    @functools.cached_property
    def _by_tokens(self) -> Parts:
        tokens = split_tokens(self.text)
        words = [token for token in tokens if not is_symbol(token)]
        return Parts(tokens, words, [token for token in tokens if any(map(str.isalpha, token))])

    @property
    def pieces(self) -> list[str]:
        """Words and marks, in order, split finely: ``["it", "'s", "."]``."""
        return self._by_pieces.pieces

    @property
    def words(self) -> list[str]:
        """Words between white space, in order."""
        return self._by_spaces.words

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


def _split_pieces(text: str, letters: str, start: int, end: int) -> Iterator[tuple[str, str, bool]]:
    """Yield each piece of a part of a text, its kinds, and whether it is a word."""
    mark = ""
    for match in _PIECES.finditer(letters, start, end):
        piece, is_word = text[match.start() : match.end()], not _WORD_KINDS.isdisjoint(match[0])
        if mark and (is_word or piece != mark[0] or letters[match.start() - 1] == " "):
            yield mark, MARK, False
            mark = ""
        if is_word:
            yield piece, match[0], True
        else:
            mark += piece
    if mark:
        yield mark, MARK, False


def _add(parts: Parts, piece: str, letters: str, is_word: bool) -> None:
    parts.pieces.append(piece)
    if is_word:
        parts.words.append(piece)
        if not _LETTERS.isdisjoint(letters):
            parts.alphabetic.append(piece)


def share(part: float, whole: float) -> float:
    """Return `part / whole`, or 0 if `whole` is 0.

    >>> share(1, 4), share(0, 0)
    (0.25, 0.0)
    """
    return part / whole if whole else 0.0
