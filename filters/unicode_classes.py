"""Kinds of characters: the table by which texts are split into words, marks and lines.

Every kind has a letter, so that `kinds` can return the kinds of a text as a string. It also has a small number, so that
compiled code can look kinds up (`kind_table`). Both come from `kind`, which asks Python's Unicode tables.

Some scripts are written without spaces between words (the Unicode line-breaking classes ID and SA). Their letters have
their own kinds, so that a paragraph of Chinese or Thai is not one word.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SPACE = " "  # white space, the zero-width space, the byte order mark
LETTER = "a"
NUMBER = "0"
EXTENDER = "~"  # combining marks and invisible joiners: part of the word before them
POINT = "."  # between two letters or digits it is part of a word: example.org, U.S.
JOINER = "_"  # like a full stop, but not in initials: snake_case, col·lega
APOSTROPHE = "'"  # between two letters or digits it begins a word: it|'s
COMMA = ","  # between two digits it is part of a number: 1,000 and 10:30
IDEOGRAPH = "h"  # Han, Hiragana, Bopomofo, Yi and Tangut: each one is a word
SYLLABIC = "t"  # consonants and vowels of Thai, Lao, Khmer, Burmese, Javanese, Balinese and their neighbours
LEADING = "e"  # Thai and Lao vowels that are written before their consonant
STACKER = "+"  # joins the consonant after it to the one before: Khmer coeng, Burmese virama, Javanese pangkon
KILLER = "k"  # makes the consonant before it the end of the syllable: Burmese asat
MARK = "-"  # everything else that is visible

KINDS = (
    SPACE
    + LETTER
    + NUMBER
    + EXTENDER
    + POINT
    + JOINER
    + APOSTROPHE
    + COMMA
    + IDEOGRAPH
    + SYLLABIC
    + LEADING
    + STACKER
    + KILLER
    + MARK
)

ALPHABETIC = LETTER + IDEOGRAPH + SYLLABIC + LEADING
"""A word is alphabetic if it has a character of these kinds."""

UNSPACED = IDEOGRAPH + SYLLABIC + LEADING
"""Kinds of letters in scripts that are written without spaces."""

LETTER_EXTENDERS = "ะาำๅๆະາຳຽໆ"
"""Letters of Thai and Lao that belong to the syllable before them."""

_EXACT = {
    **dict.fromkeys("\u200b\ufeff", SPACE),
    ".": POINT,
    **dict.fromkeys("_·", JOINER),
    **dict.fromkeys("'’", APOSTROPHE),
    **dict.fromkeys(",:", COMMA),
    **dict.fromkeys("เแโใไເແໂໃໄ", LEADING),
    **dict.fromkeys(LETTER_EXTENDERS, EXTENDER),
    **dict.fromkeys("\u17d2\u1039\u1a60\u1b44\ua9c0", STACKER),
    **dict.fromkeys("\u103a", KILLER),
}
_IDEOGRAPHIC = (
    (0x2E80, 0x2FDF), (0x3005, 0x3007), (0x3041, 0x309F), (0x3105, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF),
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA48F), (0xF900, 0xFAFF), (0x17000, 0x18DFF), (0x1B000, 0x1B2FF),
    (0x20000, 0x323AF),
)  # fmt: skip
_SYLLABIC = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF), (0x1B00, 0x1B7F),
    (0xA980, 0xA9FF), (0xAA60, 0xAADF), (0x11700, 0x1174F),
)  # fmt: skip
_LAST_LETTER = 0x323AF
_LAST_ASSIGNED = 0xE0FFF

# Unicode's property Sentence_Terminal (version 16), as inclusive ranges of code points.
_TERMINAL_RANGES = """
21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736 17D4-17D5
1803 1809 1944-1945 1AA8-1AAB 1B4E-1B4F 1B5A-1B5B 1B5E-1B5F 1B7D-1B7F 1C3B-1C3C 1C7E-1C7F 2024 203C-203D 2047-2049
2CF9-2CFB 2E2E 2E3C 2E53-2E54 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1
ABEB FE12 FE15-FE16 FE52 FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1
11141-11143 111C5-111C6 111CD 111DE-111DF 11238-11239 1123B-1123C 112A9 113D4-113D5 1144B-1144C 115C2-115C3
115C9-115D7 11641-11642 1173C-1173E 11944 11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44
16A6E-16A6F 16AF5 16B37-16B38 16B44 16D6E-16D6F 16E98 1BC9F 1DA88
"""


def _terminals() -> frozenset[str]:
    pairs = (entry.split("-") for entry in _TERMINAL_RANGES.split())
    return frozenset(chr(code) for pair in pairs for code in range(int(pair[0], 16), int(pair[-1], 16) + 1))


TERMINALS: frozenset[str] = _terminals()
"""Characters that end a sentence in some script."""


def kind(character: str) -> str:
    """Return the kind of one character.

    >>> "".join(map(kind, "Don't 10%"))
    "aaa'a 00-"
    """
    exact = _EXACT.get(character)
    if exact is not None:
        return exact
    if character.isspace():
        return SPACE
    category = unicodedata.category(character)
    if category[0] == "N" and character != "〇":
        return NUMBER
    if category[0] == "M" or category == "Cf":
        return EXTENDER
    if category[0] != "L" and character != "〇":
        return MARK
    code = ord(character)
    if any(first <= code <= last for first, last in _IDEOGRAPHIC):
        return IDEOGRAPH
    return SYLLABIC if any(first <= code <= last for first, last in _SYLLABIC) else LETTER


class _Kinds(dict[int, str]):
    """A translation table that fills itself: code point -> kind."""

    def __missing__(self, code: int) -> str:
        letter = self[code] = kind(chr(code))
        return letter


_kinds = _Kinds()


def kinds(text: str) -> str:
    """Return the kinds of all characters, one letter each.

    >>> kinds("我 did it…")
    'h aaa aa-'
    """
    return text.translate(_kinds)


SPACES = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008"
    "\u2009\u200a\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""Every character of kind SPACE, for `str.strip`."""

