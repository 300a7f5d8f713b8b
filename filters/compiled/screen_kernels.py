"""The compiled loops of `filters.compiled.screens`.

Importing this module compiles nothing where numba's cache can be written; import it before forking.

Texts come joined, as code points (`codes`), each up to its place in `ends`. `flags` holds for each code point below its
length what it is, as bits; beyond it nothing is a letter, white space or the end of a sentence.
"""

from __future__ import annotations

import numba
import numpy as np

from pipeline.compiling import compiled
from pipeline.integer_hash import FNV_PRIME, FNV_START

WORD, ALPHA, DECIMAL, WHITE, BLANK, TERMINAL = (1 << place for place in range(6))

_CODES = numba.types.Array(numba.uint32, 1, "C", readonly=True)
_NEWLINE, _STOP, _UNDERSCORE, _HYPHEN, _COLON, _EQUALS = (ord(c) for c in "\n._-:=")


_LINE = numba.types.UniTuple(numba.int64, 3)(_CODES, numba.int64, numba.int64, numba.uint8[::1])


def _bits(characters: str) -> tuple[np.uint64, np.uint64]:
    """Return a set of ASCII characters as two words of 64 bits, for `_in`."""
    value = sum(1 << ord(character) for character in characters)
    return np.uint64(value & 0xFFFFFFFFFFFFFFFF), np.uint64(value >> 64)


_SYMBOLS = _bits("{}[]()<>;=+*/\\|&^~@#$%_`")
_SIGNS = _bits("@$!|*")  # the euro sign is beyond ASCII
_EURO = ord("€")
_LINE_ENDS, _LINE_STARTS, _STARTS_OF_MORE = _bits("{}();\\"), _bits("{}<])"), _bits("$@#/*>")
_OPERATORS, _BEFORE_CALL_ENDS, _STATEMENT_MARKS = _bits("!=+*/-"), _bits(";,.:[)"), _bits("({;=")
_QUOTES = _bits("\"')]")
_CURLY, _CURLY_DOUBLE, _GUILLEMET = (ord(c) for c in "’”»")
_ASIAN_STOPS = tuple(ord(c) for c in "。！？")


@compiled("boolean(uint32, UniTuple(uint64, 2))")
def _in(code, members):  # type: ignore[no-untyped-def]
    return code < 128 and (members[code >> 6] >> np.uint64(code & 63)) & np.uint64(1) != 0


@compiled("int64(uint32, uint8[::1])")
def _flags(code, flags):  # type: ignore[no-untyped-def]
    return np.int64(flags[code]) if code < len(flags) else 0


@compiled("boolean(uint32, uint8[::1])")
def _is_word(code, flags):  # type: ignore[no-untyped-def]
    """What ``\\w`` matches."""
    return code == _UNDERSCORE or (_flags(code, flags) & WORD) != 0


@compiled(_LINE)
def _line(codes, at, stop, flags):  # type: ignore[no-untyped-def]
    """Return where the line from `at` on begins and ends without blanks around it, and where the next begins."""
    end = at
    while end < stop and codes[end] != _NEWLINE:
        end += 1
    after = end + 1
    while at < end and _flags(codes[at], flags) & BLANK:
        at += 1
    while end > at and _flags(codes[end - 1], flags) & BLANK:
        end -= 1
    return at, end, after


@compiled(numba.void(_CODES, numba.int64[::1], numba.uint8[::1], numba.int64[::1], numba.int64[::1]))
def count_symbols(codes, ends, flags, visible, symbols):  # type: ignore[no-untyped-def]
    """Count what is not white space, and what of it is a symbol of code."""
    at = 0
    for text in range(len(ends)):
        while at < ends[text]:
            visible[text] += (_flags(codes[at], flags) & WHITE) == 0
            symbols[text] += _in(codes[at], _SYMBOLS)
            at += 1


@compiled(numba.boolean(_CODES, numba.int64, numba.int64, numba.uint8[::1]))
def _is_title(codes, begin, stop, flags):  # type: ignore[no-untyped-def]
    """Tell whether the line ``codes[begin:stop]`` ends in an initial or a title: ``J.``, ``Mr.``, ``Mrs.``, ``Prof.``"""
    if codes[stop - 1] != _STOP:
        return False
    first = stop - 1
    while first > begin and stop - first <= 5 and _is_word(codes[first - 1], flags):
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


@compiled(numba.boolean(numba.uint32))
def _closes(code):  # type: ignore[no-untyped-def]
    """A closing quotation mark or bracket."""
    return _in(code, _QUOTES) or code in (_CURLY, _CURLY_DOUBLE, _GUILLEMET)


@compiled(numba.int64(_CODES, numba.int64, numba.int64, numba.uint8[::1]))
def _sentences(codes, begin, end, flags):  # type: ignore[no-untyped-def]
    """Count the sentences of one line."""
    count, last, at = 0, begin, begin
    while at < end:
        if not _flags(codes[at], flags) & TERMINAL:
            at += 1
            continue
        stop = at
        while stop < end and _flags(codes[stop], flags) & TERMINAL:
            stop += 1
        close = stop
        while close < end and _closes(codes[close]):
            close += 1
        after = close
        while after < end and _flags(codes[after], flags) & WHITE:
            after += 1
        ended = after == end
        if not ended and after > close and not _is_title(codes, begin, stop, flags):
            code = codes[after]
            ended = not (97 <= code <= 122 or 48 <= code <= 57)
        if ended:
            count += 1
            last = at = end if after == end else close
            continue
        for place in range(at, stop):
            if codes[place] in _ASIAN_STOPS:
                count += 1
                last = place + 1
        at = stop
    return count + (count == 0 or last < end)


