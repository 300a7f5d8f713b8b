"""Writes supervised fastText models, trained on a few lines: the package that tests have only predicts.

They are not compressed, as the bundled lid.176.ftz is.
"""

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
    maxn: int = 0,
    loss: str = "softmax",
    bucket: int = 500,
    kind: int = 3,
) -> Path:
    """Write a model of ``(label, text)`` lines."""
    rng = np.random.default_rng(0)
    counts = Counter(word for _, text in lines for word in [*text.split(), "</s>"])
    words = [word for word, _ in counts.most_common()]
    labels = Counter(label for label, _ in lines)
    names = [label for label, _ in labels.most_common()]
    uses_buckets = maxn > 0 or ngrams > 1
    rows = rng.normal(0, 0.7, (len(words) + bucket * uses_buckets, dim)).astype("<f4")
    places = {word: place for place, word in enumerate(words)}
    hidden = np.array([rows[[places[word] for word in [*text.split(), "</s>"]]].mean(axis=0) for _, text in lines])
    target = np.array([[name == label for name in names] for label, _ in lines], float)
    output = np.zeros((len(names), dim))
    for _ in range(300):  # logistic regression of each label on the mean rows
        output += 2 * (target - 1 / (1 + np.exp(-hidden @ output.T))).T @ hidden / len(lines)
    with open(path, "wb") as file:
        file.write(struct.pack("<ii", 793712314, 12))
        arguments = (dim, 5, 5, 1, 5, ngrams, LOSSES[loss], kind, bucket * uses_buckets, 0, maxn, 100)
        file.write(struct.pack("<12id", *arguments, 1e-4))
        sizes = (len(words) + len(names), len(words), len(names), counts.total(), -1)
        file.write(struct.pack("<iiiqq", *sizes))
        for name, count, label in [(w, counts[w], 0) for w in words] + [(n, labels[n], 1) for n in names]:
            file.write(name.encode() + b"\0" + struct.pack("<qb", count, label))
        file.write(struct.pack("<?qq", False, *rows.shape) + rows.tobytes())
        file.write(struct.pack("<?qq", False, *output.shape) + output.astype("<f4").tobytes())
    return path
