"""The usual measures of builds, all taken in one compiled pass over a document's characters.

`filters.measures` defines each number, and tests compare both. Here, parts are compared by 64-bit hashes, not by their
characters.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from filters.compiled import LINE_MEASURES, NGRAM_MEASURES, SCANNED
from filters.compiled.repetition_kernels import mix, table_size
from filters.compiled.scan_kernels import scan_texts
from filters.compiled.text_arrays import code_points, fnv
from filters.measures.words import stop_word_spellings
from filters.text_view import By
from filters.unicode_classes import kind_table


@functools.lru_cache(maxsize=4096)
def _stop_table(words: tuple[str, ...]) -> tuple[NDArray[np.uint64], NDArray[np.int16]]:
    """Return an open-addressing table: hashes of the spellings, and the indexes of their stop words (-1: empty)."""
    spellings = stop_word_spellings(words)
    size = int(table_size(4 * len(spellings)))  # sparse: most words find their slot empty
    hashes, indexes = np.zeros(size, np.uint64), np.full(size, -1, np.int16)
    for spelling, index in spellings.items():
        mixed = np.uint64(mix(np.uint64(fnv(spelling))))
        slot = int(mixed) & (size - 1)
        while indexes[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        hashes[slot], indexes[slot] = mixed, index
    return hashes, indexes


def scan(
    texts: Sequence[str], stop_words: tuple[str, ...] = (), by: By = "spaces", wanted: Collection[str] = SCANNED
) -> NDArray[np.float64]:
    """Return the measures of `SCANNED` for each text, ``[texts, measures]``; the measure ``stop_words`` counts `stop_words`.

    `by`: how words are counted. Measures that are not `wanted` may be 0.

    >>> dict(zip(SCANNED, scan(["To be, or not to be!"])[0].tolist(), strict=True))["words"]
    6.0
    """
    codes, ends = code_points(texts)
    values = np.zeros((len(texts), len(SCANNED)), np.float64)
    hashes, indexes = _stop_table(stop_words)
    lines, ngrams = (not measures.isdisjoint(wanted) for measures in (LINE_MEASURES, NGRAM_MEASURES))
    parts = by == "pieces", lines, "sentences" in wanted, ngrams
    scan_texts(codes, ends, kind_table(), *parts, hashes, indexes, len(stop_words), values)
    return values