@compiled(numba.void(_CODES, numba.int64[::1], numba.uint8[::1], numba.int64[::1]))
def count_sentences(codes, ends, flags, sentences):  # type: ignore[no-untyped-def]
    at = 0
    for text in range(len(ends)):
        while at <= ends[text]:
            begin, end, at = _line(codes, at, ends[text], flags)
            if begin < end:
                sentences[text] += _sentences(codes, begin, end, flags)
        at = ends[text]


@compiled(numba.int64(_CODES, numba.int64, numba.int64, numba.uint8[::1], numba.uint64[::1], numba.int64[::1]))
def _screen(codes, begin, end, flags, keywords, kinds):  # type: ignore[no-untyped-def]
    """Return 1 for a line that is code for certain, 0 for one that cannot be, 2 for one that must be looked at."""
    last = codes[end - 1]
    if _in(last, _LINE_ENDS) or _in(codes[begin], _LINE_STARTS):
        return 1
    doubtful = _in(codes[begin], _STARTS_OF_MORE)
    marked = False
    for at in range(begin, end):
        a = codes[at]
        marked = marked or _in(a, _STATEMENT_MARKS)
        doubtful = doubtful or a == _EQUALS or a == 60  # <
        if at + 1 < end:
            b = codes[at + 1]
            if (b == _EQUALS and _in(a, _OPERATORS)) or (b == 62 and a in (_EQUALS, _HYPHEN)):
                return 1
            if a == b and (a == _COLON or a == 38 or a == 124):  # &&, ||
                return 1
    if doubtful:
        return 2
    value, at = FNV_START, begin
    while at < end and _is_word(codes[at], flags):
        value = (value ^ np.uint64(codes[at])) * FNV_PRIME
        at += 1
    for place in range(len(keywords)):
        if keywords[place] == value:
            kind = kinds[place]
            if kind == 0 or (kind == 1 and last == _COLON) or (kind == 2 and marked):
                return 2
    at = end
    while at > begin and (_in(codes[at - 1], _BEFORE_CALL_ENDS) or _flags(codes[at - 1], flags) & WHITE):
        at -= 1
        if codes[at] == 41:  # )
            return 2
    return 0


@compiled(
    numba.int64(
        _CODES, numba.int64[::1], numba.uint8[::1], numba.uint64[::1], numba.int64[::1], numba.int64,
        numba.int64[::1], numba.int64[::1], numba.int64[:, ::1],
    )
)  # fmt: skip
def screen_lines(codes, ends, flags, keywords, kinds, longest, lines, found, doubtful):  # type: ignore[no-untyped-def]
    """Count the lines of each text and those that are code for certain; list the doubtful ones: text, begin, end."""
    count = begin_of_text = 0
    for text in range(len(ends)):
        at = begin_of_text
        while at <= ends[text]:
            begin, end, at = _line(codes, at, ends[text], flags)
            if begin == end:
                continue
            lines[text] += 1
            if end - begin > longest:
                continue
            judged = _screen(codes, begin, end, flags, keywords, kinds)
            found[text] += judged == 1
            if judged == 2:
                doubtful[count, 0], doubtful[count, 1], doubtful[count, 2] = (
                    text,
                    begin - begin_of_text,
                    end - begin_of_text,
                )
                count += 1
        begin_of_text = ends[text]
    return count


@compiled(
    numba.int64(
        _CODES, numba.int64[::1], numba.uint8[::1], numba.uint64[::1], numba.int64[::1], numba.int64[::1],
        numba.int64[:, ::1],
    )
)  # fmt: skip
def screen_words(codes, ends, flags, listed, words, found, doubtful):  # type: ignore[no-untyped-def]
    """Count the words of each text and those listed; list others that may be disguised: text, begin, end.

    `listed` is an open-addressing table of hashes, 0 for an empty slot.
    """
    mask = len(listed) - 1
    count = begin_of_text = 0
    for text in range(len(ends)):
        at, stop = begin_of_text, ends[text]
        while at < stop:
            value, begin, held, run, before = FNV_START, at, 0, 0, np.uint32(0)
            alphabetic = decimal = True
            while at < stop:
                code = codes[at]
                kind = _flags(code, flags)
                if not kind & WORD and not _in(code, _SIGNS) and code != _EURO:
                    break
                value = (value ^ np.uint64(code)) * FNV_PRIME
                alphabetic = alphabetic and (kind & ALPHA) != 0
                decimal = decimal and (kind & DECIMAL) != 0
                run = run + 1 if code == before and kind & WORD and not kind & DECIMAL else 1
                held = max(held, run)
                before = code
                at += 1
            if at == begin:
                at += 1
                continue
            words[text] += 1
            value = value if value else FNV_PRIME
            slot = np.int64(value) & mask
            while listed[slot] != 0 and listed[slot] != value:
                slot = (slot + 1) & mask
            if listed[slot] == value:
                found[text] += 1
            elif (not alphabetic or held >= 3) and not decimal:
                doubtful[count, 0], doubtful[count, 1], doubtful[count, 2] = (
                    text,
                    begin - begin_of_text,
                    at - begin_of_text,
                )
                count += 1
        begin_of_text = stop
    return count
