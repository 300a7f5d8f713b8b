"""Measure the report of leaks: plant documents of validation into training, and hold the report to a comparison of all words.

    python scripts/bench_leaks.py corpus/*.jsonl.zst

The corpus is built once to learn which documents are validation. Then some of these are copied into new documents: whole, or a
passage of 13 to 60 words, within the words of a document of training. Each is built again with its copies. New documents may be
drawn for validation, too. The truth compares each run of 13 words of validation with each of training.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pipeline
from pipeline.builder.dedup.decontaminate import NGRAM, windows
from pipeline.finished.documents import DatasetDocuments
from scripts.bench.data import read_inputs
from scripts.bench.report import table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+")
    parser.add_argument("--tokenizer", default="train:8000")
    parser.add_argument("--plant", type=int, default=50, help="documents of validation that are copied (default: 50)")
    options = parser.parse_args(arguments)
    draw = random.Random(0)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        corpus = [document.text for document in read_inputs(options.inputs)]
        splits = build(Path(folder), "none", corpus, options.tokenizer, rows)
        chosen = draw.sample(splits["val"], min(options.plant, len(splits["val"])))
        hosts = draw.sample(splits["train"], len(chosen))
        pairs = list(zip(chosen, hosts, strict=True))
        passages = [within(host, passage(text, draw), draw) for text, host in pairs]
        build(Path(folder), "passages", corpus + passages, options.tokenizer, rows)
        build(
            Path(folder), "whole", corpus + [within(host, text, draw) for text, host in pairs], options.tokenizer, rows
        )
    heads = ["planted", "documents of val", "words shared: report", "truth", "80% shared: report", "truth"]
    table("What of val is in train", heads, rows)
    return 0


def passage(text: str, draw: random.Random) -> str:
    """Return 13 to 60 words of a text in a row."""
    words, length = text.split(), draw.randint(13, 60)
    first = draw.randint(0, max(0, len(words) - length))
    return " ".join(words[first : first + length])


def within(host: str, text: str, draw: random.Random) -> str:
    words = host.split(" ")
    at = draw.randint(0, len(words))
    return " ".join([*words[:at], text, *words[at:]])


def build(folder: Path, name: str, texts: Sequence[str], tokenizer: str, rows: list[list[str]]) -> dict[str, list[str]]:
    """Build a dataset of texts, add what the report says and the truth to ``rows``, and return the texts of the splits."""
    source, output = folder / f"{name}.jsonl", folder / name
    source.write_bytes(b"".join(orjson.dumps({"text": text}) + b"\n" for text in texts))
    quiet = pipeline.Progress(quiet=True)
    found = pipeline.build(
        source, output, tokenizer=tokenizer, dedup=False, rules=(), val_fraction=0.005, progress=quiet
    ).counts["leaks"]
    documents, splits = DatasetDocuments(output), {"train": list[str](), "val": list[str]()}
    for split, shard in documents.shards():
        splits[split] += [text for batch in documents.texts(shard) for text in batch]
    words, shared, mostly = truth(splits)
    told, held = found["shared_words"] / found["words"], shared / words
    near = found["equal"] + found["mostly"]
    rows.append(
        [name, f"{found['documents']:,} of {found['of']:,}", f"{told:.2%}", f"{held:.2%}", f"{near}", f"{mostly}"]
    )
    return splits


def truth(splits: dict[str, list[str]]) -> tuple[int, int, int]:
    """Return the words of validation, those in runs that training has, and the documents with 80% of their words in these."""
    sizes = [len(each) for each in windows(splits["val"], 1)]
    runs = [
        each if size >= NGRAM else each[:0] for each, size in zip(windows(splits["val"], NGRAM), sizes, strict=True)
    ]
    wanted = np.unique(np.concatenate(runs))
    is_found = np.zeros(len(wanted), bool)
    for first in range(0, len(splits["train"]), 256):
        is_found |= np.isin(wanted, np.concatenate([*windows(splits["train"][first : first + 256], NGRAM)]))
    shared = []
    for hashes, size in zip(runs, sizes, strict=True):
        covered = np.zeros(size, bool)
        for at in np.flatnonzero(is_found[np.searchsorted(wanted, hashes)]).tolist():
            covered[at : at + NGRAM] = True
        shared.append(int(covered.sum()))
    return sum(sizes), sum(shared), sum(a > 0 and a >= 0.8 * b for a, b in zip(shared, sizes, strict=True))


if __name__ == "__main__":
    sys.exit(main())
