"""The compiled loop that reads texts with any supervised fastText model: each text's mean row.

Words, n-grams of characters and n-grams of words are hashed as fastText hashes them; rows are added in its order.
"""

from __future__ import annotations

import numba
import numpy as np

from filters.language.fasttext_kernels import (
    BYTES,
    FNV_START,
    LINE_FEED,
    WORD_BEGIN,
    WORD_END,
    bucket_row,
    copy_word,
    find_ngrams,
    find_word,
    longest_line,
    step,
)
from pipeline.compiling import compiled

_ROWS = numba.types.Array(numba.float32, 2, "C", readonly=True, aligned=False)
_WORD_NGRAM = np.uint64(116049371)
_END_WORD = np.frombuffer(b"</s>", np.uint8)


@compiled(
    numba.int64(numba.uint64[::1], numba.int64, numba.uint64, numba.uint64[:, ::1], _ROWS, numba.float32[::1])
)  # fmt: skip
def _add_word_ngrams(hashes, ngram, bucket, buckets, rows, hidden):  # type: ignore[no-untyped-def]
    """Add the rows of the n-grams of words with these hashes; return how many there are."""
    summed = 0
    for first in range(len(hashes)):
        wide = hashes[first]
        for last in range(first + 1, min(len(hashes), first + ngram)):
            wide = wide * _WORD_NGRAM + hashes[last]
            row = bucket_row(np.int64(wide % bucket), buckets)
            if row >= 0:
                for k in range(len(hidden)):
                    hidden[k] += rows[row, k]
                summed += 1
    return summed


@compiled(
    numba.void(
        BYTES, numba.int64[::1], BYTES, numba.int64[::1], numba.int32[::1], numba.uint64[:, ::1], _ROWS, numba.float32[:, ::1],
    )
)  # fmt: skip
def mean_rows(text, shape, letters, ends, slots, buckets, rows, hidden):  # type: ignore[no-untyped-def]
    """Write the mean row of each line of ``text``, zeros for a line without rows.

    ``shape`` holds bucket, minn, maxn, the row of the end of a line (-1: none), and the words of an n-gram.
    """
    maxn, end_row, ngram = shape[2], shape[3], shape[4]
    bucket = np.uint64(shape[0])
    dim = hidden.shape[1]
    longest = longest_line(text)
    word = np.empty(longest + 6, np.uint8)
    word[0] = WORD_BEGIN
    found = np.empty((longest + 2) * max(1, maxn), np.int32)
    hashes = np.empty(longest // 2 + 3, np.uint64)
    at = 0
    for line in range(len(hidden)):
        summed, seen = 0, 0
        while True:
            stop = copy_word(text, at, word)
            at += stop - 1
            ended = text[at] == LINE_FEED
            at += 1
            if stop > 1:
                known = find_word(word, stop, letters, ends, slots)
                if known >= 0:
                    for k in range(dim):
                        hidden[line, k] += rows[known, k]
                    summed += 1
                if maxn > 0:
                    word[stop] = WORD_END
                    count = find_ngrams(word, stop + 1, shape, buckets, found)
                    for each in range(count):
                        for k in range(dim):
                            hidden[line, k] += rows[found[each], k]
                    summed += count
                if ngram > 1:
                    value = FNV_START
                    for place in range(1, stop):
                        value = step(value, word[place])
                    hashes[seen] = np.uint64(np.int64(np.int32(value)))  # fastText widens it with its sign
                    seen += 1
            if ended:
                break
        if end_row >= 0:
            for k in range(dim):
                hidden[line, k] += rows[end_row, k]
            summed += 1
        if ngram > 1:
            value = FNV_START
            for byte in _END_WORD:
                value = step(value, byte)
            hashes[seen] = np.uint64(np.int64(np.int32(value)))
            seen += 1
            summed += _add_word_ngrams(hashes[:seen], ngram, bucket, buckets, rows, hidden[line])
        if summed:
            factor = np.float32(1.0 / summed)
            for k in range(dim):
                hidden[line, k] *= factor
