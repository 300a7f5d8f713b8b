"""How much of a document repeats itself: the repetition rules of Gopher.

The definitions are those of Rae et al. 2021 (https://arxiv.org/abs/2112.11446, appendix A.1.1), counted as datatrove does,
unless that drops good text:

* every ratio of characters is relative to all characters of the text, including white space;
* an n-gram is n consecutive words (by pieces: words and marks); two n-grams are equal if all their words are;
* the *top* n-gram counts only if it occurs at least twice (in datatrove it always counts, so that short texts without any
  repetition are dropped);
* *duplicate* n-grams are found from left to right: an n-gram that occurs earlier counts with the characters of its words,
  and the search continues after it, so that no character counts twice;
* blank lines and paragraphs do not count, so they are no duplicates; white space around a line is not compared
  (with `blank`, as in datatrove, the text between line feeds is compared as it is).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from filters.text_view import By, Page, Positive, share


def _repeats(parts: list[str]) -> list[str]:
    """Return the second and later occurrences."""
    seen: set[str] = set()
    return [part for part in parts if part in seen or seen.add(part)]  # type: ignore[func-returns-value]


def _lines(page: Page, blank: bool) -> list[str]:
    return re.split(r"\n+", page.text) if blank else page.lines


def _paragraphs(page: Page, blank: bool) -> list[str]:
    return re.split(r"\n{2,}", page.text.strip()) if blank else page.paragraphs


def duplicate_line_ratio(page: Page, *, blank: bool = False) -> float:
    """Return the share of lines that occur earlier in the document.

    >>> duplicate_line_ratio(Page("cat\\n\\ndog\\n\\ncat"))
    0.3333333333333333
    """
    lines = _lines(page, blank)
    return share(len(_repeats(lines)), len(lines))


def duplicate_line_char_ratio(page: Page, *, blank: bool = False) -> float:
    """Return the share of the text's characters in lines that occur earlier."""
    return share(sum(map(len, _repeats(_lines(page, blank)))), len(page.text))


def duplicate_paragraph_ratio(page: Page, *, blank: bool = False) -> float:
    """Return the share of paragraphs that occur earlier in the document."""
    paragraphs = _paragraphs(page, blank)
    return share(len(_repeats(paragraphs)), len(paragraphs))


def duplicate_paragraph_char_ratio(page: Page, *, blank: bool = False) -> float:
    """Return the share of the text's characters in paragraphs that occur earlier."""
    return share(sum(map(len, _repeats(_paragraphs(page, blank)))), len(page.text))


def top_ngram_ratio(page: Page, *, n: Positive, by: By = "spaces") -> float:
    """Return the share of characters in the most frequent run of n words.

    The share counts the run with single spaces, as often as it occurs.

    If several are equally frequent, the first in the text counts. An n-gram that occurs only once never counts.

    >>> top_ngram_ratio(Page("a b c a b d"), n=2)
    0.5454545454545454
    >>> top_ngram_ratio(Page("short and never repeated"), n=2)
    0.0
    """
    pieces = page.parts(by).pieces
    counts = Counter(tuple(pieces[at : at + n]) for at in range(len(pieces) - n + 1))
    ngram, count = counts.most_common(1)[0] if counts else ((), 0)
    return share(len(" ".join(ngram)) * count, len(page.text)) if count > 1 else 0.0


def duplicate_ngram_ratio(page: Page, *, n: Positive, by: By = "spaces") -> float:
    """Return the share of characters in runs of n words that occur earlier.

    No character counts twice.

    >>> duplicate_ngram_ratio(Page("one two three one two three"), n=3)
    0.4074074074074074
    """
    pieces = page.parts(by).pieces
    seen: set[tuple[str, ...]] = set()
    repeated = at = 0
    while at <= len(pieces) - n:
        ngram = tuple(pieces[at : at + n])
        if ngram in seen:
            repeated += sum(map(len, ngram))
            at += n
        else:
            seen.add(ngram)
            at += 1
    return share(repeated, len(page.text))


def _ngram_measure(n: int, ratio: Callable[..., float], runs: str) -> Callable[..., float]:
    """Return the measure of n-grams of one length, by its name in rules, such as ``top_2_gram_ratio``."""

    def measure(page: Page, *, by: By = "spaces") -> float:
        return ratio(page, n=n, by=by)

    measure.__name__ = measure.__qualname__ = ratio.__name__.replace("_ngram_", f"_{n}_gram_")
    measure.__doc__ = f"Return the share of characters in {runs} of {n} words."
    return measure


_TOP, _DUPLICATE = "the most frequent run", "repeated runs"
top_2_gram_ratio = _ngram_measure(2, top_ngram_ratio, _TOP)
top_3_gram_ratio = _ngram_measure(3, top_ngram_ratio, _TOP)
top_4_gram_ratio = _ngram_measure(4, top_ngram_ratio, _TOP)
duplicate_5_gram_ratio = _ngram_measure(5, duplicate_ngram_ratio, _DUPLICATE)
duplicate_6_gram_ratio = _ngram_measure(6, duplicate_ngram_ratio, _DUPLICATE)
duplicate_7_gram_ratio = _ngram_measure(7, duplicate_ngram_ratio, _DUPLICATE)
duplicate_8_gram_ratio = _ngram_measure(8, duplicate_ngram_ratio, _DUPLICATE)
duplicate_9_gram_ratio = _ngram_measure(9, duplicate_ngram_ratio, _DUPLICATE)
duplicate_10_gram_ratio = _ngram_measure(10, duplicate_ngram_ratio, _DUPLICATE)
