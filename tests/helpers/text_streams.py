"""Streams of raw text that several test files make, and their batches as lists."""

from __future__ import annotations

from typing import Any

import pipeline
from tests.helpers.text_samples import make_texts

TEXTS = [make_texts(count, seed) for seed, count in enumerate((70, 1, 45, 90))]


def make(files: Any, **options: Any) -> pipeline.Stream:
    return pipeline.TextDataset(files, tokenizer="bytes", **options).shuffle(seed=3, window=72, lanes=36)


def packed(files: Any, ranks: int = 1, **options: Any) -> pipeline.Stream:
    """A global batch of 6 rows, whatever the number of ranks."""
    return make(files, **options).pack(64).batch(6 // ranks)


def joined(ranks: list[list[Any]]) -> list[Any]:
    """Return the global batches of ranks: their rows, rank after rank."""
    return [[row for batch in step for row in batch] for step in zip(*ranks, strict=True)]


def ids(batches: Any) -> list[Any]:
    return [batch["input_ids"].tolist() for batch in batches]


def is_short(record: Any) -> bool:
    return len(record.text) < 150
