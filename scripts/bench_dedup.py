"""Time deduplication, measure how it grows and, where the true pairs are known, what it finds.

    python scripts/bench_dedup.py corpus/*.jsonl.zst --truth dups.jsonl.zst
    python scripts/bench_dedup.py corpus/*.jsonl.zst --scales 1,4,16
    python scripts/bench_dedup.py --synthetic 1000000,20000000

The truth has a line ``{"a": id, "b": id, "jaccard": 0.93}`` for each pair of documents, over the shingles of minhash.py.
Recall is the share of such pairs in one cluster; precision counts the edges that were verified, each once.

With ``--scales`` the stage alone, in processes of its own, takes hashes and signatures of so many edited copies of the
corpus; with ``--synthetic``, of so many made-up documents, about 0.7 kB of disk each. Their memory is that of all processes.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pipeline.builder.dedup.minhash import MinHasher, permutations, shingles, text_hashes  # noqa: E402
from pipeline.builder.stages.dedup import Job, find_duplicates  # noqa: E402
from scripts._dedup_scale import measure_copies, measure_synthetic, write_pieces  # noqa: E402
from scripts._inputs import read_inputs  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("inputs", nargs="*", help="raw text, as for build_shards.py")
    parser.add_argument(
        "--scales", type=numbers, metavar="N,N", help="measure growth on so many copies, and nothing else"
    )
    parser.add_argument("--synthetic", type=numbers, metavar="N,N", help="measure growth on so many made-up documents")
    parser.add_argument("--workers", type=int, default=2, help="processes, where growth is measured (default: 2)")
    parser.add_argument("--truth", type=Path, help="pairs of ids with their Jaccard similarity (.jsonl.zst)")
    parser.add_argument("--threshold", type=float, default=0.8, help="share of equal values to verify (default: 0.8)")
    parser.add_argument("--sample", type=int, default=10_000, help="documents to time datasketch on (default: 10000)")
    options = parser.parse_args(arguments)
    if options.synthetic:
        measure_synthetic(options.synthetic, options.threshold, options.workers)
        return 0
    if not options.inputs:
        parser.error("give inputs, or --synthetic")
    found = list(read_inputs(options.inputs))
    texts = [document.text for document in found]
    if options.scales:
        measure_copies(texts, options.scales, options.threshold, options.workers)
        return 0
    hasher = MinHasher()
    hasher.warm_up()
    before = peak_megabytes()

    started = time.process_time()
    hashes = text_hashes(texts)
    hashed = time.process_time()
    signatures = hasher.signatures(texts)
    signed = time.process_time()
    folder = tempfile.TemporaryDirectory()
    roots, exact = find(Path(folder.name), hashes, signatures, options.threshold)
    ended = time.process_time()

    count, megabytes = len(texts), sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) / 1e6
    print(f"{count:10,d}  documents, {megabytes:,.1f} MB of text")
    print(f"{count / (ended - started):10,.0f}  documents/s of CPU: hashes, signatures and duplicates")
    print(f"{count / (hashed - started):10,.0f}  documents/s: hashes")
    print(f"{count / (signed - hashed):10,.0f}  documents/s: signatures, {megabytes / (signed - hashed):.0f} MB/s")
    print(f"{count / (ended - signed):10,.0f}  documents/s: duplicates")
    print(
        f"{peak_megabytes() - before:10,.0f}  MB more at the peak than before, signatures {signatures.nbytes / 1e6:,.0f}"
    )
    stay, equal = np.count_nonzero(roots == np.arange(count)), np.count_nonzero(exact == roots)
    print(f"{stay:10,d}  documents stay; {equal - stay:,d} exact and {count - equal:,d} near duplicates go")
    print_peer(texts[: options.sample], hasher)
    if options.truth:
        ids = [document.id for document in found]
        print_recall(options.truth, ids, roots)
        print_precision(texts, Path(folder.name))
    folder.cleanup()
    return 0


def numbers(text: str) -> list[int]:
    """Return the numbers of a list as ``1,4,16``."""
    return sorted(map(int, text.split(",")))


def find(folder: Path, hashes: np.ndarray, signatures: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Run the stage on arrays in this process; return each document's cluster and the first document equal to it."""
    width = signatures.shape[1]
    first, second = write_pieces(folder, 0, hashes, signatures)
    Job((first,), (second,), num_perm=width, bands=width // 8, rows=8, threshold=threshold).write(folder)
    return find_duplicates(folder, lambda name, function, units: map(function, units))


def print_peer(texts: Sequence[str], hasher: MinHasher) -> None:
    """Print the ratio to datasketch's MinHash and MinHashLSH, on the same texts with the same bands."""
    from datasketch import MinHash, MinHashLSH

    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        find(Path(folder), text_hashes(texts), hasher.signatures(texts), 0.8)
    ours = time.process_time() - started
    started = time.process_time()
    drawn = permutations(
        hasher.bands * hasher.rows, hasher.seed
    )  # given, as its manual advises, or each document would draw them anew
    index = MinHashLSH(num_perm=hasher.bands * hasher.rows, params=(hasher.bands, hasher.rows))
    for number, text in enumerate(texts):
        signature = MinHash(num_perm=len(drawn[0]), permutations=drawn, scheme="affine32")
        signature.update_batch([shingle.encode("utf-8", "surrogatepass") for shingle in shingles(text)])
        if not index.query(signature):
            index.insert(number, signature)
    theirs = time.process_time() - started
    print(f"{theirs / ours:10.1f}  x datasketch's MinHash and MinHashLSH on {len(texts):,d} documents")


def print_recall(path: Path, ids: Sequence[str], roots: np.ndarray) -> None:
    import orjson
    import zstandard

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


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
