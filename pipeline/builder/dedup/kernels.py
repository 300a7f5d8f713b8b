"""The compiled loops of dedup: shingles -> signatures -> keys, segments, union-find, kept texts. minhash.py,
lsh.py, kept_texts.py and segments.py define what they compute.

numba compiles them at the first import and caches the result, if it can write its cache. Import this module before forking.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from filters.unicode_classes import KINDS
from filters.words import INVISIBLE

from ...compiling import compiled
from ...integer_hash import FNV_PRIME, FNV_START, GOLDEN, mix64

_LETTER, _NUMBER, _EXTENDER, _JOINER, _IDEOGRAPH, _SYLLABIC, _LEADING, _STACKER, _KILLER = map(KINDS.index, "a0~_hte+k")
# Sets of kinds, as bits.
_BASES = 1 << _LETTER | 1 << _NUMBER
_MARKS = 1 << _EXTENDER | 1 << _STACKER | 1 << _KILLER
_STARTS = _BASES | 1 << _IDEOGRAPH | 1 << _SYLLABIC | 1 << _LEADING
_NONE = np.uint8(KINDS.index("-"))

_mix64 = compiled("uint64(uint64)")(mix64)


@compiled("uint64(uint64, uint64)")
def _absorb(h: Any, point: Any) -> Any:
    h = (h ^ point) * GOLDEN
    return h ^ (h >> np.uint64(32))


@compiled("void(uint64, uint32[::1], uint32[::1], uint32[::1])")
def _add(shingle: Any, a: Any, b: Any, signature: Any) -> None:
    """Add a shingle to a signature: each value becomes the minimum of itself and the shingle's."""
    h = np.uint32(shingle >> np.uint64(32))
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    h = np.uint32(h ^ (h >> np.uint32(16)))
    for k in range(len(signature)):
        signature[k] = min(signature[k], np.uint32(a[k] * h + b[k]))


@compiled("boolean(int64, uint8)")
def _is(kinds: Any, kind: Any) -> Any:
    return (kinds >> np.int64(kind)) & 1 != 0


@compiled("int64(Array(uint32, 1, 'C', readonly=True), int64, int64, Array(uint8, 1, 'C'), uint64[::1], int64[:, ::1])")
def _find_words(points: Any, begin: Any, end: Any, table: Any, hashes: Any, spans: Any) -> Any:
    """Write the hash, the first character and the end of each word of a text, as `filters.words` does; return their number."""
    count, at = 0, begin
    while at < end:
        first = table[points[at]]
        if not _is(_STARTS, first):
            at += 1
            continue
        spans[count, 0], h = at, (FNV_START ^ np.uint64(points[at])) * FNV_PRIME
        spaced = _is(_BASES, first)
        continues = _BASES | _MARKS if spaced else _MARKS
        at += 1
        while at < end:
            kind = table[points[at]]
            if kind == INVISIBLE:
                at += 1
                continue
            if not _is(continues, kind):
                before, after = table[points[at - 1]], table[points[at + 1]] if at + 1 < end else _NONE
                if spaced:
                    if kind != _JOINER or not _is(_BASES, after):
                        break
                elif (
                    kind != _SYLLABIC
                    or first == _IDEOGRAPH
                    or (before != _LEADING and before != _STACKER and after != _KILLER)
                ):
                    break
            h = (h ^ np.uint64(points[at])) * FNV_PRIME
            at += 1
        spans[count, 1], hashes[count] = at, _mix64(h)
        count += 1
    return count


@compiled("uint64(uint64, uint64)")
def _joined(s: Any, word: Any) -> Any:
    """Return the shingle that has the words of the shingle ``s`` and one more."""
    return _mix64(s * GOLDEN + word)


@compiled("uint64(uint64[::1], int64, int64)")
def _shingle_at(hashes: Any, first: Any, length: Any) -> Any:
    """Return the shingle of ``length`` words from the word ``first`` on."""
    s = np.uint64(0)
    for k in range(first, first + length):
        s = _joined(s, hashes[k])
    return s


