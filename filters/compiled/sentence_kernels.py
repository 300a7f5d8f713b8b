"""The compiled loop that counts the sentences of a line as the expression in `filters.measures.sentences` does."""

from __future__ import annotations

import numba
import numpy as np

from filters.unicode_classes import KINDS, LETTER_EXTENDERS, TERMINAL_BIT
from pipeline.compiling import compiled

_CODES = numba.types.Array(numba.uint32, 1, "C", readonly=True)
_TERMINAL = np.uint8(TERMINAL_BIT)
_SPACE = KINDS.index(" ")
_WORD_KINDS = sum(1 << KINDS.index(kind) for kind in "a0hte")
_LETTER_EXTENDERS = tuple(map(ord, LETTER_EXTENDERS))
_INVISIBLE = tuple(map(ord, "\u200b\ufeff"))  # blank at the ends of a line, but no white space between sentences
_CLOSING = tuple(map(ord, "\"'”’»)]"))
_ASIAN_STOPS = tuple(map(ord, "。！？"))
_STOP, _UNDERSCORE = ord("."), ord("_")


@compiled(numba.boolean(numba.uint32, numba.uint8))
def _is_word(code, kind):  # type: ignore[no-untyped-def]
    """Return whether ``\\w`` matches the character."""
    return (_WORD_KINDS >> np.int64(kind)) & 1 != 0 or code == _UNDERSCORE or code in _LETTER_EXTENDERS


@compiled(numba.boolean(_CODES, numba.uint8[::1], numba.int64, numba.int64))
def _is_title(codes, kinds, begin, stop):  # type: ignore[no-untyped-def]
    """Return whether ``codes[begin:stop]`` ends in an initial or a title: ``J.``, ``Mr.``, ``Mrs.``, ``Prof.``"""
    if codes[stop - 1] != _STOP:
        return False
    first = stop - 1
    while first > begin and stop - first <= 5 and _is_word(codes[first - 1], kinds[first - 1]):
        first -= 1
    length = stop - 1 - first
    if length < 1 or length > 4:
        return False
    a = codes[first]
    if length == 1:
        return 65 <= a <= 90
    b, c = codes[first + 1], codes[first + 2]
    if length == 2:
        return (a == 68 or a == 77 or a == 83) and (b == 114 or b == 115 or b == 116)  # [DMS][rst]
    if length == 3:
        return a == 77 and b == 114 and c == 115
    return a == 80 and b == 114 and c == 111 and codes[first + 3] == 102


@compiled(numba.boolean(numba.uint32, numba.uint8[::1]))
def _is_terminal(code, table):  # type: ignore[no-untyped-def]
    return code < len(table) and (table[code] & _TERMINAL) != 0


@compiled(numba.int64(_CODES, numba.uint8[::1], numba.uint8[::1], numba.int64, numba.int64))
def count_sentences(codes, kinds, table, begin, end):  # type: ignore[no-untyped-def]
    """Count the sentences of the line ``codes[begin:end]``, which is not empty and has no blanks around it."""
    count, last, at = 0, begin, begin
    while at < end:
        if not _is_terminal(codes[at], table):
            at += 1
            continue
        stop = at
        while stop < end and _is_terminal(codes[stop], table):
            stop += 1
        close = stop
        while close < end and codes[close] in _CLOSING:
            close += 1
        after = close
        while after < end and kinds[after] == _SPACE and codes[after] not in _INVISIBLE:
            after += 1
        ended = after == end
        if not ended and after > close and not _is_title(codes, kinds, begin, stop):
            code = codes[after]
            ended = not (97 <= code <= 122 or 48 <= code <= 57)
        if ended:
            count += 1
            last = at = end if after == end else close
            continue
        for index in range(at, stop):
            if codes[index] in _ASIAN_STOPS:
                count += 1
                last = index + 1
        at = stop
    return count + (count == 0 or last < end)
