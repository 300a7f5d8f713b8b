"""The compiled loops of `filters.language.fasttext`, whose docstring defines what they compute.

Importing this module compiles nothing where numba's cache can be written; import it before forking.
"""

from __future__ import annotations

import numba
import numpy as np

from pipeline.compiling import compiled

WIDTH = 16  # of a row, which zeros fill up; a constant, so that a row is added by one or two instructions

FNV_START, _FNV_PRIME, _SIGN = np.uint32(2166136261), np.uint32(16777619), np.uint32(0xFFFFFF00)
LINE_FEED, _SPACE, WORD_BEGIN, WORD_END = (np.uint8(ord(c)) for c in "\n <>")
BYTES = numba.types.Array(numba.uint8, 1, "C", readonly=True)


@compiled("uint32(uint32, uint8)")
def step(value, byte):  # type: ignore[no-untyped-def]
    """Take one byte into an FNV-1a hash, extended by its sign as in fastText."""
    extended = np.uint32(byte) | _SIGN if byte >= 128 else np.uint32(byte)
    return np.uint32((value ^ extended) * _FNV_PRIME)


@compiled(numba.void(BYTES, numba.int64[::1], numba.int32[::1]))
def fill(letters, ends, slots):  # type: ignore[no-untyped-def]
    """Fill an open-addressing table of the words of a dictionary."""
    mask = len(slots) - 1
    for word in range(len(ends) - 1):
        value = FNV_START
        for at in range(ends[word], ends[word + 1]):
            value = step(value, letters[at])
        slot = np.int64(value) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = word


@compiled(numba.int64(numba.uint8[::1], numba.int64, BYTES, numba.int64[::1], numba.int32[::1]))
def find_word(word, stop, letters, ends, slots):  # type: ignore[no-untyped-def]
    """Return which word of the dictionary ``word[1:stop]`` is, -1 for none."""
    value = FNV_START
    for at in range(1, stop):
        value = step(value, word[at])
    mask = len(slots) - 1
    slot = np.int64(value) & mask
    while slots[slot] >= 0:
        found = slots[slot]
        begin = ends[found]
        if ends[found + 1] - begin == stop - 1:
            at = 1
            while at < stop and letters[begin + at - 1] == word[at]:
                at += 1
            if at == stop:
                return found
        slot = (slot + 1) & mask
    return -1


@compiled(numba.int64(BYTES))
def longest_line(text):  # type: ignore[no-untyped-def]
    """Return the bytes of the longest line of ``text``, every one of which ends in a line feed."""
    longest, begin = 0, 0
    for at in range(len(text)):
        if text[at] == LINE_FEED:
            longest, begin = max(longest, at - begin), at + 1
    return longest


@compiled(numba.int64(BYTES, numba.int64, numba.uint8[::1]))
def copy_word(text, at, word):  # type: ignore[no-untyped-def]
    """Write the bytes from ``at`` up to the next white space or NUL to ``word[1:]``; return where they end in ``word``."""
    stop = 1
    while text[at] > _SPACE or not (text[at] == _SPACE or 9 <= text[at] <= 13 or text[at] == 0):
        word[stop] = text[at]
        stop += 1
        at += 1
    return stop


