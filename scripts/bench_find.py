"""Measure `pipeline.find`: recall against brute force on planted copies, and the time and size of the index.

    python scripts/bench_find.py corpus/*.jsonl.zst
    python scripts/bench_find.py --synthetic 1000000

A dataset is built of the inputs, and searched for edited copies of its documents. The truth is the Jaccard similarity of the
word 5-grams of each copy and each document. ``--synthetic N`` builds a dataset of N made-up documents of 60 words instead.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pipeline
from pipeline.builder.dedup.minhash import MinHasher, shingle_sets
from pipeline.finished.documents import DatasetDocuments
from pipeline.finished.find import Match, find
from pipeline.finished.signature_index import open_index
from pipeline.progress import Progress

QUIET = Progress(quiet=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="*", help="raw text, as for build_shards.py")
    parser.add_argument("--synthetic", type=int, metavar="N", help="make up N documents instead")
    parser.add_argument("--tokenizer", default="bytes", help="tokenizer of the dataset (default: bytes)")
    parser.add_argument(
        "--keep-texts", choices=("parquet", "jsonl.zst"), help="keep the texts, which passages are read from"
    )
    parser.add_argument("--copies", type=int, default=3_000, help="edited copies to search for (default: 3000)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder, "set")
        inputs = (
            [str(write_synthetic(Path(folder, "in.jsonl"), options.synthetic))] if options.synthetic else options.inputs
        )
        settings = {"tokenizer": options.tokenizer, "keep_texts": options.keep_texts, "rules": (), "val_fraction": 0}
        pipeline.build(inputs, dataset, pipeline.Recipe(**settings), progress=QUIET)
        documents = DatasetDocuments(dataset)
        texts = [text for _, shard in documents.shards() for some in documents.texts(shard) for text in some]
        generator = random.Random(0)
        chosen = [generator.choice(texts) for _ in range(options.copies)]
        copies = [edited(text, generator) for text in chosen]
        found = print_speed(documents, dataset, Path(folder, "index"), copies)
        if not options.synthetic:
            print_passages(dataset, documents, chosen)
            print_recall(texts, copies, found)
    return 0


def write_synthetic(path: Path, count: int) -> Path:
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        for number in range(count):
            text = " ".join(f"w{word}" for word in generator.integers(0, 30_000, 60).tolist())
            file.write(orjson.dumps({"id": str(number), "text": text}) + b"\n")
    return path


def edited(text: str, generator: random.Random) -> str:
    """Return a text in which up to one in twelve words is another word."""
    words = text.split(" ")
    for at in generator.sample(range(len(words)), int(len(words) * generator.random() / 12)):
        words[at] = f"word{generator.randrange(10**6)}"
    return " ".join(words)


def print_speed(documents: DatasetDocuments, dataset: Path, index: Path, copies: Sequence[str]) -> list[list[Match]]:
    """Print the time and size of the index, and the times of a look-up and of a whole query; return what was found."""
    count = len(documents)
    started = time.process_time()
    open_index(documents, index, QUIET)
    size = sum(path.stat().st_size for path in index.iterdir())
    print(
        f"{time.process_time() - started:10.1f}  s of CPU to make the index of {count:,d} documents, {size / 1e6:,.0f} MB"
    )
    started = time.perf_counter()
    opened = open_index(documents, index, QUIET)
    print(f"{(time.perf_counter() - started) * 1e3:10.1f}  ms to open it")
    signatures = MinHasher().signatures(copies)
    started = time.perf_counter()
    for signature in signatures:
        opened.alike(signature)
    print(f"{(time.perf_counter() - started) / len(copies) * 1e3:10.2f}  ms to look up a signature")
    started = time.perf_counter()
    found = find(dataset, copies, index=index, progress=QUIET)
    print(
        f"{(time.perf_counter() - started) / len(copies) * 1e3:10.2f}  ms for each of {len(copies):,d} texts in one call"
    )
    started = time.perf_counter()
    find(dataset, copies[:1], index=index, progress=QUIET)
    print(f"{(time.perf_counter() - started) * 1e3:10.1f}  ms for a call with one text")
    return found


def print_passages(dataset: Path, documents: DatasetDocuments, texts: Sequence[str]) -> None:
    started = time.process_time()
    find(dataset, [text[:300] for text in texts[:1000]], passages=True, most=1, progress=QUIET)
    seconds, tokens = time.process_time() - started, sum(split.tokens for split in documents.manifest.splits.values())
    print(f"{tokens / seconds / 1e6:10.2f}  M tokens a second of CPU are read for passages of 1,000 texts")


def print_recall(texts: Sequence[str], copies: Sequence[str], found: Sequence[Sequence[Match]]) -> None:
    """Print how many of the documents that are truly alike were found. Documents are numbered as the texts are."""
    true = [(query, number, share) for query, pairs in enumerate(brute_force(texts, copies)) for number, share in pairs]
    located = [{int(match.key) for match in matches} for matches in found]
    for least in (0.8, 0.85, 0.9):
        wanted = [(query, number) for query, number, share in true if share >= least]
        got = sum(number in located[query] for query, number in wanted)
        print(
            f"{got / max(1, len(wanted)):10.2%}  of {len(wanted):,d} documents with a similarity >= {least} were found"
        )


def brute_force(texts: Sequence[str], copies: Sequence[str]) -> Iterator[list[tuple[int, float]]]:
    """Yield, for each copy, the documents with a similarity of 0.8 or more, by the shingles that they share."""
    sets = list(shingle_sets(texts))
    sizes = np.array([len(some) for some in sets])
    shingles, owners = np.concatenate(sets), np.repeat(np.arange(len(sets)), sizes)
    order = np.argsort(shingles, kind="stable")
    shingles, owners = shingles[order], owners[order]
    for mine in shingle_sets(copies):
        begins, ends = (np.searchsorted(shingles, mine, side) for side in ("left", "right"))
        sharing = np.concatenate([owners[begin:end] for begin, end in zip(begins, ends, strict=True)] or [owners[:0]])
        shared = np.bincount(sharing, minlength=len(sets))
        shares = shared / np.maximum(1, sizes + len(mine) - shared)
        yield [(number, float(shares[number])) for number in np.flatnonzero(shares >= 0.8).tolist()]


if __name__ == "__main__":
    sys.exit(main())
