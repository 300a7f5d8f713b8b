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
import pickle
from typing import Any

import numba
import numpy as np

from filters import SCANNED
from filters.characters import KINDS, TERMINAL_BIT, kind_table
from filters.lines import SHORT_LINE
from filters.wording import stop_word_spellings

_SPACE, _LETTER, _NUMBER, _EXTENDER, _POINT, _JOINER, _APOSTROPHE, _COMMA = range(8)  # places in KINDS
_IDEOGRAPH, _SYLLABIC, _LEADING, _STACKER, _KILLER, _MARK = range(8, len(KINDS))
_TERMINAL = np.uint8(TERMINAL_BIT)
_KIND = np.uint8(0x7F)
_START = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FIRST_N, _LAST_TOP_N, _LAST_N = 2, 4, 10
_NEWLINE, _HASH, _FULL_STOP, _ELLIPSIS, _BULLET, _HYPHEN = (ord(c) for c in "\n#.…•-")


# Neither the package's folder nor the user's cache folder can be written, or what lies there cannot be loaded.
_CACHE_TROUBLE = (RuntimeError, OSError, ImportError, EOFError, pickle.UnpicklingError)


def _compiled(signature: Any) -> Any:
    """Compile at import, from the cache if there is one that can be read or written."""

    def decorate(function: Any) -> Any:
        try:
            return numba.njit(signature, cache=True, nogil=True, error_model="numpy")(function)
        except _CACHE_TROUBLE:
            return numba.njit(signature, nogil=True, error_model="numpy")(function)

    return decorate


@_compiled("uint64(uint64)")
def _mix(value):  # type: ignore[no-untyped-def]
    value ^= value >> np.uint64(32)
    value *= _MIX
    return value ^ (value >> np.uint64(29))


@_compiled("int64(int64)")
def _table_size(entries):  # type: ignore[no-untyped-def]
    size = 16
    while size < entries * 2:
        size *= 2
    return size


@_compiled("Tuple((int64, int64))(uint64[::1], int64[::1], int64)")
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


@_compiled("void(uint64[::1], int64[::1], int64, float64, float64[::1])")
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
            while table[slot] >= 0 and grams[table[slot]] != gram:
                slot = (slot + 1) & (size - 1)
            if table[slot] < 0:
                table[slot] = at
                counts[at] = 0
                seen[at] = False
            first[at] = table[slot]
            counts[table[slot]] += 1
        if n <= _LAST_TOP_N:
            best = -1
            for index in range(live):
                at = places[index]
                if first[at] == at and counts[at] > 1 and (best < 0 or counts[at] > counts[best]):
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
        kept = 0
        for index in range(live):
            if counts[first[places[index]]] > 1:
                places[kept] = places[index]
                kept += 1
        live = kept


@_compiled("int64(uint8[::1], int64)")
def _word_end(kinds, start):  # type: ignore[no-untyped-def]
    """Return where the word that begins at `start` ends, `start` itself where none begins."""
    total = len(kinds)
    kind = kinds[start]
    end = start + 1
    if kind == _APOSTROPHE:
        if start == 0 or end == total or kinds[start - 1] not in (_LETTER, _NUMBER, _EXTENDER, _STACKER, _KILLER):
            return start
        kind = kinds[end]
        end += 1
        if kind not in (_LETTER, _NUMBER):
            return start
    elif kind == _LETTER:
        while end + 1 < total and kinds[end] == _POINT and kinds[end + 1] == _LETTER:
            end += 2
        if end > start + 1 and end < total and kinds[end] == _POINT:
            if end + 1 == total or kinds[end + 1] not in (_LETTER, _NUMBER):
                return end + 1
        end = start + 1
    if kind in (_LETTER, _NUMBER):
        while end < total:
            kind = kinds[end]
            if kind in (_LETTER, _NUMBER, _EXTENDER, _STACKER, _KILLER):
                end += 1
            elif end + 1 == total:
                break
            elif (kind in (_POINT, _JOINER) and kinds[end + 1] in (_LETTER, _NUMBER)) or (
                kind == _COMMA and kinds[end - 1] == _NUMBER and kinds[end + 1] == _NUMBER
            ):
                end += 2
            else:
                break
        return end
    if kind == _IDEOGRAPH:
        while end < total and kinds[end] in (_EXTENDER, _STACKER, _KILLER):
            end += 1
        return end
    if kind in (_SYLLABIC, _LEADING):
        if kind == _LEADING and end < total and kinds[end] == _SYLLABIC:
            end += 1
        while end < total:
            kind = kinds[end]
            stacked = kinds[end - 1] == _STACKER or (end + 1 < total and kinds[end + 1] == _KILLER)
            if not (kind in (_EXTENDER, _STACKER, _KILLER) or (kind == _SYLLABIC and stacked)):
                break
            end += 1
        return end
    return start


