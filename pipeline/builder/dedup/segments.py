"""Texts -> segments: lines, or paragraphs, which blank lines separate.

Segments are compared after white space at their ends is removed, runs of white space become single spaces and letters are
case-folded. Only ``\\n`` ends a line; other breaks, such as U+2028, are white space within a line. Text shorter than a
minimum, counted in the characters that are compared, is no segment. A blank line is no segment either.

    hash        h = 0xCBF29CE484222325; for each code point c: h = (h ^ c) * 0x9E3779B97F4A7C15, h ^= h >> 32;
                then mix64 (minhash.py); for a paragraph, h ^ 0xD6E8FEB86659FD93, so that it never equals a line

A hash has 64 bits: about n ** 2 / 2 ** 65 of n different segments are mistaken for others, 3 of ten billion.

CCNet (Wenzek et al. 2020, https://arxiv.org/abs/1911.00359) also reads every digit as 0 and drops punctuation and
accents. Then the rows of a table, the reports of a year, and Hindi words that differ in a vowel sign become equal. So
digits, punctuation and accents are compared here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from filters.compiled.text_arrays import code_points
from filters.unicode_classes import SPACES

LINES, PARAGRAPHS = KINDS = ("lines", "paragraphs")
_PARAGRAPH = np.uint64(0xD6E8FEB86659FD93)


class Segments(NamedTuple):
    """The segments of several texts, kind by kind and in order: hashes (uint64 ``[n]``), the text, first line and last line
    of each (int64 ``[n, 3]``), and how many of them are lines. The others are paragraphs."""

    hashes: NDArray[np.uint64]
    locations: NDArray[np.int64]
    lines: int


def split(texts: Sequence[str], kinds: Collection[str], shortest: int) -> Segments:
    """Return the segments of every text that are of the given kinds and not shorter than ``shortest``."""
    from . import kernels  # numba: imported only if segments are hashed

    points, ends = code_points([text.casefold() for text in texts])
    most = (len(points) + len(texts)) // (max(1, shortest) + 1)  # a line feed or the end of its text follows each
    hashes, locations, counts = [], [], []
    for kind in KINDS:
        h, p = np.empty(most, np.uint64), np.empty((most, 3), np.int64)
        number = kernels.split(points, ends, _spaces(), kind == PARAGRAPHS, shortest, h, p) if kind in kinds else 0
        hashes.append(h[:number] ^ (_PARAGRAPH if kind == PARAGRAPHS else np.uint64(0)))
        locations.append(p[:number])
        counts.append(number)
    return Segments(np.concatenate(hashes), np.concatenate(locations), counts[0])


def segment_finder(kinds: Collection[str], shortest: int) -> Callable[[Sequence[str]], Segments] | None:
    """Return `split` for segments of these kinds; None if there are no kinds."""
    return functools.partial(split, kinds=kinds, shortest=shortest) if kinds else None


def is_blank(line: str) -> bool:
    return not line.strip(SPACES)


def remove_segments(text: str, cut: Collection[tuple[int, int]]) -> str:
    """Return a text without some of its segments. Each of ``cut`` is a segment's first line and the line after its last.

    If a whole paragraph is cut, so are the blank lines after it. If the last line is cut, so are blank lines at the end.

    >>> remove_segments("A fine day.\\n\\nRead more!\\n\\nIt rained.\\nRead more!", [(2, 3), (5, 6)])
    'A fine day.\\n\\nIt rained.'
    """
    lines = text.split("\n")
    gone = {number for first, last in cut for number in range(first, last)}
    kept: list[str] = []
    paragraph_left, after_blank, last_gone = True, True, False
    for number, line in enumerate(lines):
        blank = is_blank(line)
        if not blank:
            last_gone = number in gone
            paragraph_left = not last_gone or (paragraph_left and not after_blank)
        after_blank = blank
        if paragraph_left if blank else not last_gone:
            kept.append(line)
    while last_gone and kept and is_blank(kept[-1]):
        kept.pop()
    return "\n".join(kept)


def segment_lines(text: str, cut: Collection[tuple[int, int]]) -> str:
    """Return the lines of some segments of a text: those that `remove_segments` cuts."""
    lines = text.split("\n")
    return "\n".join(lines[number] for number in sorted({n for first, last in cut for n in range(first, last)}))


@functools.cache
def _spaces() -> NDArray[np.bool_]:
    table = np.zeros(max(map(ord, SPACES)) + 1, bool)
    table[[ord(space) for space in SPACES]] = True
    return table
