"""How much of a document is on a list of words: profanity by default, any list that the user puts in its place."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from filters.page import Page, share

DEFAULT_LIST = Path(__file__).with_name("profanity.txt")

# What a letter is often disguised as; applied to list and text alike, so that each stays comparable with itself.
_DISGUISES = str.maketrans("013457@$!|€", "oieastasile")
_CANDIDATE = re.compile(r"(?:[^\W_]|[@$!|€*])+")


def profanity_ratio(page: Page, *, word_list: Path = DEFAULT_LIST) -> float:
    """Return the share of words that are on the list, in small or capital letters, plain or thinly disguised.

    Whole words are compared, so Scunthorpe and cocktails are safe. Digits and signs stand for the letters they look
    like (``sh1t``, ``a$$``), asterisks for any letter (``f*ck``), and a letter repeated thrice or more for one or two
    (``fuuuck``). `word_list` is a UTF-8 file: a word or phrase of words a line, ``#`` begins a comment.

    >>> profanity_ratio(Page("What the FUCK is this sh1t?"))
    0.3333333333333333
    """
    listed, phrases = _read_list(word_list)
    text = page.text.lower()
    found = sum(_is_listed(candidate, listed) for candidate in _CANDIDATE.findall(text))
    found += sum(len(phrase.findall(text)) for phrase in phrases)
    return share(found, len(page.words))


def _is_listed(candidate: str, listed: frozenset[str]) -> bool:
    if candidate in listed:
        return True
    if candidate.isalpha() and not _REPEATED.search(candidate):
        return False
    if candidate.isdecimal():  # 455 is a number
        return False
    return any(spelling in listed for spelling in _spellings(candidate)) or _matches_masked(candidate, listed)


_REPEATED = re.compile(r"(.)\1\1+")


def _spellings(candidate: str) -> set[str]:
    """Return what a disguised word may stand for; signs at its ends may be punctuation."""
    forms = {candidate, candidate.strip("!|*@$€")}
    plain = {form.translate(_DISGUISES) for form in forms}
    return {_REPEATED.sub(letters, form) for form in plain for letters in (r"\1", r"\1\1")}


def _matches_masked(candidate: str, listed: frozenset[str]) -> bool:
    inner = candidate.strip("*!").translate(_DISGUISES)
    if "*" not in inner or not inner.replace("*", ""):
        return False
    pattern = re.compile("".join("." if letter == "*" else re.escape(letter) for letter in inner))
    return any(len(word) == len(inner) and pattern.fullmatch(word) for word in listed)


@functools.lru_cache(maxsize=64)
def _read_list(path: Path) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """Return the single words of a list, and a pattern for each phrase."""
    entries = [line.partition("#")[0].strip().lower() for line in path.read_text(encoding="utf-8").splitlines()]
    words = frozenset(entry for entry in entries if entry and len(entry.split()) == 1)
    phrases = [entry.split() for entry in entries if len(entry.split()) > 1]
    return words, tuple(re.compile(r"(?<!\w)" + r"\W+".join(map(re.escape, phrase)) + r"(?!\w)") for phrase in phrases)
