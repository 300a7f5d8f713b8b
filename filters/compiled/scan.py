"""The measures that builds take of every document, all of them in one compiled pass over its characters.

What each number means stands beside its plain definition in `length`, `wording`, `lines` and `repetition`, which the
tests hold this file to. Here parts are compared by 64-bit hashes instead of by their characters.

Importing this module compiles nothing where numba's cache can be written: the first import ever takes seconds, later
ones a fraction of one. Import it before forking, or every worker does it again.

The repetition rules cost little because an n-gram can only occur twice if its first n - 1 pieces do: each n looks
only at the places where the one before found a repeat.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numba
import numpy as np
from numpy.typing import NDArray

from filters import SCANNED
from filters.measures.lines import SHORT_LINE
from filters.measures.words import stop_word_spellings
from filters.unicode_classes import KINDS, TERMINAL_BIT, kind_table
from pipeline.compiling import compiled

_SPACE, _LETTER, _NUMBER, _EXTENDER, _POINT, _JOINER, _APOSTROPHE, _COMMA = range(8)  # places in KINDS
_IDEOGRAPH, _SYLLABIC, _LEADING, _STACKER, _KILLER, _MARK = range(8, len(KINDS))
# Sets of kinds, as bits.
_BASES = 1 << _LETTER | 1 << _NUMBER
_EXTENDS = 1 << _EXTENDER | 1 << _STACKER | 1 << _KILLER
_CONTINUES = _BASES | _EXTENDS
_JOINS = 1 << _POINT | 1 << _JOINER
_LETTERS = 1 << _LETTER | 1 << _IDEOGRAPH | 1 << _SYLLABIC | 1 << _LEADING
_TERMINAL = np.uint8(TERMINAL_BIT)
_KIND = np.uint8(0x7F)
_CODES = numba.types.Array(numba.uint32, 1, "C", readonly=True)  # a view of bytes
_START = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FIRST_N, _LAST_TOP_N, _LAST_N = 2, 4, 10
_MANY = 1 << 15
_NEWLINE, _HASH, _FULL_STOP, _ELLIPSIS, _BULLET, _HYPHEN = (ord(c) for c in "\n#.…•-")


@compiled("boolean(uint8, int64)")
def _is(kind, kinds):  # type: ignore[no-untyped-def]
    return (kinds >> np.int64(kind)) & 1 != 0


@compiled("uint64(uint64)")
def _mix(value):  # type: ignore[no-untyped-def]
    value ^= value >> np.uint64(32)
    value *= _MIX
    return value ^ (value >> np.uint64(29))


@compiled("int64(int64)")
def _table_size(entries):  # type: ignore[no-untyped-def]
    size = 16
    while size < entries * (
        4 if entries < _MANY else 2
    ):  # sparse ones are faster while the processor's cache holds them
        size *= 2
    return size


@compiled("Tuple((int64, int64))(uint64[::1], int64[::1], int64)")
def _duplicates(hashes, lengths, count):  # type: ignore[no-untyped-def]
    """Return how many of the first `count` parts stood before, and their characters."""
    size = _table_size(count)
    table = np.full(size, -1, np.int32)
    duplicates = characters = 0
    for at in range(count):
        slot = np.int64(_mix(hashes[at]) & np.uint64(size - 1))
        while table[slot] >= 0 and hashes[table[slot]] != hashes[at]:
            slot = (slot + 1) & (size - 1)
        if table[slot] >= 0:
            duplicates += 1
            characters += lengths[at]
        else:
            table[slot] = at
    return duplicates, characters


@compiled("void(uint64[::1], int64[::1], int64, float64, float64[::1])")
def _ngrams(hashes, reach, pieces, characters, ratios):  # type: ignore[no-untyped-def]
    """Write the nine n-gram ratios; `reach[i]` is the number of characters in the first i pieces."""
    grams = hashes[:pieces].copy()
    places = np.arange(pieces, dtype=np.int32)  # where an n-gram that may have occurred before or may again begins
    first = np.empty(pieces, np.int32)  # the place where the same n-gram first stood
    counts = np.empty(pieces, np.int32)
    seen = np.empty(pieces, np.bool_)
    live = pieces
    for n in range(_FIRST_N, _LAST_N + 1):
        while live and places[live - 1] + n > pieces:
            live -= 1
        if live == 0:
            return
        size = _table_size(live)
        table = np.full(size, -1, np.int32)
        for index in range(live):
            at = places[index]
            gram = grams[at] * _PRIME + hashes[at + n - 1]
            grams[at] = gram
            slot = np.int64(_mix(gram) & np.uint64(size - 1))
            before = table[slot]
            while before >= 0 and grams[before] != gram:
                slot = (slot + 1) & (size - 1)
                before = table[slot]
            if before < 0:
                table[slot] = first[at] = at
                counts[at] = 1
            else:
                first[at] = before
                counts[before] += 1
        kept = 0
        for index in range(live):  # without a branch: which ones occur again cannot be foretold
            at = places[index]
            places[kept] = at
            seen[at] = False
            kept += counts[first[at]] > 1
        live = kept
        if n <= _LAST_TOP_N:
            best = -1
            for index in range(live):
                at = places[index]
                if first[at] == at and (best < 0 or counts[at] > counts[best]):
                    best = at
            if best >= 0:
                ratios[n - _FIRST_N] = counts[best] * (reach[best + n] - reach[best] + n - 1) / characters
        else:
            repeated = resume = 0
            for index in range(live):
                at = places[index]
                if at < resume:
                    continue
                if seen[first[at]]:
                    repeated += reach[at + n] - reach[at]
                    resume = at + n
                else:
                    seen[first[at]] = True
            ratios[n - _FIRST_N] = repeated / characters


@compiled("int64(uint8[::1], int64)")
def _word_end(kinds, start):  # type: ignore[no-untyped-def]
    """Return where the word that begins at `start` ends, `start` itself where none begins: `page._PIECES`."""
    total = len(kinds)
    kind = kinds[start]
    end = start + 1
    if kind == _APOSTROPHE:
        if start == 0 or end == total or not _is(kinds[start - 1], _CONTINUES) or not _is(kinds[end], _BASES):
            return start
        end += 1
    elif kind == _LETTER:
        while end + 1 < total and kinds[end] == _POINT and kinds[end + 1] == _LETTER:
            end += 2
        closed = end > start + 1 and end < total and kinds[end] == _POINT
        if closed and (end + 1 == total or not _is(kinds[end + 1], _BASES | 1 << _POINT)):
            return end + 1
        end = start + 1
    if _is(kind, _BASES | 1 << _APOSTROPHE):
        while end < total:
            kind = kinds[end]
            if _is(kind, _CONTINUES):
                end += 1
            elif end + 1 == total or not _is(kinds[end + 1], _BASES):
                break
            elif _is(kind, _JOINS) or (kind == _COMMA and kinds[end - 1] == _NUMBER and kinds[end + 1] == _NUMBER):
                end += 2
            else:
                break
        return end
    if kind == _IDEOGRAPH:
        while end < total and _is(kinds[end], _EXTENDS):
            end += 1
        return end
    if kind == _SYLLABIC or kind == _LEADING:  # noqa: SIM109 (a tuple is slow here)
        if kind == _LEADING and end < total and kinds[end] == _SYLLABIC:
            end += 1
        while end < total:
            kind = kinds[end]
            stacked = kinds[end - 1] == _STACKER or (end + 1 < total and kinds[end + 1] == _KILLER)
            if not (_is(kind, _EXTENDS) or (kind == _SYLLABIC and stacked)):
                break
            end += 1
        return end
    return start


@compiled(
    numba.int64(
        _CODES, numba.uint8[::1], numba.uint64[::1], numba.int64[::1], numba.uint64[::1], numba.int16[::1],
        numba.bool_[::1], numba.float64[::1],
    )
)  # fmt: skip
def _scan_pieces(codes, kinds, hashes, reach, stop_hashes, stop_places, stops, values):  # type: ignore[no-untyped-def]
    """Write the hashes of all pieces, how many characters the first i of them have, and what counts pieces."""
    total = len(codes)
    stop_mask = len(stop_hashes) - 1
    pieces = words = alphabetic = characters = longest = hash_signs = ellipses = 0
    reach[0] = 0
    at = 0
    while at < total:
        if kinds[at] == _SPACE:
            at += 1
            continue
        end = _word_end(kinds, at)
        is_word = end > at
        if not is_word:
            end = at + 1
            while end < total and codes[end] == codes[at]:
                end += 1
            if codes[at] == _HASH:
                hash_signs += end - at
            elif codes[at] == _FULL_STOP:
                ellipses += (end - at) // 3
            elif codes[at] == _ELLIPSIS:
                ellipses += end - at
        value = _START
        held = 0
        for inner in range(at, end):
            value = (value ^ np.uint64(codes[inner])) * _PRIME
            held |= 1 << int(kinds[inner])
        value = _mix(value)
        hashes[pieces] = value
        reach[pieces + 1] = reach[pieces] + end - at
        pieces += 1
        if is_word:
            words += 1
            characters += end - at
            longest = max(longest, end - at)
            if held & _LETTERS:
                alphabetic += 1
            slot = np.int64(value) & stop_mask
            while stop_places[slot] >= 0:
                if stop_hashes[slot] == value:
                    stops[stop_places[slot]] = True
                    break
                slot = (slot + 1) & stop_mask
        at = end
    values[1] = words
    values[4] = longest
    if words:
        values[5] = characters / words
    if pieces:
        values[6] = alphabetic / pieces
        values[7] = hash_signs / pieces
        values[8] = ellipses / pieces
    for place in range(len(stops)):
        values[9] += stops[place]
    return pieces


@compiled(numba.void(_CODES, numba.uint8[::1], numba.uint8[::1], numba.int64, numba.float64[::1]))
def _scan_lines(codes, kinds, table, pieces, values):  # type: ignore[no-untyped-def]
    """Write what counts lines and paragraphs."""
    total = len(codes)
    newlines = 0
    for at in range(total):
        newlines += codes[at] == _NEWLINE
    line_hashes, line_lengths = np.empty(newlines + 1, np.uint64), np.empty(newlines + 1, np.int64)
    paragraph_hashes, paragraph_lengths = np.empty(newlines + 1, np.uint64), np.empty(newlines + 1, np.int64)
    lines = paragraphs = bullets = ellipses = terminals = short = 0
    follows = False  # whether the line before was not blank
    at = 0
    while at <= total:
        stop = at
        while stop < total and codes[stop] != _NEWLINE:
            stop += 1
        start, end, at = at, stop, stop + 1
        while start < end and kinds[start] == _SPACE:
            start += 1
        while end > start and kinds[end - 1] == _SPACE:
            end -= 1
        if start == end:
            follows = False
            continue
        value = _START
        for inner in range(start, end):
            value = (value ^ np.uint64(codes[inner])) * _PRIME
        line_hashes[lines], line_lengths[lines] = value, end - start
        lines += 1
        bullets += codes[start] == _BULLET or codes[start] == _HYPHEN
        last = codes[end - 1]
        terminals += last < len(table) and (table[last] & _TERMINAL) != 0
        short += end - start <= SHORT_LINE
        dots = end - start >= 3 and codes[end - 2] == _FULL_STOP and codes[end - 3] == _FULL_STOP
        ellipses += last == _ELLIPSIS or (dots and last == _FULL_STOP)
        if follows:
            paragraph_hashes[paragraphs - 1] = (paragraph_hashes[paragraphs - 1] ^ value) * _PRIME
            paragraph_lengths[paragraphs - 1] += 1 + end - start
        else:
            paragraph_hashes[paragraphs], paragraph_lengths[paragraphs] = _mix(value), end - start
            paragraphs += 1
        follows = True
    values[2] = lines
    values[3] = paragraphs
    if pieces:
        values[14] = newlines / pieces
    if lines:
        values[10] = bullets / lines
        values[11] = ellipses / lines
        values[12] = terminals / lines
        values[13] = short / lines
        duplicates, characters = _duplicates(line_hashes, line_lengths, lines)
        values[15] = duplicates / lines
        values[16] = characters / total
        duplicates, characters = _duplicates(paragraph_hashes, paragraph_lengths, paragraphs)
        values[17] = duplicates / paragraphs
        values[18] = characters / total


@compiled(
    numba.void(
        _CODES, numba.int64[::1], numba.uint8[::1], numba.uint64[::1], numba.int16[::1], numba.int64,
        numba.float64[:, ::1],
    )
)  # fmt: skip
def _scan(codes, ends, table, stop_hashes, stop_places, stop_words, values):  # type: ignore[no-untyped-def]
    """Fill `values` (zeros) with the measures of `SCANNED` of each text; texts end at `ends`."""
    longest = begin = 0
    for text in range(len(ends)):
        longest, begin = max(longest, ends[text] - begin), ends[text]
    # As long as there can be pieces at most: what is not written costs no memory.
    kinds, hashes, reach = np.empty(longest, np.uint8), np.empty(longest, np.uint64), np.empty(longest + 1, np.int64)
    stops = np.empty(stop_words, np.bool_)
    begin = 0
    for text in range(len(ends)):
        here, total = codes[begin : ends[text]], ends[text] - begin
        begin = ends[text]
        if total == 0:
            continue
        for at in range(total):
            kinds[at] = table[here[at]] & _KIND if here[at] < len(table) else _MARK
        stops[:] = False
        pieces = _scan_pieces(here, kinds[:total], hashes, reach, stop_hashes, stop_places, stops, values[text])
        _scan_lines(here, kinds[:total], table, pieces, values[text])
        values[text, 0] = total
        _ngrams(hashes, reach, pieces, float(total), values[text, 19:])


@functools.lru_cache(maxsize=4096)
def _stop_table(words: tuple[str, ...]) -> tuple[NDArray[np.uint64], NDArray[np.int16]]:
    """Return an open-addressing table of the spellings' hashes and of the stop words that they spell (-1: none)."""
    spellings = stop_word_spellings(words)
    size = int(_table_size(4 * len(spellings)))  # sparse: most words find their slot empty
    hashes, places = np.zeros(size, np.uint64), np.full(size, -1, np.int16)
    for spelling, place in spellings.items():
        value = int(_START)
        for character in spelling:
            value = (value ^ ord(character)) * int(_PRIME) & 0xFFFFFFFFFFFFFFFF
        mixed = np.uint64(_mix(np.uint64(value)))
        slot = int(mixed) & (size - 1)
        while places[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        hashes[slot], places[slot] = mixed, place
    return hashes, places


def scan(texts: Sequence[str], stop_words: tuple[str, ...] = ()) -> NDArray[np.float64]:
    """Return the measures of `SCANNED` of each text, ``[texts, measures]``; `wording.stop_words` counts `stop_words`.

    >>> dict(zip(SCANNED, scan(["To be, or not to be!"])[0].tolist(), strict=True))["words"]
    6.0
    """
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    values = np.zeros((len(texts), len(SCANNED)), np.float64)
    hashes, places = _stop_table(stop_words)
    _scan(codes, ends, kind_table(), hashes, places, len(stop_words), values)
    return values
