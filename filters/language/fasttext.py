"""A compressed fastText model read into arrays, and a compiled loop over them: fastText's answers in a fifth of the time.

fastText spends most of its time on hash maps, strings and unpacking. Here each row is unpacked once, and which rows a
text adds up is found by counting bits. Sums are taken in fastText's order and precision, so that scores are equal to
their last digits; the library is the definition, with which tests compare this file.

    word        the characters between white space or NUL bytes; the end of a line is a word too
    rows        the word's own, where the model knows it; then those of its n-grams of `minn` to `maxn` characters, ``<``
                and ``>`` around the word, each by FNV-1a of its bytes modulo `bucket`, where the model kept that bucket
    hidden      the mean of all rows
    label       the leaf of the Huffman tree over labels that has the greatest product of probabilities on its way
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from filters.language.fasttext_kernels import WIDTH, fill, predict
from filters.language.model_file import read_header

_HIERARCHICAL_SOFTMAX, _SUPERVISED = 1, 3
_CENTROIDS = 256
_BLOCK = 1 << 20
_OUTSIDE = ("__label__", "</s>")  # fastText treats words that contain these specially


class FastText:
    """The model in a file. Raises ValueError for a kind of model that only the library reads.

    This reads supervised, compressed models of subwords with hierarchical softmax, without word n-grams and with up to 16
    dimensions, such as lid.176.ftz.

    >>> from filters.language.language import bundled_model
    >>> [label for label, score in FastText(bundled_model()).predict(["ein ganz normaler Satz\\n"])]
    ['__label__de']
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._read(file)

    def _read(self, file: BinaryIO) -> None:
        dim, word_ngrams, loss, kind, bucket, minn, maxn, entries, words, labels, pruned = read_header(file)
        if (loss, kind, word_ngrams) != (_HIERARCHICAL_SOFTMAX, _SUPERVISED, 1) or not 0 < minn <= maxn or dim > WIDTH:
            raise ValueError("not a model of subwords with hierarchical softmax and up to 16 dimensions")
        if pruned <= 0 or labels < 2 or entries != words + labels:
            raise ValueError("no pruned dictionary of words, then labels")
        names, counts = dictionary(file, entries)
        known = {name: place for place, name in enumerate(names[:words])}
        kept = take(file, "i4", 2 * pruned).reshape(-1, 2)
        fit = kept.min() >= 0 and (kept < (bucket, pruned)).all() and len(np.unique(kept[:, 0])) == pruned
        if b"</s>" not in known or len(known) < words or not fit:
            raise ValueError("its dictionary is damaged or has no end of line")
        rows = quantized(file, dim)
        if take(file, "?", 1)[0] or take(file, "i8", 2).tolist() != [labels, dim] or len(rows) < words + pruned:
            raise ValueError("its output is compressed, or its parts do not fit")
        self.labels = tuple(name.decode() for name in names[words:])
        self._output = np.zeros((labels, WIDTH), np.float32)
        self._output[:, :dim] = take(file, "f4", labels * dim).reshape(labels, dim)
        self._tree = huffman(counts[words:])
        # First the rows of words, then those of buckets in the order of their numbers, so that the row of a bucket
        # is the number of kept buckets before it.
        order = np.argsort(kept[:, 0])
        self._rows = np.zeros((words + pruned, WIDTH), np.float32)
        self._rows[:, :dim] = np.concatenate([rows[:words], rows[words + kept[order, 1]]])
        self._buckets = ranks(kept[order, 0], bucket, words)
        self._shape = np.array([bucket, minn, maxn, known[b"</s>"]], np.int64)
        self._letters = np.frombuffer(b"".join(known), np.uint8)
        self._ends = np.cumsum([0, *map(len, known)], dtype=np.int64)
        self._slots = word_table(self._letters, self._ends)

    def predict(self, texts: Sequence[str]) -> list[tuple[str, float]]:
        """Return the best label of each text and its probability, as fastText's ``predict`` gives them.

        Each text must pass `readable`. Raises ValueError for a text that does not end in its only line feed. A character
        that UTF-8 cannot encode counts as "?".
        """
        if not all(text.find("\n") == len(text) - 1 >= 0 for text in texts):
            raise ValueError("each text must end in a line feed and hold no other")
        joined = np.frombuffer("".join(texts).encode("utf-8", "replace"), np.uint8)
        labels, scores = np.empty(len(texts), np.int32), np.empty(len(texts), np.float32)
        known = (self._letters, self._ends, self._slots)
        predict(joined, self._shape, *known, self._buckets, self._rows, self._output, self._tree, labels, scores)
        return [(self.labels[label], score) for label, score in zip(labels.tolist(), scores.tolist(), strict=True)]


