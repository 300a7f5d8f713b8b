"""The words by which texts are compared: for near duplicates, repeated passages, decontamination, --against and `find`.

* A *word* is a run of letters and digits with their combining marks: ``don't`` is ``don`` and ``t``, ``3.99`` is ``3`` and
  ``99``. An underscore or a middle dot between two of them is part of the word.
* In scripts written without spaces (Han, Hiragana, Bopomofo, Yi, Thai, Lao, Khmer, Burmese, Javanese, Balinese and their
  neighbours) each letter is a word, with its marks. A vowel that is written before its consonant, a stacked consonant and a
  consonant that closes a syllable are in the word of that syllable. A run of Katakana is one word.
* Words are compared in lower case, without invisible characters: joiners, soft hyphens, marks of direction.

The pieces that measures count (`filters.text_view`) are split by the same kinds of characters. A piece may have full stops,
commas and colons between its words, because such rules are published: ``3.99`` is one piece.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING

from filters.unicode_classes import EXTENDER, KINDS, MARK, TERMINAL_BIT, kind_table, kinds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFINITION = "words-2"
"""The version of the definition above. Manifests hold it, because signatures of other words cannot be compared."""

UNSPACED_WORD = r"h [~+k]* | (?: e?t | e ) (?: [~+k] | (?<=\+)t | t(?=k) )*"
"""A word of a script without spaces, as an expression over kinds of characters."""

INVISIBLE = len(KINDS)
"""The number, in `word_table`, of characters inside words that are not compared."""

_WORDS = re.compile(rf"[a0] (?: [a0~+k] | _(?=[a0]) )* | {UNSPACED_WORD}", re.VERBOSE)


def words(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield each word as it is compared, its first character, and the character after its last.

    >>> [word for word, *_ in words("To be, 或不 $3.99")]
    ['to', 'be', '或', '不', '3', '99']
    """
    lower = lowered(text)
    for match in _WORDS.finditer(kinds(lower)):
        word = lower[match.start() : match.end()]
        yield "".join(letter for letter in word if unicodedata.category(letter) != "Cf"), *match.span()


def lowered(text: str) -> str:
    """Return a text in lower case. It has as many characters: the one letter that has two in lower case, İ, becomes i."""
    return text.replace("İ", "i").lower()


@functools.cache
def word_table() -> NDArray[np.uint8]:
    """Return for every code point the index of its kind in `KINDS`, or `INVISIBLE`."""
    import numpy as np

    table = np.full(sys.maxunicode + 1, KINDS.index(MARK), np.uint8)
    table[: len(kind_table())] = kind_table() & ~np.uint8(TERMINAL_BIT)
    extenders = np.flatnonzero(table == KINDS.index(EXTENDER)).tolist()
    table[[point for point in extenders if unicodedata.category(chr(point)) == "Cf"]] = INVISIBLE
    return table