@compiled("int64(uint64)")
def _ones(bits):  # type: ignore[no-untyped-def]
    bits -= (bits >> np.uint64(1)) & np.uint64(0x5555555555555555)
    bits = (bits & np.uint64(0x3333333333333333)) + ((bits >> np.uint64(2)) & np.uint64(0x3333333333333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((bits * np.uint64(0x0101010101010101)) >> np.uint64(56))


@compiled("int64(int64, uint64[:, ::1])")
def bucket_row(number, buckets):  # type: ignore[no-untyped-def]
    """Return the row of a bucket of n-grams, -1 for one that the model does not keep."""
    bits = buckets[number >> 6, 0]
    bit = np.uint64(1) << np.uint64(number & 63)
    return np.int64(buckets[number >> 6, 1]) + _ones(bits & (bit - np.uint64(1))) if bits & bit else -1


@compiled("int64(uint8[::1], int64, int64[::1], uint64[:, ::1], int32[::1])")
def find_ngrams(word, total, shape, buckets, found):  # type: ignore[no-untyped-def]
    """Write the rows of the n-grams of ``word[:total]``, which has its marks around it; return how many there are."""
    bucket, minn, maxn = np.uint32(shape[0]), shape[1], shape[2]
    count = 0
    for start in range(total):
        if word[start] & 0xC0 == 0x80:  # inside a character
            continue
        value = FNV_START
        at = start
        for n in range(1, maxn + 1):
            if at == total:
                break
            value = step(value, word[at])
            at += 1
            while at < total and word[at] & 0xC0 == 0x80:
                value = step(value, word[at])
                at += 1
            if n < minn or (n == 1 and (start == 0 or at == total)):
                continue
            row = bucket_row(np.int64(value % bucket), buckets)
            if row >= 0:
                found[count] = row
                count += 1
    return count


@compiled("void(float32[::1], float32[:, ::1], int32[:, ::1], int64[:, ::1], float32[::1], int32[::1], float32[::1])")
def _descend(hidden, output, tree, pending, chances, label, score):  # type: ignore[no-untyped-def]
    """Find the most probable leaf, left before right; the last of equally probable ones wins, as in fastText."""
    leaves = len(output)
    best, best_label = np.float32(-np.inf), -1
    pending[0, 0] = 2 * leaves - 2
    chances[0] = 0
    waiting = 1
    while waiting:
        waiting -= 1
        node, chance = pending[waiting, 0], chances[waiting]
        if chance < best:
            continue
        if node < leaves:
            best, best_label = chance, node
            continue
        dot = np.float32(0)
        for k in range(WIDTH):
            dot += output[node - leaves, k] * hidden[k]
        right = np.float32(1.0 / np.float64(np.float32(1) + np.float32(np.exp(-np.float64(dot)))))
        pending[waiting, 0] = tree[node, 1]
        chances[waiting] = chance + np.float32(np.log(np.float64(right) + 1e-5))
        pending[waiting + 1, 0] = tree[node, 0]
        chances[waiting + 1] = chance + np.float32(np.log(np.float64(np.float32(1) - right) + 1e-5))
        waiting += 2
    label[0] = best_label
    score[0] = np.exp(np.float64(best))


@compiled(
    numba.void(
        BYTES, numba.int64[::1], BYTES, numba.int64[::1], numba.int32[::1], numba.uint64[:, ::1],
        numba.float32[:, ::1], numba.float32[:, ::1], numba.int32[:, ::1], numba.int32[::1], numba.float32[::1],
    )
)  # fmt: skip
def predict(text, shape, letters, ends, slots, buckets, rows, output, tree, labels, scores):  # type: ignore[no-untyped-def]
    """Write the label and score of each line of ``text``."""
    longest = longest_line(text)
    word = np.empty(longest + 2, np.uint8)
    word[0] = WORD_BEGIN
    found = np.empty((longest + 2) * shape[2], np.int32)
    hidden = np.zeros(WIDTH, np.float32)
    pending, chances = np.empty((len(tree), 1), np.int64), np.empty(len(tree), np.float32)
    at = 0
    for line in range(len(labels)):
        hidden[:] = 0
        summed = 0
        while True:
            stop = copy_word(text, at, word)
            at += stop - 1
            if stop > 1:
                known = find_word(word, stop, letters, ends, slots)
                word[stop] = WORD_END
                count = find_ngrams(word, stop + 1, shape, buckets, found)
            else:
                known, count = -1, 0
            ended = text[at] == LINE_FEED
            at += 1
            if known >= 0:
                for k in range(WIDTH):
                    hidden[k] += rows[known, k]
                summed += 1
            for each in range(count):
                for k in range(WIDTH):
                    hidden[k] += rows[found[each], k]
            summed += count
            if ended:
                break
        for k in range(WIDTH):
            hidden[k] += rows[shape[3], k]
        summed += 1
        factor = np.float32(1.0 / summed)
        for k in range(WIDTH):
            hidden[k] *= factor
        _descend(hidden, output, tree, pending, chances, labels[line : line + 1], scores[line : line + 1])