@_compiled(
    numba.void(
        numba.types.Array(numba.uint32, 1, "C", readonly=True),  # a view of bytes
        numba.uint8[::1], numba.uint64[::1], numba.int16[::1], numba.int64, numba.float64[::1],
    )
)  # fmt: skip
def _scan(codes, table, stop_hashes, stop_places, stop_count, values):  # type: ignore[no-untyped-def]
    """Fill `values` (zeros) with the measures of `SCANNED`."""
    total = len(codes)
    if total == 0:
        return
    kinds = np.empty(total, np.uint8)
    terminal = np.empty(total, np.bool_)
    for at in range(total):
        looked_up = table[codes[at]] if codes[at] < len(table) else np.uint8(_MARK)
        kinds[at] = looked_up & _KIND
        terminal[at] = looked_up & _TERMINAL

    # Pieces: words and marks.
    room = 64
    hashes = np.empty(room, np.uint64)
    reach = np.zeros(room + 1, np.int64)
    stops = np.zeros(stop_count + 1, np.bool_)
    pieces = words = alphabetic = word_characters = longest = 0
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
        letters = False
        value = _START
        for inner in range(at, end):
            value = (value ^ np.uint64(codes[inner])) * _PRIME
            letters |= kinds[inner] in (_LETTER, _IDEOGRAPH, _SYLLABIC, _LEADING)
        value = _mix(value)
        if pieces == room:
            hashes = np.concatenate((hashes, np.empty(room, np.uint64)))
            reach = np.concatenate((reach, np.zeros(room, np.int64)))
            room *= 2
        hashes[pieces] = value
        reach[pieces + 1] = reach[pieces] + end - at
        pieces += 1
        if is_word:
            words += 1
            alphabetic += letters
            word_characters += end - at
            longest = max(longest, end - at)
            slot = np.int64(value & np.uint64(len(stop_hashes) - 1))
            while stop_places[slot] >= 0:
                if stop_hashes[slot] == value:
                    stops[stop_places[slot]] = True
                    break
                slot = (slot + 1) & (len(stop_hashes) - 1)
        at = end

    # Lines and paragraphs, their hashes taken up to the last visible character.
    room_lines = 16
    line_hashes = np.empty(room_lines, np.uint64)
    line_lengths = np.empty(room_lines, np.int64)
    paragraph_hashes = np.empty(room_lines, np.uint64)
    paragraph_lengths = np.empty(room_lines, np.int64)
    lines = paragraphs = bullets = ellipses = terminals = short = newlines = hash_signs = dots = stops_in_row = 0
    line_start = paragraph_start = -1
    line_end = paragraph_end = 0
    line_hash = line_hash_end = paragraph_hash = paragraph_hash_end = _START
    for at in range(total + 1):
        code = codes[at] if at < total else np.uint32(_NEWLINE)
        if code == _FULL_STOP:
            stops_in_row += 1
            if stops_in_row == 3:
                dots += 1
                stops_in_row = 0
        else:
            stops_in_row = 0
        if code == _NEWLINE:
            newlines += at < total
            blank = line_start < 0
            if not blank:
                line_hashes[lines] = line_hash_end
                line_lengths[lines] = line_end - line_start
                lines += 1
                opening, closing = codes[line_start], codes[line_end - 1]
                bullets += opening in (_BULLET, _HYPHEN)
                terminals += terminal[line_end - 1]
                short += line_end - line_start <= SHORT_LINE
                ellipses += closing == _ELLIPSIS or (
                    line_end - line_start >= 3
                    and closing == _FULL_STOP
                    and codes[line_end - 2] == _FULL_STOP
                    and codes[line_end - 3] == _FULL_STOP
                )
            if (blank or at == total) and paragraph_start >= 0:
                paragraph_hashes[paragraphs] = paragraph_hash_end
                paragraph_lengths[paragraphs] = paragraph_end - paragraph_start
                paragraphs += 1
                paragraph_start = -1
                paragraph_hash = _START
            if lines == room_lines:
                line_hashes = np.concatenate((line_hashes, np.empty(room_lines, np.uint64)))
                line_lengths = np.concatenate((line_lengths, np.empty(room_lines, np.int64)))
                paragraph_hashes = np.concatenate((paragraph_hashes, np.empty(room_lines, np.uint64)))
                paragraph_lengths = np.concatenate((paragraph_lengths, np.empty(room_lines, np.int64)))
                room_lines *= 2
            line_start = -1
            line_hash = _START
            if paragraph_start >= 0:
                paragraph_hash = (paragraph_hash ^ np.uint64(code)) * _PRIME
            continue
        visible = kinds[at] != _SPACE
        hash_signs += code == _HASH
        dots += code == _ELLIPSIS
        if visible and line_start < 0:
            line_start = at
            if paragraph_start < 0:
                paragraph_start = at
        if line_start >= 0:
            line_hash = (line_hash ^ np.uint64(code)) * _PRIME
        if paragraph_start >= 0:
            paragraph_hash = (paragraph_hash ^ np.uint64(code)) * _PRIME
        if visible:
            line_end = paragraph_end = at + 1
            line_hash_end = line_hash
            paragraph_hash_end = paragraph_hash

    values[0] = total
    values[1] = words
    values[2] = lines
    values[3] = paragraphs
    values[4] = longest
    if words:
        values[5] = word_characters / words
    if pieces:
        values[6] = alphabetic / pieces
        values[7] = hash_signs / pieces
        values[8] = dots / pieces
        values[14] = newlines / pieces
    values[9] = stops.sum()
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
    _ngrams(hashes, reach, pieces, float(total), values[19:])


@functools.lru_cache(maxsize=4096)
def _stop_table(words: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return an open-addressing table of the spellings' hashes and of the stop words that they spell (-1: none)."""
    spellings = stop_word_spellings(words)
    size = int(_table_size(len(spellings)))
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


def scan(text: str, stop_words: tuple[str, ...] = ()) -> list[float]:
    """Return the measures of `SCANNED` of a text, `stop_words` counted by `wording.stop_words`.

    >>> dict(zip(SCANNED, scan("To be, or not to be!"), strict=True))["words"]
    6.0
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    values = np.zeros(len(SCANNED), np.float64)
    hashes, places = _stop_table(stop_words)
    _scan(codes, kind_table(), hashes, places, len(stop_words), values)
    return values.tolist()
