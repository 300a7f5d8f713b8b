"""How much of a document repeats itself: the repetition rules of Gopher.

The definitions are Rae et al. 2021 (https://arxiv.org/abs/2112.11446, appendix A.1.1) as datatrove counts them,
except where its users found it wrong:

* every ratio of characters is to all characters of the text, white space included;
* an n-gram is n consecutive pieces, marks included; two are equal when all their pieces are;
* the *top* n-gram counts only when it occurs at least twice (in datatrove a single one counts, so that short texts
  without any repetition are dropped);
* *duplicate* n-grams are found from left to right: an n-gram seen before counts with the characters of its pieces
  and is stepped over whole, so that no character counts twice;
* blank lines and paragraphs are none, hence not duplicates of each other; white space around a line is not compared.
"""

from __future__ import annotations

from collections import Counter

from filters.text_view import Page, share


def _repeats(parts: list[str]) -> list[str]:
    """Return the second and later occurrences."""
    seen: set[str] = set()
    return [part for part in parts if part in seen or seen.add(part)]  # type: ignore[func-returns-value]


def duplicate_line_ratio(page: Page) -> float:
    """Return the share of lines that stood before in the document.

    >>> duplicate_line_ratio(Page("cat\\n\\ndog\\n\\ncat"))
    0.3333333333333333
    """
    return share(len(_repeats(page.lines)), len(page.lines))


def duplicate_line_char_ratio(page: Page) -> float:
    """Return the share of the text's characters in lines that stood before."""
    return share(sum(map(len, _repeats(page.lines))), len(page.text))


def duplicate_paragraph_ratio(page: Page) -> float:
    """Return the share of paragraphs that stood before in the document."""
    return share(len(_repeats(page.paragraphs)), len(page.paragraphs))


def duplicate_paragraph_char_ratio(page: Page) -> float:
    """Return the share of the text's characters in paragraphs that stood before."""
    return share(sum(map(len, _repeats(page.paragraphs))), len(page.text))


def top_ngram_ratio(page: Page, n: int) -> float:
    """Return the share of characters in the most frequent n-gram: its length with single spaces, times its count.

    Of several equally frequent ones the first in the text counts, and one that occurs only once never does.

    >>> top_ngram_ratio(Page("a b c a b d"), 2)
    0.5454545454545454
    >>> top_ngram_ratio(Page("short and never repeated"), 2)
    0.0
    """
    pieces = page.pieces
    counts = Counter(tuple(pieces[at : at + n]) for at in range(len(pieces) - n + 1))
    ngram, count = counts.most_common(1)[0] if counts else ((), 0)
    return share(len(" ".join(ngram)) * count, len(page.text)) if count > 1 else 0.0


def duplicate_ngram_ratio(page: Page, n: int) -> float:
    """Return the share of characters in n-grams that stood before, none counted twice.

    >>> duplicate_ngram_ratio(Page("one two three one two three"), 3)
    0.4074074074074074
    """
    pieces = page.pieces
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


def top_2_gram_ratio(page: Page) -> float:
    """Return `top_ngram_ratio` for n = 2."""
    return top_ngram_ratio(page, 2)


def top_3_gram_ratio(page: Page) -> float:
    """Return `top_ngram_ratio` for n = 3."""
    return top_ngram_ratio(page, 3)


def top_4_gram_ratio(page: Page) -> float:
    """Return `top_ngram_ratio` for n = 4."""
    return top_ngram_ratio(page, 4)


def duplicate_5_gram_ratio(page: Page) -> float:
    """Return `duplicate_ngram_ratio` for n = 5."""
    return duplicate_ngram_ratio(page, 5)


def duplicate_6_gram_ratio(page: Page) -> float:
    """Return `duplicate_ngram_ratio` for n = 6."""
    return duplicate_ngram_ratio(page, 6)


def duplicate_7_gram_ratio(page: Page) -> float:
    """Return `duplicate_ngram_ratio` for n = 7."""
    return duplicate_ngram_ratio(page, 7)


def duplicate_8_gram_ratio(page: Page) -> float:
    """Return `duplicate_ngram_ratio` for n = 8."""
    return duplicate_ngram_ratio(page, 8)


def duplicate_9_gram_ratio(page: Page) -> float:
    """Return `duplicate_ngram_ratio` for n = 9."""
    return duplicate_ngram_ratio(page, 9)


def duplicate_10_gram_ratio(page: Page) -> float:
    """Return `duplicate_ngram_ratio` for n = 10."""
    return duplicate_ngram_ratio(page, 10)
