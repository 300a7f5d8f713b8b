"""The probability of one label by any supervised fastText model: classifiers of quality, topics, toxicity.

Every kind of model is read: compressed or not, with n-grams of words or of characters, with softmax, hierarchical
softmax, negative sampling or one-vs-all. Rows of a model that is not compressed are mapped from its file, so that they are
in memory once for all processes.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from filters.language.fasttext import dictionary, huffman, quantized, ranks, readable, take, word_table
from filters.language.model_file import check_label, read_header

_HIERARCHICAL, _NEGATIVE, _SOFTMAX, _ONE_VS_ALL = 1, 2, 3, 4
_EXTRA = 1e-5  # that fastText adds to each probability before its logarithm
_BATCH_BYTES = 1 << 22


@functools.lru_cache(maxsize=4)
def load_scorer(model: Path, label: str) -> FastTextScorer:
    """Return the scorer of a model and label, loaded once in each process."""
    return FastTextScorer(model, label)


class FastTextScorer:
    """Scores texts by one label of a supervised fastText model.

    >>> from filters.language.language import bundled_model
    >>> FastTextScorer(bundled_model(), "__label__de").score(["Ein ganz normaler Satz."]).round(1).tolist()
    [0.7]
    """

    def __init__(self, model: Path, label: str) -> None:
        check_label(model, label)
        self._model, self._label = model, label
        self._library: Any = None
        self._lock = threading.Lock()
        with model.open("rb") as file:
            self._read(file)

    def _read(self, file: BinaryIO) -> None:
        header = read_header(file)
        names, counts = dictionary(file, header.entries)
        words = header.words
        known = {name: place for place, name in enumerate(names[:words])}
        kept = take(file, "i4", 2 * max(0, header.pruned)).reshape(-1, 2)
        rows = quantized(file, header.dim) if _flag(file) else self._dense(file)
        output = quantized(file, header.dim) if _flag(file) else np.array(self._dense(file))
        if header.pruned > 0:  # as for lid.176: rows of buckets in the order of their numbers
            order = np.argsort(kept[:, 0])
            rows = np.concatenate([rows[:words], rows[words + kept[order, 1]]])
            buckets = kept[order, 0]
        else:
            buckets = np.arange(header.bucket if header.pruned < 0 and len(rows) > words else 0, dtype=np.int32)
        self._rows = rows
        self._buckets = ranks(buckets, max(1, header.bucket), words)
        end = known.get(b"</s>", -1)
        uses_ngrams = len(buckets) > 0
        shape = [max(1, header.bucket), header.minn, header.maxn if uses_ngrams else 0, end]
        self._shape = np.array([*shape, header.word_ngrams if uses_ngrams else 1], np.int64)
        self._letters = np.frombuffer(b"".join(known) or b" ", np.uint8)
        self._ends = np.cumsum([0, *map(len, known)], dtype=np.int64)
        self._slots = word_table(self._letters, self._ends)
        place = names[words:].index(self._label.encode())
        self._loss, self._place, self._output = header.loss, place, output
        if header.loss == _HIERARCHICAL:
            self._output, self._signs = _path(huffman(counts[words:]), place, output)

    def _dense(self, file: BinaryIO) -> NDArray[np.float32]:
        rows, columns = take(file, "i8", 2).tolist()
        at, size = file.tell(), 4 * rows * columns
        mapped = np.memmap(file, np.uint8, "r", at, size)
        file.seek(at + size)
        return np.asarray(mapped).view(np.dtype("<f4")).reshape(rows, columns)

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the probability of the label for each text, its lines joined by spaces, as the library's ``predict`` has it."""
        lines = [" ".join(text.splitlines()) for text in texts]
        scores = np.zeros(len(lines), np.float64)
        fit = readable(lines)
        first = 0
        while first < len(fit):
            last, size = first, 0
            while last < len(fit) and size < _BATCH_BYTES:
                size, last = size + len(lines[fit[last]]), last + 1
            places = fit[first:last]
            scores[places] = self._score([lines[k] for k in places])
            first = last
        for k in set(range(len(lines))) - set(fit):
            scores[k] = self._by_library(lines[k])
        return np.minimum(scores, 1.0)

    def _score(self, lines: list[str]) -> NDArray[np.float64]:
        from filters.language.fasttext_hidden import mean_rows

        joined = np.frombuffer("".join([line + "\n" for line in lines]).encode("utf-8", "replace"), np.uint8)
        hidden = np.zeros((len(lines), self._rows.shape[1]), np.float32)
        words = (self._letters, self._ends, self._slots)
        mean_rows(joined, self._shape, *words, self._buckets, self._rows, hidden)
        if self._loss == _HIERARCHICAL:
            right = 1.0 / (1.0 + np.exp(-_products(self._output, hidden)))
            chances = np.where(self._signs, right, 1.0 - right)
            return np.asarray(np.exp(np.log(chances + _EXTRA).sum(axis=1)))
        if self._loss == _SOFTMAX:
            logits = _products(self._output, hidden)
            exps = np.exp(logits - logits.max(axis=1, keepdims=True))
            return np.asarray(exps[:, self._place] / exps.sum(axis=1)) + _EXTRA
        return _sigmoid(_products(self._output[self._place], hidden).astype(np.float32)) + _EXTRA

    def _by_library(self, line: str) -> float:
        """Score a text with words that fastText treats specially."""
        import fasttext

        with self._lock:
            if self._library is None:
                self._library = fasttext.load_model(str(self._model)).f.predict
            found = self._library(line.encode("utf-8", "replace").decode() + "\n", -1, 0.0, "strict")
        return float(next((score for score, label in found if label == self._label), 0.0))


def _flag(file: BinaryIO) -> bool:
    """Read whether a matrix is compressed; `quantized` reads the flag itself, so the file goes back before it."""
    flag = bool(take(file, "?", 1)[0])
    if flag:
        file.seek(-1, 1)
    return flag


def _products(output: NDArray[np.float32], hidden: NDArray[np.float32]) -> NDArray[np.float64]:
    """Multiply each row alone: in one product of all rows a score would be rounded by the size of its batch."""
    return np.array([output @ row for row in hidden], np.float64)


def _sigmoid(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the logistic function by fastText's table of 512 values from -8 to 8."""
    table = 1.0 / (1.0 + np.exp(-(np.arange(513) * 16 / 512 - 8.0)))
    found = table[np.clip((values + 8) * 32, 0, 512).astype(np.int64)]
    return np.where(values < -8, 0.0, np.where(values > 8, 1.0, found))


def _path(
    tree: NDArray[np.int32], leaf: int, output: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the rows of the output on the way from the root to a leaf, and where that goes right."""
    parents = {
        int(child): (node, side) for node, pair in enumerate(tree) for side, child in enumerate(pair) if child >= 0
    }
    rows, signs = [], []
    node = leaf
    while node in parents:
        node, side = parents[node]
        rows.append(output[node - len(tree) // 2 - 1])
        signs.append(side == 1)
    return np.array(rows), np.array(signs, bool)
