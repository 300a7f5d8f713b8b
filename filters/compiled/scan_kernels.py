"""The compiled loops of `filters.compiled.scan`: one pass over the pieces of a text, one over its lines.

The first import compiles, which takes seconds. Later imports load from numba's cache, if it can be written, in a fraction of
a second. Import it before forking, or every worker imports it again.
"""

from __future__ import annotations

import numba
import numpy as np

from filters.compiled import SCANNED
from filters.compiled.repetition_kernels import count_duplicates, measure_ngrams, mix
from filters.compiled.sentence_kernels import count_sentences
from filters.measures.lines import SHORT_LINE
from filters.unicode_classes import KINDS, TERMINAL_BIT
from pipeline.compiling import compiled
from pipeline.integer_hash import FNV_PRIME, FNV_START

# The columns of `values`.
_CHARACTERS = SCANNED.index("characters")
_WORDS = SCANNED.index("words")
_LINES = SCANNED.index("lines")
_PARAGRAPHS = SCANNED.index("paragraphs")
_LONGEST_WORD = SCANNED.index("longest_word")
_MEAN_WORD_LENGTH = SCANNED.index("mean_word_length")
_ALPHABETIC_RATIO = SCANNED.index("alphabetic_ratio")
_HASH_RATIO = SCANNED.index("hash_ratio")
_ELLIPSIS_RATIO = SCANNED.index("ellipsis_ratio")
_STOP_WORDS = SCANNED.index("stop_words")
_BULLET_LINE_RATIO = SCANNED.index("bullet_line_ratio")
_ELLIPSIS_LINE_RATIO = SCANNED.index("ellipsis_line_ratio")
_TERMINAL_LINE_RATIO = SCANNED.index("terminal_line_ratio")
_SHORT_LINE_RATIO = SCANNED.index("short_line_ratio")
_SENTENCES = SCANNED.index("sentences")
_NEWLINE_RATIO = SCANNED.index("newline_ratio")
_DUPLICATE_LINE_RATIO = SCANNED.index("duplicate_line_ratio")
_DUPLICATE_LINE_CHAR_RATIO = SCANNED.index("duplicate_line_char_ratio")
_DUPLICATE_PARAGRAPH_RATIO = SCANNED.index("duplicate_paragraph_ratio")
_DUPLICATE_PARAGRAPH_CHAR_RATIO = SCANNED.index("duplicate_paragraph_char_ratio")
_TOP_2_GRAM_RATIO = SCANNED.index("top_2_gram_ratio")
_SPACE, _LETTER, _NUMBER, _EXTENDER, _POINT, _JOINER, _APOSTROPHE, _COMMA = range(8)  # indexes in KINDS
_IDEOGRAPH, _SYLLABIC, _LEADING, _STACKER, _KILLER, _MARK = range(8, len(KINDS))
# Sets of kinds, as bits.
_BASES = 1 << _LETTER | 1 << _NUMBER
_EXTENDS = 1 << _EXTENDER | 1 << _STACKER | 1 << _KILLER
_CONTINUES = _BASES | _EXTENDS
_JOINS = 1 << _POINT | 1 << _JOINER
_UNSPACED = 1 << _IDEOGRAPH | 1 << _SYLLABIC | 1 << _LEADING
_LETTERS = 1 << _LETTER | 1 << _IDEOGRAPH | 1 << _SYLLABIC | 1 << _LEADING
_TERMINAL = np.uint8(TERMINAL_BIT)
_KIND = np.uint8(0x7F)
_CODES = numba.types.Array(numba.uint32, 1, "C", readonly=True)  # a view of bytes
_PIECE = numba.types.UniTuple(numba.int64, 3)(_CODES, numba.uint8[::1], numba.int64)
_NEWLINE, _HASH, _FULL_STOP, _ELLIPSIS, _BULLET, _HYPHEN = (ord(c) for c in "\n#.…•-")


@compiled("boolean(uint8, int64)")
def _is(kind, kinds):  # type: ignore[no-untyped-def]
    return (kinds >> np.int64(kind)) & 1 != 0


