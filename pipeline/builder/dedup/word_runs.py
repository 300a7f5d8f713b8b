"""Texts -> runs of words that may occur twice -> passages that do.

A passage is a run of at least N words that occurs earlier: in an earlier document, or at least N words before in the same one.
Words (`filters.words`) are compared by their 64-bit hashes (`minhash`).

Winnowing (Schleimer, Wilkerson, Aiken 2003, https://doi.org/10.1145/872757.872770) finds where to look:

    run         k = N // 3 words; its hash is mix64 of sum(word[i] * 0x9E3779B97F4A7C15 ** (k - 1 - i))
    window      the w = N - k + 1 runs within N words; the run with the smallest hash is the window's pick
    candidate   N words whose pick has the hash of another pick

Equal windows pick equal runs, so every passage consists of candidates, and no window is compared if its pick is unique. About
one run in (w + 1) / 2 is picked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from filters.compiled.text_arrays import code_points
from filters.unicode_classes import EXTENDER, KILLER, KINDS, LETTER, NUMBER, SPACE, STACKER, UNSPACED, kinds
from filters.words import lowered, word_table

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # times this, picked hashes, which are small, fill all buckets alike
_SPACED, _EXTENDS = LETTER + NUMBER, EXTENDER + STACKER + KILLER
_MARKS = "".join(kind for kind in KINDS if kind not in SPACE + _SPACED + UNSPACED)


class Words(NamedTuple):
    """The words of several texts: hashes (uint64 ``[n]``), first character and end of each in the joined texts (int64
    ``[n, 2]``), the end of each text's words (int64 ``[texts]``), and where each text begins (int64 ``[texts]``)."""

    hashes: NDArray[np.uint64]
    spans: NDArray[np.int64]
    stops: NDArray[np.int64]
    begins: NDArray[np.int64]


class Candidates(NamedTuple):
    """Runs of words that may occur elsewhere: words (uint64 ``[n]``), and text, first word in it and number of words of
    each run (int64 ``[runs, 3]``)."""

    words: NDArray[np.uint64]
    runs: NDArray[np.int64]


def find_words(texts: Sequence[str]) -> Words:
    """Return the words of every text.

    >>> found = find_words(["It's new.", "東京 2020"])
    >>> found.spans.tolist(), found.stops.tolist()
    ([[0, 2], [3, 4], [5, 8], [9, 10], [10, 11], [12, 16]], [3, 6])
    """
    from .kernels import locate_words

    points, ends = code_points([lowered(text) for text in texts])
    hashes, spans = np.empty(len(points), np.uint64), np.empty((len(points), 2), np.int64)
    stops = np.empty(len(texts), np.int64)
    number = locate_words(points, ends, word_table(), hashes, spans, stops)
    return Words(hashes[:number], spans[:number], stops, np.concatenate([[0], ends[:-1]]))


def picked_runs(words: Words, length: int) -> NDArray[np.uint64]:
    """Return the keys of the runs that the windows of ``length`` words pick, once for each place."""
    hashes, picks = _winnow(words, length)
    places = picks[picks >= 0]
    return np.asarray(hashes[places[np.diff(places, prepend=-1) != 0]])


def candidates(words: Words, length: int, repeated: NDArray[np.uint64]) -> Candidates:
    """Return the runs of at least ``length`` words whose picks are all in ``repeated``, which are increasing keys."""
    hashes, picks = _winnow(words, length)
    windows = np.flatnonzero(picks >= 0)
    places = picks[windows]
    new = np.diff(places, prepend=-1) != 0  # windows that follow each other pick the same run
    picked = hashes[places[new]]
    at = np.minimum(np.searchsorted(repeated, picked), max(0, len(repeated) - 1))
    found = repeated[at] == picked if len(repeated) else np.zeros(len(picked), bool)
    covered = covered_words(windows[found[np.cumsum(new) - 1]], length, len(picks))
    begins = np.concatenate([[0], words.stops[:-1]])
    firsts, lasts = stretches(covered, begins)
    texts = np.searchsorted(words.stops, firsts, side="right")
    return Candidates(words.hashes[covered], np.stack([texts, firsts - begins[texts], lasts - firsts], axis=1))


