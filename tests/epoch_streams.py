"""Streams of one epoch or of several over a small dataset, and their batches as lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pipeline
from tests.shard_samples import make_documents, write_dataset
from tests.text_samples import write_texts

SEQ_LEN, BATCH = 16, 2


def make(dataset: Path, epochs: int | None = 1) -> pipeline.Stream:
    return pipeline.ShardDataset(dataset, epochs=epochs).shuffle(seed=1, lanes=6).pack(SEQ_LEN).batch(BATCH)


def ids(batches: Any) -> list[Any]:
    return [batch["input_ids"].tolist() for batch in batches]


def small_dataset(directory: Path) -> Path:
    write_dataset(directory, [make_documents(n, seed=n) for n in (12, 1, 9)])
    return directory


def small_texts(path: Path) -> Path:
    return write_texts(path, [f"text {number} " * (1 + number % 5) for number in range(60)])
