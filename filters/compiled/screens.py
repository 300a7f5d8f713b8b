"""Measures of many documents at once: what their plain definitions give, from a compiled pass over all characters.

Each function bears the name of the measure that defines it, takes texts instead of a page, and returns an array. Where a
definition is a regular expression, the pass counts what is certain, and leaves to the expression itself the few lines or
words that are not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from filters.compiled.screen_kernels import (
    ALPHA,
    BLANK,
    DECIMAL,
    TERMINAL,
    WHITE,
    WORD,
    count_sentences,
    count_symbols,
    screen_lines,
    screen_words,
)
from filters.compiled.text_arrays import character_class, code_points, fnv
from filters.language.fasttext_score import load_scorer
from filters.measures.code import LONGEST_LINE, is_code
from filters.measures.profanity import DEFAULT_LIST, is_disguised, read_list
from filters.unicode_classes import SPACES, TERMINALS
from pipeline.integer_hash import FNV_PRIME

_CHUNK = 4096
_LAST = 0x40000  # in Unicode's planes beyond the third no character is a letter, a number or white space
# What a line that begins with one of these words must hold to be code: nothing, a colon at its end, one of ({;=
_KEYWORDS = (
    "import from async def return",
    "class if elif while for with try except else finally",
    "public private protected static const let var function struct enum sub use my package typedef void",
)


def fasttext_score(texts: Sequence[str], *, model: Path, label: str) -> NDArray[np.float64]:
    """`filters.measures.model_score.fasttext_score` of each text."""
    return load_scorer(model, label).score(texts)


def code_symbol_ratio(texts: Sequence[str]) -> NDArray[np.float64]:
    """`filters.measures.code.code_symbol_ratio` of each text."""
    codes, ends = code_points(texts)
    visible, symbols = _counters(texts)
    count_symbols(codes, ends, _flag_table(), visible, symbols)
    return _shares(symbols, visible)


def code_line_ratio(texts: Sequence[str]) -> NDArray[np.float64]:
    """`filters.measures.code.code_line_ratio` of each text."""
    codes, ends = code_points(texts)
    lines, found = _counters(texts)
    doubtful = np.empty((int(np.count_nonzero(codes == ord("\n"))) + len(texts), 3), np.int64)
    count = screen_lines(codes, ends, _flag_table(), *_keywords(), LONGEST_LINE, lines, found, doubtful)
    for row, line in _pieces(texts, doubtful[:count]):
        found[row] += is_code(line)
    return _shares(found, lines)


def sentences(texts: Sequence[str]) -> NDArray[np.float64]:
    """`filters.measures.sentences.sentences` of each text."""
    codes, ends = code_points(texts)
    (found,) = _counters(texts, 1)
    count_sentences(codes, ends, _flag_table(), found)
    return found.astype(np.float64)


def profanity_ratio(texts: Sequence[str], *, word_list: Path = DEFAULT_LIST) -> NDArray[np.float64]:
    """`filters.measures.profanity.profanity_ratio` of each text."""
    listed, phrases = read_list(word_list)
    lowered = [text.lower() for text in texts]
    codes, ends = code_points(lowered)
    words, found = _counters(texts)
    doubtful = np.empty((len(codes) // 2 + len(texts), 3), np.int64)
    count = screen_words(codes, ends, _flag_table(), _word_table(listed), words, found, doubtful)
    for row, word in _pieces(lowered, doubtful[:count]):
        found[row] += is_disguised(word, listed)
    joined = "\n".join(lowered)
    for phrase, pattern in phrases:
        if all(word in joined for word in phrase):
            for place, text in enumerate(lowered):
                if all(word in text for word in phrase):
                    found[place] += len(pattern.findall(text))
    return _shares(found, words)


def _pieces(texts: Sequence[str], places: NDArray[np.int64]) -> Iterator[tuple[int, str]]:
    """Yield the piece at each place: a text's number, a beginning and an end. Lists of millions would fill memory."""
    for first in range(0, len(places), _CHUNK):
        for text, begin, end in places[first : first + _CHUNK].tolist():
            yield text, texts[text][begin:end]


def _counters(texts: Sequence[str], count: int = 2) -> tuple[NDArray[np.int64], ...]:
    return tuple(np.zeros(len(texts), np.int64) for _ in range(count))


def _shares(parts: NDArray[np.int64], wholes: NDArray[np.int64]) -> NDArray[np.float64]:
    return parts / np.maximum(wholes, 1)


@functools.cache
def _flag_table() -> NDArray[np.uint8]:
    """Return what each code point is, as bits."""
    flags = np.zeros(_LAST, np.uint8)
    for bit, test in ((WORD, str.isalnum), (ALPHA, str.isalpha), (DECIMAL, str.isdecimal), (WHITE, str.isspace)):
        flags[character_class(test, _LAST)] |= bit
    for bit, members in ((BLANK, SPACES), (TERMINAL, TERMINALS)):
        flags[[ord(character) for character in members]] |= bit
    return flags


@functools.cache
def _keywords() -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hash of each keyword, and which kind it is of."""
    found = [(_hash(word), kind) for kind, words in enumerate(_KEYWORDS) for word in words.split()]
    return np.array([value for value, _ in found], np.uint64), np.array([kind for _, kind in found], np.int64)


@functools.lru_cache(maxsize=64)
def _word_table(words: frozenset[str]) -> NDArray[np.uint64]:
    """Return an open-addressing table of the hashes of words, at most a quarter full."""
    table = np.zeros(1 << (4 * len(words) + 4).bit_length(), np.uint64)
    for word in sorted(words):
        value = _hash(word)
        slot = value & (len(table) - 1)
        while table[slot]:
            slot = (slot + 1) & (len(table) - 1)
        table[slot] = value
    return table


def _hash(word: str) -> int:
    return fnv(word) or int(FNV_PRIME)  # 0 marks an empty slot
