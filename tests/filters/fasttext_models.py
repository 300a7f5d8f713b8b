"""Writes supervised fastText models of every kind, trained on a few lines: the package that tests have only predicts."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

LOSSES = {"hs": 1, "ns": 2, "softmax": 3, "ova": 4}


def write_model(
    path: Path,
    lines: Sequence[tuple[str, str]],
    *,
    dim: int = 20,
    ngrams: int = 1,
    minn: int = 0,
    maxn: int = 0,
    loss: str = "softmax",
    bucket: int = 500,
    kept: int = 0,
    kind: int = 3,
) -> Path:
    """Write a model of ``(label, text)`` lines; with ``kept``, a compressed one that kept so many buckets."""
    rng = np.random.default_rng(0)
    counts = Counter(word for _, text in lines for word in [*text.split(), "</s>"])
    words = [word for word, _ in counts.most_common()]
    labels = Counter(label for label, _ in lines)
    names = [label for label, _ in labels.most_common()]
    uses_buckets = maxn > 0 or ngrams > 1
    rows = rng.normal(0, 0.7, (len(words) + (kept or bucket if uses_buckets else 0), dim)).astype("<f4")
    places = {word: place for place, word in enumerate(words)}
    hidden = np.array([rows[[places[word] for word in [*text.split(), "</s>"]]].mean(axis=0) for _, text in lines])
    target = np.array([[name == label for name in names] for label, _ in lines], float)
    output = np.zeros((len(names), dim))
    for _ in range(300):  # logistic regression of each label on the mean rows
        output += 2 * (target - 1 / (1 + np.exp(-hidden @ output.T))).T @ hidden / len(lines)
    pruned = (
        sorted(rng.choice(bucket, kept, replace=False).tolist(), key=lambda number: number * 7919 % bucket)
        if kept
        else []
    )
    with open(path, "wb") as file:
        file.write(struct.pack("<ii", 793712314, 12))
        file.write(
            struct.pack(
                "<12id",
                dim,
                5,
                5,
                1,
                5,
                ngrams,
                LOSSES[loss],
                kind,
                bucket if uses_buckets else 0,
                minn,
                maxn,
                100,
                1e-4,
            )
        )
        sizes = (len(words) + len(names), len(words), len(names), counts.total(), len(pruned) if kept else -1)
        file.write(struct.pack("<iiiqq", *sizes))
        for name, count, label in [(w, counts[w], 0) for w in words] + [(n, labels[n], 1) for n in names]:
            file.write(name.encode() + b"\0" + struct.pack("<qb", count, label))
        for place, number in enumerate(pruned):
            file.write(struct.pack("<ii", number, place))
        if kept:
            file.write(compressed(rows, rng))
        else:
            file.write(struct.pack("<?qq", False, *rows.shape) + rows.tobytes())
        file.write(struct.pack("<?qq", False, *output.shape) + output.astype("<f4").tobytes())
    return path


def compressed(rows: np.ndarray, rng: np.random.Generator) -> bytes:
    """Return a product-quantized matrix with norms; its values are those of its random centroids, not of ``rows``."""
    count, dim = rows.shape
    parts, last = -(-dim // 2), dim % 2 or 2
    codes = rng.integers(0, 256, (count, parts), np.uint8)
    centroids = rng.normal(0, 0.7, dim * 256).astype("<f4")
    norms, norm_centroids = rng.integers(0, 256, count, np.uint8), rng.uniform(0.5, 2, 256).astype("<f4")
    head = struct.pack("<??qqi", True, True, count, dim, codes.size)
    body = codes.tobytes() + struct.pack("<4i", dim, parts, 2, last) + centroids.tobytes()
    return head + body + norms.tobytes() + struct.pack("<4i", 1, 1, 1, 1) + norm_centroids.tobytes()
