"""The compiled loops of dedup: shingles -> signatures, union-find, passages. The plain definitions stand in minhash.py,
dedup.py and passages.py.

Importing this module compiles nothing where numba's cache can be written; import it before forking.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from filters.compiling import compiled


@compiled("uint64(uint64)")
def _mix64(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled("uint64(uint64, uint64)")
def _absorb(h: Any, point: Any) -> Any:
    h = (h ^ point) * np.uint64(0x9E3779B97F4A7C15)
    return h ^ (h >> np.uint64(32))


@compiled("void(uint64, uint32[::1], uint32[::1], uint32[::1])")
def _add(shingle: Any, a: Any, b: Any, signature: Any) -> None:
    """Lower a signature to what one more shingle makes of it."""
    h = np.uint32(shingle >> np.uint64(32))
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    h = np.uint32(h ^ (h >> np.uint32(16)))
    for k in range(len(signature)):
        signature[k] = min(signature[k], np.uint32(a[k] * h + b[k]))


@compiled(
    "void(Array(uint32, 1, 'C', readonly=True), int64[::1], Array(bool_, 1, 'C'), int64, uint32[::1], uint32[::1],"
    " uint32[:, ::1])"
)
def sign(points: Any, ends: Any, words: Any, ngram: Any, a: Any, b: Any, out: Any) -> None:
    """Write the signature of each text, whose code points end at ``ends``, to its row of ``out``."""
    recent = np.zeros(ngram, np.uint64)
    begin = 0
    for text in range(len(ends)):
        end = ends[text]
        count = 0
        place = begin
        while place < end:
            if not words[points[place]]:
                place += 1
                continue
            h = np.uint64(0xCBF29CE484222325)
            while place < end and words[points[place]]:
                h = (h ^ np.uint64(points[place])) * np.uint64(0x100000001B3)
                place += 1
            recent[count % ngram] = _mix64(h)
            count += 1
            if count >= ngram:
                s = np.uint64(0)
                for k in range(ngram):
                    s = _mix64(s * np.uint64(0x9E3779B97F4A7C15) + recent[(count + k) % ngram])
                _add(s, a, b, out[text])
        if 0 < count < ngram:
            s = np.uint64(0)
            for k in range(count):
                s = _mix64(s * np.uint64(0x9E3779B97F4A7C15) + recent[k])
            _add(s, a, b, out[text])
        begin = end


@compiled(
    "int64(Array(uint32, 1, 'C', readonly=True), int64[::1], Array(bool_, 1, 'C'), boolean, int64, uint64[::1],"
    " int64[:, ::1])"
)
def split(points: Any, ends: Any, spaces: Any, paragraphs: Any, shortest: Any, hashes: Any, places: Any) -> Any:
    """Write the hash, and text, first and last line of every passage of the texts that end at ``ends``; count them."""
    found = begin = 0
    for text in range(len(ends)):
        end = ends[text]
        line = length = first = last = 0
        gap, blank, h = False, True, np.uint64(0)
        for place in range(begin, end + 1):
            if place < end and points[place] != 10:
                point = np.uint64(points[place])
                if point < len(spaces) and spaces[point]:
                    gap = True
                    continue
                if length == 0:
                    first, h = line, np.uint64(0xCBF29CE484222325)
                elif gap:
                    h = _absorb(h, np.uint64(32))
                    length += 1
                h = _absorb(h, point)
                length += 1
                gap, blank = False, False
                continue
            if not blank:
                last = line + 1
            if length and (blank or not paragraphs or place == end):
                if length >= shortest:
                    hashes[found] = _mix64(h)
                    places[found, 0], places[found, 1], places[found, 2] = text, first, last
                    found += 1
                length = 0
            line += 1
            gap, blank = True, True
        begin = end
    return found


@compiled("void(int64[::1], int64[::1], int64[::1])")
def unite(parents: Any, a: Any, b: Any) -> None:
    """Join the trees of each pair in a forest; the smaller root stays root."""
    for k in range(len(a)):
        x, y = a[k], b[k]
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


@compiled("int64[::1](int64[::1])")
def find_roots(parents: Any) -> Any:
    """Return the root of every node. A parent is never larger than its child, so one pass in order meets roots first."""
    roots = np.empty_like(parents)
    for k in range(len(parents)):
        roots[k] = k if parents[k] == k else roots[parents[k]]
    return roots