@compiled("int64(int64[::1])")
def _longest(ends: Any) -> Any:
    """Return the number of characters of the longest text."""
    longest = begin = 0
    for end in ends:
        longest, begin = max(longest, end - begin), end
    return longest


@compiled(
    "void(Array(uint32, 1, 'C', readonly=True), int64[::1], Array(uint8, 1, 'C'), int64, uint64[::1], int64[::1])"
)
def shingle(points: Any, ends: Any, table: Any, ngram: Any, out: Any, stops: Any) -> None:
    """Write the 64-bit shingles of all texts to ``out``, and to ``stops`` the end of each text's shingles."""
    hashes, spans = np.empty(_longest(ends), np.uint64), np.empty((_longest(ends), 2), np.int64)
    begin = written = 0
    for text in range(len(ends)):
        count = _find_words(points, begin, ends[text], table, hashes, spans)
        length = min(ngram, count)
        for first in range(count - length + 1 if count else 0):
            out[written] = _shingle_at(hashes, first, length)
            written += 1
        stops[text] = written
        begin = ends[text]


@compiled(
    "int64(Array(uint32, 1, 'C', readonly=True), int64[::1], Array(uint8, 1, 'C'), Array(bool_, 1, 'C'),"
    " uint8[::1], uint64, uint64[::1], int64[::1])"
)
def find_shingles(
    points: Any, ends: Any, table: Any, lengths: Any, prefilter: Any, shift: Any, out: Any, rows: Any
) -> Any:
    """Write the shingles that pass a prefilter, of each length k with ``lengths[k]``, and their texts; return their number.

    A shingle extends the shingle of one word less, so a single pass finds all lengths.
    """
    hashes, spans = np.empty(_longest(ends), np.uint64), np.empty((_longest(ends), 2), np.int64)
    begin = filled = 0
    for text in range(len(ends)):
        count = _find_words(points, begin, ends[text], table, hashes, spans)
        for first in range(count):
            s = np.uint64(0)
            for k in range(1, min(len(lengths), count - first + 1)):
                s = _joined(s, hashes[first + k - 1])
                if not lengths[k]:
                    continue
                bit = s >> shift
                if prefilter[bit >> np.uint64(3)] >> np.uint8(bit & np.uint64(7)) & np.uint8(1):
                    out[filled] = s
                    rows[filled] = text
                    filled += 1
        begin = ends[text]
    return filled


@compiled(
    "void(Array(uint32, 1, 'C', readonly=True), int64[::1], Array(uint8, 1, 'C'), int64, uint32[::1], uint32[::1],"
    " uint32[:, ::1])"
)
def sign(points: Any, ends: Any, table: Any, ngram: Any, a: Any, b: Any, out: Any) -> None:
    """Write the signature of each text to its row of ``out``. The code points of the texts end at ``ends``."""
    hashes, spans = np.empty(_longest(ends), np.uint64), np.empty((_longest(ends), 2), np.int64)
    begin = 0
    for text in range(len(ends)):
        count = _find_words(points, begin, ends[text], table, hashes, spans)
        length = min(ngram, count)
        for first in range(count - length + 1 if count else 0):
            _add(_shingle_at(hashes, first, length), a, b, out[text])
        begin = ends[text]


@compiled(
    "int64(Array(uint32, 1, 'C', readonly=True), int64[::1], Array(bool_, 1, 'C'), boolean, int64, uint64[::1],"
    " int64[:, ::1])"
)
def split(points: Any, ends: Any, spaces: Any, paragraphs: Any, shortest: Any, hashes: Any, locations: Any) -> Any:
    """Write each segment's hash, and its text, first line and last line; return the number of segments."""
    filled = begin = 0
    for text in range(len(ends)):
        end = ends[text]
        line = length = first = last = 0
        gap, blank, h = False, True, np.uint64(0)
        for at in range(begin, end + 1):
            if at < end and points[at] != 10:
                point = np.uint64(points[at])
                if point < len(spaces) and spaces[point]:
                    gap = True
                    continue
                if length == 0:
                    first, h = line, FNV_START
                elif gap:
                    h = _absorb(h, np.uint64(32))
                    length += 1
                h = _absorb(h, point)
                length += 1
                gap, blank = False, False
                continue
            if not blank:
                last = line + 1
            if length and (blank or not paragraphs or at == end):
                if length >= shortest:
                    hashes[filled] = _mix64(h)
                    locations[filled, 0], locations[filled, 1], locations[filled, 2] = text, first, last
                    filled += 1
                length = 0
            line += 1
            gap, blank = True, True
        begin = end
    return filled


