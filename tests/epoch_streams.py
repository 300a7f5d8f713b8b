"""Streams of one epoch or of several over a small dataset, and their batches as lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pipeline

SEQ_LEN, BATCH = 16, 2


def make(dataset: Path, epochs: int | None = 1) -> pipeline.Stream:
    return pipeline.ShardDataset(dataset, epochs=epochs).shuffle(seed=1, lanes=6).pack(SEQ_LEN).batch(BATCH)


def ids(batches: Any) -> list[Any]:
    return [batch["input_ids"].tolist() for batch in batches]