@compiled("int64(uint8[::1], int64)")
def _word_end(kinds, start):  # type: ignore[no-untyped-def]
    """Return the end of the word that begins at `start`, as `filters.text_view._PIECES` does; `start` if none begins there."""
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


@compiled("UniTuple(int64, 2)(uint8[::1], int64)")
def _run_end(kinds, start):  # type: ignore[no-untyped-def]
    """Return the end of the run of visible characters from `start` on, and the set of their kinds."""
    mask, end = 0, start
    while end < len(kinds) and kinds[end] != _SPACE:
        mask |= 1 << int(kinds[end])
        end += 1
    return end, mask


@compiled(_PIECE)
def _piece_end(codes, kinds, start):  # type: ignore[no-untyped-def]
    """Return the end of the piece from `start` on, the set of its kinds, and 1 for a word or 0 for a mark."""
    end, mask = _word_end(kinds, start), 0
    is_word = end > start
    if not is_word:
        end = start + 1
        while end < len(codes) and codes[end] == codes[start]:
            end += 1
    for at in range(start, end):
        mask |= 1 << int(kinds[at])
    return end, mask, np.int64(is_word)


@compiled(
    numba.int64(
        _CODES, numba.uint8[::1], numba.boolean, numba.uint64[::1], numba.int64[::1], numba.uint64[::1],
        numba.int16[::1], numba.bool_[::1], numba.float64[::1],
    )
)  # fmt: skip
def _scan_pieces(codes, kinds, by_pieces, hashes, reach, stop_hashes, stop_indexes, stops, values):  # type: ignore[no-untyped-def]
    """Write the hashes of all pieces, the sums of their characters (`reach`), and the measures of pieces; return their number.

    Unless `by_pieces`, a run of visible characters is a piece; a run with letters of unspaced scripts is split into words.
    """
    total = len(codes)
    stop_mask = len(stop_hashes) - 1
    pieces = words = alphabetic = characters = longest = hash_signs = ellipses = dots = 0
    reach[0] = 0
    at = cut_end = 0  # before `cut_end`, pieces are split
    while at < total:
        if kinds[at] == _SPACE:
            at += 1
            dots = 0
            continue
        end, mask, is_word = at, 0, 1
        if not by_pieces and at >= cut_end:
            end, mask = _run_end(kinds, at)
            if mask & _UNSPACED:
                cut_end = end
        if by_pieces or at < cut_end:
            end, mask, is_word = _piece_end(codes, kinds, at)
        value = FNV_START
        for inner in range(at, end):
            code = codes[inner]
            value = (value ^ np.uint64(code)) * FNV_PRIME
            if code == _FULL_STOP:
                dots += 1
                if dots == 3:
                    ellipses += 1
                    dots = 0
            else:
                dots = 0
                hash_signs += code == _HASH
                ellipses += code == _ELLIPSIS
        if not is_word and not by_pieces:  # a mark beside a word of a script without spaces
            at = end
            continue
        value = mix(value)
        hashes[pieces] = value
        reach[pieces + 1] = reach[pieces] + end - at
        pieces += 1
        if is_word:
            words += 1
            characters += end - at
            longest = max(longest, end - at)
            if mask & _LETTERS:
                alphabetic += 1
            slot = np.int64(value) & stop_mask
            while stop_indexes[slot] >= 0:
                if stop_hashes[slot] == value:
                    stops[stop_indexes[slot]] = True
                    break
                slot = (slot + 1) & stop_mask
        at = end
    values[_WORDS] = words
    values[_LONGEST_WORD] = longest
    if words:
        values[_MEAN_WORD_LENGTH] = characters / words
    if pieces:
        values[_ALPHABETIC_RATIO] = alphabetic / pieces
        values[_HASH_RATIO] = hash_signs / pieces
        values[_ELLIPSIS_RATIO] = ellipses / pieces
    for index in range(len(stops)):
        values[_STOP_WORDS] += stops[index]
    return pieces


