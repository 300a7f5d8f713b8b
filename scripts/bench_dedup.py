"""Compare deduplication with datasketch's MinHash and MinHashLSH, and with the true pairs if they are known.

    python scripts/bench_dedup.py corpus/*.jsonl.zst --truth dups.jsonl.zst

The file of true pairs has a line ``{"a": id, "b": id, "jaccard": 0.93}`` for each pair, over the shingles of minhash.py.
Recall is the share of these pairs that are in one cluster. Precision is measured on the verified edges, each once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson
import zstandard

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.builder.dedup.minhash import MinHasher, permutations, shingles, text_hashes
from pipeline.builder.dedup.row_files import Piece
from pipeline.builder.stages.dedup import Job, find_duplicates, prepare_dedup
from scripts.bench.data import read_inputs


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", help="raw text, as for build_shards.py")
    parser.add_argument("--truth", type=Path, help="pairs of ids with their Jaccard similarity (.jsonl.zst)")
    parser.add_argument("--sample", type=int, default=10_000, help="documents to time datasketch on (default: 10000)")
    options = parser.parse_args(arguments)
    documents = list(read_inputs(options.inputs))
    texts, hasher = [document.text for document in documents], MinHasher()
    prepare_dedup()  # compiles before the timing begins
    hasher.warm_up()
    print_peer(texts[: options.sample], hasher)
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        roots = find_clusters(texts, hasher, Path(folder))
        print(f"{len(texts) / (time.process_time() - started):10,.0f}  documents a second of CPU, of {len(texts):,d}")
        if options.truth:
            print_recall(options.truth, [document.id for document in documents], roots)
            print_precision(texts, Path(folder))
    return 0


def find_clusters(texts: Sequence[str], hasher: MinHasher, folder: Path) -> np.ndarray:
    """Run the stage in this process; return for each document the first document of its cluster."""
    hashes, signatures = (Piece(str(folder / name), 0, len(texts)) for name in ("hashes", "signatures"))
    text_hashes(texts).tofile(hashes.path)
    hasher.signatures(texts).tofile(signatures.path)
    bands, rows = hasher.bands, hasher.rows
    Job((hashes,), (signatures,), num_perm=bands * rows, bands=bands, rows=rows, threshold=0.8).write(folder)
    return find_duplicates(folder, lambda step: [step.function(unit) for unit in step.units])[0]


def print_peer(texts: Sequence[str], hasher: MinHasher) -> None:
    """Print the ratio to datasketch's MinHash and MinHashLSH, on the same texts with the same bands."""
    from datasketch import MinHash, MinHashLSH

    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        find_clusters(texts, hasher, Path(folder))
    ours = time.process_time() - started
    started = time.process_time()
    width = hasher.bands * hasher.rows
    drawn = permutations(width)  # drawn once, as its manual advises, not for each document
    index = MinHashLSH(num_perm=width, params=(hasher.bands, hasher.rows))
    for number, text in enumerate(texts):
        signature = MinHash(num_perm=len(drawn[0]), permutations=drawn, scheme="affine32")
        signature.update_batch([shingle.encode("utf-8", "surrogatepass") for shingle in shingles(text)])
        if not index.query(signature):
            index.insert(number, signature)
    theirs = time.process_time() - started
    print(f"{theirs / ours:10.1f}  x datasketch's MinHash and MinHashLSH on {len(texts):,d} documents")


def print_recall(path: Path, ids: Sequence[str], roots: np.ndarray) -> None:
    numbers = {name: number for number, name in enumerate(ids)}
    with path.open("rb") as file:
        pairs = [orjson.loads(line) for line in zstandard.ZstdDecompressor().stream_reader(file).read().splitlines()]
    for least in (0.8, 0.85, 0.9):
        true = [(numbers[p["a"]], numbers[p["b"]]) for p in pairs if p["jaccard"] >= least]
        a, b = np.array(true, np.int64).reshape(-1, 2).T
        joined = np.count_nonzero(roots[a] == roots[b])
        print(f"{joined / max(1, len(a)):10.2%}  of {len(a):,d} pairs with a similarity >= {least} in one cluster")


def print_precision(texts: Sequence[str], folder: Path) -> None:
    """Print how similar the pairs of verified edges are, each counted once. List 0 has the exact duplicates."""
    lists = [np.load(path) for path in sorted((folder / "edges").iterdir()) if not path.name.startswith("00-")]
    edges = set(map(tuple, np.concatenate(lists).tolist()))
    true = np.array([jaccard(texts[a], texts[b]) for a, b in sorted(edges)])
    if len(true):
        print(f"{np.mean(true >= 0.8):10.2%}  of {len(true):,d} verified edges have a similarity >= 0.8")
        print(f"{np.mean(true < 0.7):10.2%}  have a similarity < 0.7; the lowest is {true.min():.3f}")


def jaccard(a: str, b: str) -> float:
    one, other = set(shingles(a)), set(shingles(b))
    return len(one & other) / len(one | other)


if __name__ == "__main__":
    sys.exit(main())