def readable(texts: Sequence[str]) -> list[int]:
    """Return the places of the texts that may be given to `FastText.predict`; the library reads all.

    >>> readable(["a text", "a __label__", "another text"])
    [0, 2]
    """
    return [place for place, text in enumerate(texts) if not any(word in text for word in _OUTSIDE)]


def take(file: BinaryIO, dtype: str, count: int) -> NDArray[Any]:
    kind = np.dtype(dtype).newbyteorder("<")
    return np.frombuffer(file.read(kind.itemsize * count), kind, count)


def dictionary(file: BinaryIO, entries: int) -> tuple[list[bytes], list[int]]:
    """Return names and counts of words and labels: each name ends in a zero byte; count and type take nine more."""
    start, data, at = file.tell(), b"", 0
    names, counts = [], []
    for _ in range(entries):
        end = data.find(0, at)
        while end < 0 or end + 10 > len(data):
            more = file.read(_BLOCK)
            if not more:
                raise ValueError("its dictionary is cut short")
            start, data, at = start + at, data[at:] + more, 0
            end = data.find(0)
        names.append(data[at:end])
        counts.append(int.from_bytes(data[end + 1 : end + 9], "little", signed=True))
        at = end + 10
    file.seek(start + at)
    return names, counts


def quantized(file: BinaryIO, dim: int) -> NDArray[np.float32]:
    """Return the rows of a product-quantized matrix, ``[rows, dim]``."""
    quantized, norms = take(file, "?", 2).tolist()
    if not quantized:
        raise ValueError("its input is not compressed")
    rows, _ = take(file, "i8", 2).tolist()
    codes = take(file, "u1", int(take(file, "i4", 1)[0])).reshape(rows, -1)
    values = _unpacked(codes, *_quantizer(file))
    if norms:
        codes = take(file, "u1", rows).reshape(rows, 1)
        values = values * _unpacked(codes, *_quantizer(file))
    if values.shape[1] != dim:
        raise ValueError("its rows have another width")
    return values


def _quantizer(file: BinaryIO) -> tuple[list[int], NDArray[np.float32]]:
    layout = take(file, "i4", 4).tolist()
    return layout, take(file, "f4", layout[0] * _CENTROIDS)


def _unpacked(codes: NDArray[np.uint8], layout: list[int], centroids: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return each row's values: its k-th code chooses a centroid of the k-th part of a row; the last may be shorter."""
    _, parts, width, last = layout
    found = []
    for part in range(parts):
        size = last if part == parts - 1 else width
        begin = part * _CENTROIDS * width
        found.append(centroids[begin : begin + _CENTROIDS * size].reshape(_CENTROIDS, size)[codes[:, part]])
    return np.concatenate(found, axis=1)


def huffman(counts: list[int]) -> NDArray[np.int32]:
    """Return each node's two children, -1 at the leaves, which come first, in the order of labels; the root is last."""
    leaves = len(counts)
    weights = [*counts, *[10**15] * (leaves - 1)]
    tree = np.full((2 * leaves - 1, 2), -1, np.int32)
    leaf, node = leaves - 1, leaves
    for parent in range(leaves, 2 * leaves - 1):
        for side in range(2):
            if leaf >= 0 and weights[leaf] < weights[node]:
                tree[parent, side], leaf = leaf, leaf - 1
            else:
                tree[parent, side], node = node, node + 1
        weights[parent] = weights[tree[parent, 0]] + weights[tree[parent, 1]]
    return tree


def ranks(kept: NDArray[np.int32], bucket: int, first: int) -> NDArray[np.uint64]:
    """Return, for every 64 buckets, a bit for each that the model kept, and the row of the first of these."""
    there = np.zeros(-(-bucket // 64) * 64, np.uint8)
    there[kept] = 1
    bits = np.packbits(there, bitorder="little").view("<u8").astype(np.uint64)
    counts = np.cumsum(there.reshape(-1, 64).sum(axis=1))
    return np.stack([bits, first + np.concatenate([[0], counts[:-1]]).astype(np.uint64)], axis=1)


def word_table(letters: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return an open-addressing table of the words, at most a quarter full, by the hash of their bytes; -1 is an empty slot."""
    size = 16
    while size < 4 * len(ends):
        size *= 2
    slots = np.full(size, -1, np.int32)
    fill(letters, ends, slots)
    return slots
