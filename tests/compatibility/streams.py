"""Streams whose states and data an earlier checkout wrote to ``tests/compatibility``: what is read for as long as versions stay.

Run as ``python -m tests.compatibility.streams FOLDER`` by the checkout whose format is to be kept, it writes them.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pipeline

BATCHES = 5  # after the state


def is_odd(ids: Any) -> bool:
    return len(ids) % 2 == 1


def streams(folder: Path) -> dict[str, pipeline.Stream]:
    """Return a stream of each kind over a dataset and a file of texts."""

    def shards(split: str = "train", epochs: int | None = None) -> pipeline.ShardDataset:
        return pipeline.ShardDataset(folder / "dataset", split=split, epochs=epochs)

    def texts(epochs: int | None = None) -> pipeline.TextDataset:
        return pipeline.TextDataset(str(folder / "texts.jsonl"), "bytes", epochs=epochs)

    sources = {"a": shards(), "b": shards("val")}
    return {
        "packed": shards().shuffle(seed=1).pack(64).batch(4),
        "epochs": shards(epochs=2).shuffle(seed=1).pack(64, stride=32).batch(4),
        "documents": shards().shuffle(seed=2).documents(bucket=4).batch(4),
        "sample": shards().shuffle(seed=2).sample(64).batch(4),
        "filter": shards().shuffle(seed=2).filter(is_odd, name="odd").pack(64).batch(4),
        "best fit": shards().shuffle(seed=2).pack(64, best_fit=True).batch(4),
        "mix": pipeline.mix(sources, {"a": 0.7, "b": 0.3}).shuffle(seed=3).pack(64).batch(4),
        "texts": texts().shuffle(seed=2).pack(64).batch(4),
        "bounded texts": texts(epochs=2).pack(64).batch(4),
    }


def next_batches(stream: pipeline.Stream) -> list[Any]:
    return [batch["input_ids"].tolist() for batch in islice(stream, BATCHES)]


def write(folder: Path) -> None:
    """Write the data, and of each stream its state after seven batches and what follows."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{"id": str(k), "text": f"Text {k}: " + "of some words, " * (k % 7 + 3)} for k in range(60)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pipeline.build(
        str(folder / "texts.jsonl"),
        folder / "dataset",
        tokenizer="bytes",
        rules=(),
        val_fraction=0.2,
        dedup=False,
        workers=1,
    )
    (folder / "dataset" / "run.json").unlink()
    saved = {}
    for name, stream in streams(folder).items():
        batches = iter(stream)
        for _ in range(7):
            next(batches)
        state = stream.state_dict()
        saved[name] = {"state": state, "next": [next(batches)["input_ids"].tolist() for _ in range(BATCHES)]}
    (folder / "states.json").write_text(json.dumps(saved) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