TERMINAL_BIT = 0x80


def _kind_numbers(letters: str) -> NDArray[np.uint8]:
    import numpy as np

    numbers = np.zeros(128, np.uint8)
    numbers[[ord(letter) for letter in KINDS]] = range(len(KINDS))
    return numbers[np.frombuffer(letters.encode("ascii"), np.uint8)]


@functools.cache
def kind_table() -> NDArray[np.uint8]:
    """Return uint8[0xE1000]: each code point's index in `KINDS`, plus `TERMINAL_BIT` for the terminals.

    Code points beyond the table are private or unassigned; they are marks.
    """
    import numpy as np

    # Equal to calling `kind` for each of 200,000 code points, in a tenth of the time.
    by_category = {"N": NUMBER, "M": EXTENDER, "L": LETTER}
    table = np.full(_LAST_ASSIGNED + 1, KINDS.index(MARK), np.uint8)
    for block in (range(_LAST_LETTER + 1), range(0xE0000, _LAST_ASSIGNED + 1)):  # none between is assigned
        categories = list(map(unicodedata.category, map(chr, block)))
        letter_of = {name: EXTENDER if name == "Cf" else by_category.get(name[0], MARK) for name in set(categories)}
        table[block.start : block.stop] = _kind_numbers("".join(map(letter_of.__getitem__, categories)))
    for ranges, letter in ((_IDEOGRAPHIC, IDEOGRAPH), (_SYLLABIC, SYLLABIC)):
        for first, last in ranges:
            span = table[first : last + 1]
            span[span == KINDS.index(LETTER)] = KINDS.index(letter)
    for character, letter in {**dict.fromkeys(SPACES, SPACE), "〇": IDEOGRAPH, **_EXACT}.items():
        table[ord(character)] = KINDS.index(letter)
    for character in TERMINALS:
        table[ord(character)] |= TERMINAL_BIT
    return table
