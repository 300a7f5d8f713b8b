"""The share of words that are on a list: profanity by default, or a list of the user."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from filters.text_view import Page, share

DEFAULT_LIST = Path(__file__).with_name("profanity.txt")

# Signs that often disguise a letter; applied to words that hold such a sign and a letter.
_DISGUISES = str.maketrans("013457@$!|€", "oieastasile")
_WORD = re.compile(r"(?:[^\W_]|[@$!|€*])+")
_LONGEST_MASKED = 40
_REPEATED = re.compile(r"([^\W\d_])\1\1+")


def profanity_ratio(page: Page, *, word_list: Path = DEFAULT_LIST) -> float:
    """Return the share of words that are on a list of profanity.

    Here words are runs of letters, digits and the signs ``@ $ ! | € *``. Whole words are compared, so Scunthorpe and
    cocktails do not count. Digits and signs are read as the letters that they look like (``sh1t``, ``a$$hole``), an asterisk
    as any letter (``f*ck``). Three or more equal letters are read as one or two (``fuuuck``). `word_list` is a UTF-8 file with
    a word or phrase on each line; ``#`` begins a comment.

    >>> profanity_ratio(Page("What the FUCK is this sh1t?"))
    0.3333333333333333
    """
    listed, phrases = read_list(word_list)
    text = page.text.lower()
    words = _WORD.findall(text)
    matches = sum(word in listed for word in words)
    stretched = _REPEATED.search(text) is not None
    suspects = [word for word in words if not word.isalpha() or (stretched and _REPEATED.search(word))]
    matches += sum(is_disguised(word, listed) for word in suspects if word not in listed)
    matches += sum(len(pattern.findall(text)) for phrase, pattern in phrases if all(word in text for word in phrase))
    return share(matches, len(words))


def is_disguised(word: str, listed: frozenset[str]) -> bool:
    """Return whether a word in small letters, which is not on the list, is a disguise of a listed word."""
    # Answers for short words are cached: most of them occur often, but few long ones do.
    return (_remembered if len(word) <= _LONGEST_MASKED else _is_disguised)(word, listed)


def _is_disguised(word: str, listed: frozenset[str]) -> bool:
    if word.isdecimal():  # 455 is a number
        return False
    # Signs at the ends may be letters or punctuation.
    plain = {form.translate(_DISGUISES) for form in (word, word.strip("!|*@$€"))}
    if any(_REPEATED.sub(letters, form) in listed for form in plain for letters in (r"\1", r"\1\1")):
        return True
    masked = word.strip("*!").translate(_DISGUISES)
    if "*" not in masked or len(masked) > _LONGEST_MASKED:
        return False
    pattern = re.compile("".join("." if letter == "*" else re.escape(letter) for letter in masked))
    return any(len(entry) == len(masked) and pattern.fullmatch(entry) for entry in listed)


_remembered = functools.lru_cache(maxsize=1 << 14)(_is_disguised)


@functools.lru_cache(maxsize=64)
def read_list(path: Path) -> tuple[frozenset[str], tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]]:
    """Return the single words of a list, and for each phrase its words and a pattern that matches the phrase."""
    entries = [line.partition("#")[0].lower().split() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    phrases = [tuple(entry) for entry in entries if len(entry) > 1]
    patterns = [re.compile(r"\b" + r"\W+".join(map(re.escape, phrase)) + r"\b") for phrase in phrases]
    return frozenset(entry[0] for entry in entries if len(entry) == 1), tuple(zip(phrases, patterns, strict=True))