@compiled(
    "int64(Array(uint32, 1, 'C', readonly=True), int64[::1], Array(uint8, 1, 'C'), uint64[::1], int64[:, ::1], int64[::1])"
)
def locate_words(points: Any, ends: Any, table: Any, hashes: Any, spans: Any, stops: Any) -> Any:
    """Write each word's hash, first character and end, and to ``stops`` the end of each text's words; return their number."""
    filled = begin = 0
    for text in range(len(ends)):
        filled += _find_words(points, begin, ends[text], table, hashes[filled:], spans[filled:])
        begin, stops[text] = ends[text], filled
    return filled


@compiled("void(uint64[::1], int64[::1], int64, uint64[::1])")
def hash_runs(words: Any, stops: Any, length: Any, out: Any) -> None:
    """Write the hash of the run of ``length`` words that begins at each word, unless its text ends before."""
    power = np.uint64(1)
    for _ in range(length):
        power *= GOLDEN
    begin = 0
    for text in range(len(stops)):
        s = np.uint64(0)
        for at in range(begin, stops[text]):
            s = s * GOLDEN + words[at]
            if at - begin >= length:
                s -= power * words[at - length]
            if at - begin >= length - 1:
                out[at - length + 1] = _mix64(s)
        begin = stops[text]


@compiled("void(uint64[::1], int64[::1], int64, int64, int64[::1])")
def winnow(runs: Any, stops: Any, length: Any, window: Any, picks: Any) -> None:
    """Write where the smallest of the ``window`` runs from each word begins; -1 if the text ends before the last of them.

    A run has ``length`` words. Among equal runs, the previous window's pick stays; a new pick is the last one.
    """
    begin = 0
    for text in range(len(stops)):
        best = -1
        for at in range(begin, stops[text]):
            last = at + window - 1
            if last + length > stops[text]:
                best = -1
            elif best < at:
                best = at
                for k in range(at + 1, last + 1):
                    if runs[k] <= runs[best]:
                        best = k
            elif runs[last] < runs[best]:
                best = last
            picks[at] = best
        begin = stops[text]


@compiled("void(Array(uint32, 2, 'C', readonly=True), int64, uint64[:, :], bool_[:, :])")
def band_keys(signatures: Any, rows: Any, keys: Any, empty: Any) -> None:
    """Write the key of each band of each signature, and whether the band has no shingles, ``[bands, n]`` each."""
    for document in range(len(signatures)):
        for band in range(len(keys)):
            key = np.uint64(0)
            all_empty = True
            for k in range(band * rows, (band + 1) * rows):
                value = signatures[document, k]
                key = _mix64(key * GOLDEN + np.uint64(value) + np.uint64(1))
                all_empty = all_empty and value == np.uint32(0xFFFFFFFF)
            keys[band, document] = key
            empty[band, document] = all_empty


@compiled("int64(Array(uint32, 2, 'C', readonly=True), int64, int64)")
def _agreement(signatures: Any, a: Any, b: Any) -> Any:
    count = 0
    for j in range(signatures.shape[1]):
        count += signatures[a, j] == signatures[b, j]
    return count


@compiled("void(Array(uint32, 2, 'C', readonly=True), int64[::1], int64[::1], int64[::1])")
def agreeing(signatures: Any, a: Any, b: Any, counts: Any) -> None:
    """Count the equal values of each pair of signatures."""
    for k in range(len(a)):
        counts[k] = _agreement(signatures, a[k], b[k])