def window_hashes(
    words: NDArray[np.uint64], lengths: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return where each window of ``length`` words begins, and its hash. ``lengths`` are the words of each run."""
    from .kernels import hash_runs

    stops, hashes = np.cumsum(lengths), np.empty(len(words), np.uint64)
    hash_runs(words, stops, length, hashes)
    within = np.ones(len(words), bool)
    for back in range(1, length):
        within[stops - back] = False
    places = np.flatnonzero(within).astype(np.int64)
    return places, hashes[places]


def stretches(mask: NDArray[np.bool_], begins: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the begin and end of each stretch of true values. No stretch goes on past one of ``begins``.

    >>> [ends.tolist() for ends in stretches(np.array([True, True, True, False, True]), np.array([0, 2]))]
    [[0, 2, 4], [2, 3, 5]]
    """
    new = mask.copy()
    new[1:] &= ~mask[:-1]
    new[begins[begins < len(mask)]] = mask[begins[begins < len(mask)]]
    firsts = np.flatnonzero(new)
    ends = np.flatnonzero(mask & np.append(~mask[1:] | new[1:], True)[: len(mask)]) + 1
    return firsts, ends


def whole_spans(text: str, words: NDArray[np.int64], passages: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Return the characters of passages, without words at their ends that no white space parts from a word outside.

    ``words``: int64 ``[n, 2]``, first character and end of each word. ``passages``: first word and end of each passage. So no cut
    ends in ``$3.99`` or ``and/or``. A letter of a script without spaces is parted from any word.

    >>> text = "It costs $3.99 at most."
    >>> [text[begin:end] for begin, end in whole_spans(text, find_words([text]).spans, [(3, 6)])]
    ['at most']
    """
    letters, spans = kinds(text), []

    def parted(word: int) -> bool:
        """Return whether a cut may end before a word."""
        if not 0 < word < len(words):
            return True
        (first, stop), (begin, _) = words[word - 1 : word + 1].tolist()
        return SPACE in letters[stop:begin] or letters[first] in UNSPACED or letters[begin] in UNSPACED

    for first, end in passages:
        while first < end and not parted(first):
            first += 1
        while first < end and not parted(end):
            end -= 1
        if first < end:
            spans.append((int(words[first, 0]), int(words[end - 1, 1])))
    return spans


def remove_spans(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return a text without some spans of characters, which begin and end with a word and are in order.

    Marks at the ends of a span are removed with it. The white space before it or after it stays: the one with more line feeds. If
    words of letters and digits would meet, a space comes between them.

    >>> text = "It rained. (Read more!) Then sun. The end.\\n\\nOne more.\\n"
    >>> remove_spans(text, [(12, 21), (34, 41)])
    'It rained. Then sun.\\n\\nOne more.\\n'
    """
    letters, kept, at = kinds(text), [], 0
    for word, after_word in spans:
        marks = _skip(_EXTENDS, letters, at + len(letters[at:word].rstrip(_MARKS)))
        first = marks if marks == 0 or letters[marks - 1] == SPACE else word  # not the marks of the word before
        end = _skip(_MARKS, letters, after_word)
        before, after = at + len(letters[at:first].rstrip(SPACE)), _skip(SPACE, letters, end)
        keeps_after = text.count("\n", before, first) < text.count("\n", end, after)
        if after == len(text) or (before and keeps_after):
            first = before
        else:
            end = after
        kept.append(text[at:first])
        if first > 0 and end < len(text) and letters[first - 1] in _SPACED + _EXTENDS and letters[end] in _SPACED:
            kept.append(" ")
        at = end
    return "".join([*kept, text[at:]])


def _skip(skipped: str, letters: str, at: int) -> int:
    while letters[at : at + 1] and letters[at] in skipped:
        at += 1
    return at


def _winnow(words: Words, length: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return for each word the key of the run that begins there, and the first word of the pick of the window that does."""
    from .kernels import hash_runs, winnow

    run = max(1, length // 3)
    hashes, picks = np.empty(len(words.hashes), np.uint64), np.empty(len(words.hashes), np.int64)
    hash_runs(words.hashes, words.stops, run, hashes)
    winnow(hashes, words.stops, run, length - run + 1, picks)
    hashes *= _SPREAD
    return hashes, picks


def covered_words(windows: NDArray[np.int64], length: int, size: int) -> NDArray[np.bool_]:
    """Return which of ``size`` words are in windows of ``length`` words; ``windows`` are their first words."""
    steps = np.zeros(size + 1, np.int32)
    steps[windows] += 1
    steps[windows + length] -= 1
    return np.cumsum(steps[:-1]) > 0
