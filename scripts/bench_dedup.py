"""Compare deduplication with datasketch's MinHash and MinHashLSH and, where the true pairs are known, with those.

    python scripts/bench_dedup.py corpus/*.jsonl.zst --truth dups.jsonl.zst

The truth has a line ``{"a": id, "b": id, "jaccard": 0.93}`` for each pair of documents, over the shingles of minhash.py.
Recall is the share of such pairs in one cluster; precision counts the edges that were verified, each once.
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

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pipeline.builder.dedup.minhash import MinHasher, permutations, shingles, text_hashes  # noqa: E402
from pipeline.builder.dedup.row_files import Piece  # noqa: E402
from pipeline.builder.stages.dedup import Job, find_duplicates  # noqa: E402
from scripts.bench.data import read_inputs  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", help="raw text, as for build_shards.py")
    parser.add_argument("--truth", type=Path, help="pairs of ids with their Jaccard similarity (.jsonl.zst)")
    parser.add_argument("--threshold", type=float, default=0.8, help="share of equal values to verify (default: 0.8)")
    parser.add_argument("--sample", type=int, default=10_000, help="documents to time datasketch on (default: 10000)")
    options = parser.parse_args(arguments)
    documents = list(read_inputs(options.inputs))
    texts, hasher = [document.text for document in documents], MinHasher()
    hasher.warm_up()
    with tempfile.TemporaryDirectory() as name:
        times = [time.process_time()]
        hashes = text_hashes(texts)
        times.append(time.process_time())
        signatures = hasher.signatures(texts)
        times.append(time.process_time())
        roots, exact = duplicates(Path(name), hashes, signatures, options.threshold)
        times.append(time.process_time())
        print_peer(texts[: options.sample], hasher)
        count, megabytes = len(texts), sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) / 1e6
        print(f"{count:10,d}  documents, {megabytes:,.1f} MB of text")
        print(f"{count / (times[3] - times[0]):10,.0f}  documents/s of CPU: hashes, signatures and duplicates")
        for step, what in enumerate(("hashes", "signatures", "duplicates")):
            print(f"{count / (times[step + 1] - times[step]):10,.0f}  documents/s: {what}")
        stay, equal = np.count_nonzero(roots == np.arange(count)), np.count_nonzero(exact == roots)
        print(f"{stay:10,d}  documents stay; {equal - stay:,d} exact and {count - equal:,d} near duplicates go")
        if options.truth:
            print_recall(options.truth, [document.id for document in documents], roots)
            print_precision(texts, Path(name))
    return 0


def duplicates(
    folder: Path, hashes: np.ndarray, signatures: np.ndarray, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """Run the stage on arrays in this process; return each document's cluster and the first document equal to it."""
    first, second = (Piece(str(folder / name), 0, len(hashes)) for name in ("hashes", "signatures"))
    hashes.tofile(first.path)
    signatures.tofile(second.path)
    width = signatures.shape[1]
    Job((first,), (second,), num_perm=width, bands=width // 8, rows=8, threshold=threshold).write(folder)
    return find_duplicates(folder, lambda name, function, units: map(function, units))


def print_peer(texts: Sequence[str], hasher: MinHasher) -> None:
    """Print the ratio to datasketch's MinHash and MinHashLSH, on the same texts with the same bands."""
    from datasketch import MinHash, MinHashLSH

    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        duplicates(Path(folder), text_hashes(texts), hasher.signatures(texts), 0.8)
    ours = time.process_time() - started
    started = time.process_time()
    width = hasher.bands * hasher.rows
    drawn = permutations(width, hasher.seed)  # given, as its manual advises, or each document would draw them anew
    index = MinHashLSH(num_perm=width, params=(hasher.bands, hasher.rows))
    for number, text in enumerate(texts):
        signature = MinHash(num_perm=len(drawn[0]), permutations=drawn, scheme="affine32")
        signature.update_batch([shingle.encode("utf-8", "surrogatepass") for shingle in shingles(text)])
        if not index.query(signature):
            index.insert(number, signature)
    theirs = time.process_time() - started
    print(f"{theirs / ours:10.1f}  x datasketch's MinHash and MinHashLSH on {len(texts):,d} documents")


def print_recall(path: Path, ids: Sequence[str], roots: np.ndarray) -> None:
    places = {name: place for place, name in enumerate(ids)}
    with path.open("rb") as file:
        pairs = [orjson.loads(line) for line in zstandard.ZstdDecompressor().stream_reader(file).read().splitlines()]
    for least in (0.8, 0.85, 0.9):
        true = [(places[p["a"]], places[p["b"]]) for p in pairs if p["jaccard"] >= least]
        a, b = np.array(true, np.int64).reshape(-1, 2).T
        together = np.count_nonzero(roots[a] == roots[b])
        print(f"{together / max(1, len(a)):10.2%}  of {len(a):,d} pairs with a similarity >= {least} in one cluster")


def print_precision(texts: Sequence[str], folder: Path) -> None:
    """Print how similar the pairs of the verified edges are, each counted once; list 0 are the exact duplicates."""
    lists = [np.load(path) for path in sorted((folder / "edges").iterdir()) if not path.name.startswith("00-")]
    edges = set(map(tuple, np.concatenate(lists).tolist()))
    true = np.array([jaccard(texts[a], texts[b]) for a, b in sorted(edges)])
    if len(true):
        print(f"{np.mean(true >= 0.8):10.2%}  of {len(true):,d} verified edges have a similarity >= 0.8")
        print(f"{np.mean(true < 0.7):10.2%}  have one < 0.7; the lowest is {true.min():.3f}")


def jaccard(a: str, b: str) -> float:
    one, other = set(shingles(a)), set(shingles(b))
    return len(one & other) / len(one | other)


if __name__ == "__main__":
    sys.exit(main())