@compiled("int64(uint32[::1], Array(uint32, 1, 'C', readonly=True), uint32[::1])")
def start_components(roots: Any, exact: Any, starts: Any) -> Any:
    """Write to ``starts``, which are 0, where each component of several texts begins; return how many texts these have."""
    for k in range(len(roots)):
        starts[roots[k]] += np.uint32(exact[k] == k)
    total = 0
    for k in range(len(starts)):
        count = starts[k]
        starts[k] = total if count > 1 else 0xFFFFFFFF
        total += count if count > 1 else 0
    return total


@compiled("void(uint32[::1], Array(uint32, 1, 'C', readonly=True), uint32[::1], uint32[:, ::1])")
def place_texts(roots: Any, exact: Any, starts: Any, members: Any) -> None:
    """Write the root and the number of each text of these components, and move ``starts`` to their ends."""
    for k in range(len(roots)):
        at = starts[roots[k]]
        if exact[k] == k and at != 0xFFFFFFFF:
            members[0, at], members[1, at] = roots[k], k
            starts[roots[k]] = at + 1


@compiled(
    "void(Array(uint32, 2, 'C', readonly=True), int32[::1], int32[:, ::1], int32[:, ::1], bool_[::1], int64, int64, int64,"
    " int32[::1])"
)
def judge(
    signatures: Any, row_of: Any, runs: Any, latest: Any, stays: Any, needed: Any, begin: Any, end: Any, keepers: Any
) -> None:
    """Write for each text the kept text that it is dropped for, or itself; ``latest`` are the last kept texts of each run."""
    for k in range(begin, end):
        best, most = k, needed - 1
        for band in range(0 if stays[k] else runs.shape[1]):
            for slot in range(0 if runs[k, band] < 0 else latest.shape[1]):
                other = latest[runs[k, band], slot]
                if other < 0:
                    break
                count = _agreement(signatures, row_of[k], row_of[other])
                if count > most or (count == most and other < best < k):
                    best, most = other, count
        keepers[k] = best
        for band in range(runs.shape[1] if best == k else 0):
            if runs[k, band] >= 0:
                for slot in range(latest.shape[1] - 1, 0, -1):
                    latest[runs[k, band], slot] = latest[runs[k, band], slot - 1]
                latest[runs[k, band], 0] = k


@compiled("void(uint32[::1], Array(uint32, 2, 'C', readonly=True))")
def unite(parents: Any, edges: Any) -> None:
    """Join the trees of each pair in a forest; the smaller root stays root."""
    for k in range(len(edges)):
        x, y = edges[k, 0], edges[k, 1]
        while parents[x] != x:
            parents[x] = parents[parents[x]]
            x = parents[x]
        while parents[y] != y:
            parents[y] = parents[parents[y]]
            y = parents[y]
        if x < y:
            parents[y] = x
        else:
            parents[x] = y


@compiled("void(uint32[::1])")
def flatten(parents: Any) -> None:
    """Make every parent a root. No parent is larger than its child, so one pass in order is enough."""
    for k in range(len(parents)):
        parents[k] = parents[parents[k]]


@compiled("void(uint32[::1], uint32[::1])")
def count_members(roots: Any, counts: Any) -> None:
    for k in range(len(roots)):
        counts[roots[k]] += np.uint32(1)


@compiled("void(Array(uint32, 1, 'C', readonly=True), int64, int64[::1], uint32[::1], uint32[::1])")
def highest_members(roots: Any, begin: Any, numbers: Any, best: Any, highest: Any) -> None:
    """Write for each root its member with the highest number so far; the first of equal ones. ``numbers`` begin at ``begin``."""
    for k in range(len(numbers)):
        root = roots[begin + k]
        number = np.uint32(min(numbers[k], 0xFFFFFFFF))
        if root == begin + k or number > highest[root]:
            best[root] = begin + k
            highest[root] = number