@compiled(numba.void(_CODES, numba.uint8[::1], numba.uint8[::1], numba.int64, numba.boolean, numba.float64[::1]))
def _scan_lines(codes, kinds, table, newlines, sentences, values):  # type: ignore[no-untyped-def]
    """Write the measures of lines and paragraphs, and the number of sentences if `sentences` is set."""
    total = len(codes)
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
        value = FNV_START
        for inner in range(start, end):
            value = (value ^ np.uint64(codes[inner])) * FNV_PRIME
        line_hashes[lines], line_lengths[lines] = value, end - start
        lines += 1
        bullets += codes[start] == _BULLET or codes[start] == _HYPHEN
        last = codes[end - 1]
        terminals += last < len(table) and (table[last] & _TERMINAL) != 0
        short += end - start <= SHORT_LINE
        dots = end - start >= 3 and codes[end - 2] == _FULL_STOP and codes[end - 3] == _FULL_STOP
        ellipses += last == _ELLIPSIS or (dots and last == _FULL_STOP)
        if sentences:
            values[_SENTENCES] += count_sentences(codes, kinds, table, start, end)
        if follows:
            paragraph_hashes[paragraphs - 1] = (paragraph_hashes[paragraphs - 1] ^ value) * FNV_PRIME
            paragraph_lengths[paragraphs - 1] += 1 + end - start
        else:
            paragraph_hashes[paragraphs], paragraph_lengths[paragraphs] = mix(value), end - start
            paragraphs += 1
        follows = True
    values[_LINES] = lines
    values[_PARAGRAPHS] = paragraphs
    if lines:
        values[_BULLET_LINE_RATIO] = bullets / lines
        values[_ELLIPSIS_LINE_RATIO] = ellipses / lines
        values[_TERMINAL_LINE_RATIO] = terminals / lines
        values[_SHORT_LINE_RATIO] = short / lines
        duplicates, characters = count_duplicates(line_hashes, line_lengths, lines)
        values[_DUPLICATE_LINE_RATIO] = duplicates / lines
        values[_DUPLICATE_LINE_CHAR_RATIO] = characters / total
        duplicates, characters = count_duplicates(paragraph_hashes, paragraph_lengths, paragraphs)
        values[_DUPLICATE_PARAGRAPH_RATIO] = duplicates / paragraphs
        values[_DUPLICATE_PARAGRAPH_CHAR_RATIO] = characters / total


@compiled(
    numba.void(
        _CODES, numba.int64[::1], numba.uint8[::1], numba.boolean, numba.boolean, numba.boolean, numba.boolean,
        numba.uint64[::1], numba.int16[::1], numba.int64, numba.float64[:, ::1],
    )
)  # fmt: skip
def scan_texts(codes, ends, table, by_pieces, lines, sentences, ngrams, stop_hashes, stop_indexes, stop_words, values):  # type: ignore[no-untyped-def]
    """Fill `values` (zeros) with the measures of `SCANNED` for each text; texts end at `ends`.

    `lines`, `sentences` and `ngrams` say whether these measures are taken.
    """
    longest = begin = 0
    for text in range(len(ends)):
        longest, begin = max(longest, ends[text] - begin), ends[text]
    # Long enough for the most pieces that a text can have: unwritten parts take no memory.
    kinds, hashes, reach = np.empty(longest, np.uint8), np.empty(longest, np.uint64), np.empty(longest + 1, np.int64)
    stops = np.empty(stop_words, np.bool_)
    begin = 0
    for text in range(len(ends)):
        here, total = codes[begin : ends[text]], ends[text] - begin
        begin = ends[text]
        if total == 0:
            continue
        newlines = 0
        for at in range(total):
            kinds[at] = table[here[at]] & _KIND if here[at] < len(table) else _MARK
            newlines += here[at] == _NEWLINE
        stops[:] = False
        pieces = _scan_pieces(
            here, kinds[:total], by_pieces, hashes, reach, stop_hashes, stop_indexes, stops, values[text]
        )
        values[text, _CHARACTERS] = total
        if pieces:
            values[text, _NEWLINE_RATIO] = newlines / pieces
        if lines:
            _scan_lines(here, kinds[:total], table, newlines, sentences, values[text])
        if ngrams:
            measure_ngrams(hashes, reach, pieces, float(total), values[text, _TOP_2_GRAM_RATIO:])
