"""Measure deduplication by script, against all pairs of true similarity, and compare its speed with datasketch's.

    python scripts/bench_dedup.py corpus/*.jsonl.zst --copies 200

The true similarity of two documents is the Jaccard similarity of their shingles (minhash.py), whole sets of them. A document is
dropped wrongly if it is a near duplicate and its true similarity to each kept document is below 0.7 or 0.8. A pair is found if
not both documents are kept. A document's script is that of most of its letters; a tenth of Kana makes a Japanese text.
Copies, of which a script with few pairs has need, lack runs of 5 characters: one character of 1,000 to one of 5 is cut.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.builder.dedup.minhash import MinHasher, permutations, shingle_sets, shingles
from pipeline.builder.dedup.row_files import Piece
from pipeline.builder.stages.dedup import Duplicates, Job, find_duplicates, prepare_dedup
from pipeline.text.hashes import text_hashes
from scripts.bench.data import read_inputs

SCRIPTS = {"CJK": "Han", "HIRAGANA": "Kana", "KATAKANA": "Kana"}
SHOWN = ["Latin", "Cyrillic", "Arabic", "Devanagari", "Hebrew", "Thai", "Han", "Kana", "Hangul"]
MOST = 2_000  # a shingle of more documents makes no pairs
LEAST = 0.7  # the similarity of the pairs that are listed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", help="raw text, as for build_shards.py")
    parser.add_argument("--sample", type=int, default=10_000, help="documents to time datasketch on (default: 10000)")
    parser.add_argument("--copies", type=int, default=0, help="edited copies to add in each script (default: 0)")
    options = parser.parse_args(arguments)
    texts, hasher = [document.text for document in read_inputs(options.inputs)], MinHasher()
    texts += edited_copies(texts, options.copies)
    prepare_dedup()  # compiles before the timing begins
    hasher.warm_up()
    if options.sample:
        print_peer(texts[: options.sample], hasher)
    started = time.process_time()
    found = find_clusters(texts, hasher)
    print(f"{len(texts) / (time.process_time() - started):10,.0f}  documents a second of CPU, of {len(texts):,d}")
    print_table(texts, found)
    return 0


def find_clusters(texts: Sequence[str], hasher: MinHasher) -> Duplicates:
    """Run the stage in this process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hashes, signatures = (Piece(str(folder / name), 0, len(texts)) for name in ("hashes", "signatures"))
        text_hashes(texts).tofile(hashes.path)
        hasher.signatures(texts).tofile(signatures.path)
        bands, rows = hasher.bands, hasher.rows
        Job((hashes,), (signatures,), num_perm=bands * rows, bands=bands, rows=rows, threshold=0.8).write(folder)
        return find_duplicates(folder, lambda step: [step.function(unit) for unit in step.units])


def print_table(texts: Sequence[str], found: Duplicates) -> None:
    """Print a row for each script: documents, what was dropped, how much of it wrongly, and the share of pairs found."""
    numbers = np.arange(len(texts))
    kept, near = found.roots == numbers, found.roots != found.exact
    a, b, similarity = true_pairs(texts)
    nearest = kept.astype(np.float64)  # the similarity of each document to the nearest kept one
    for one, other in (a, b), (b, a):
        np.maximum.at(nearest, one[kept[other]], similarity[kept[other]])
    scripts = np.array(list(map(script_of, texts)))
    print("| script | documents | near duplicates | below 0.7 / 0.8 to all kept | pairs of 0.85 found | of 0.80 |")
    print("| --- | --- | --- | --- | --- | --- |")
    for script in [*SHOWN, "others", "all"]:
        mine = np.full(len(texts), True) if script == "all" else scripts == script
        if script == "others":
            mine = ~np.isin(scripts, SHOWN)
        dropped = nearest[mine & near]
        shares = []
        for least in (0.85, 0.8):
            true = mine[a] & (similarity >= least)
            missed = np.count_nonzero(true & kept[a] & kept[b])
            shares.append(f"{1 - missed / max(1, true.sum()):.2%} of {true.sum():,}")
        wrong = " / ".join(f"{np.count_nonzero(dropped < least):,}" for least in (0.7, 0.8))
        print(f"| {script} | {mine.sum():,} | {len(dropped):,} | {wrong} | {shares[0]} | {shares[1]} |")


def edited_copies(texts: Sequence[str], count: int) -> list[str]:
    """Return copies of documents of 300 characters and more, ``count`` in each script; characters are cut from each."""
    random, copies = np.random.RandomState(0), list[str]()
    of_script: dict[str, list[str]] = {script: [] for script in SHOWN}
    for text in texts if count else ():
        if len(text) >= 300:
            of_script.get(script_of(text), []).append(text)
    for chosen in filter(None, of_script.values()):
        for number in random.randint(0, len(chosen), count).tolist():
            text = chosen[number]
            for at in random.randint(0, len(text) - 5, int(len(text) * 10 ** random.uniform(-3.7, -1.4)) + 1).tolist():
                text = text[:at] + text[at + 5 :]
            copies.append(text)
    return copies


def true_pairs(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all pairs of documents with a Jaccard similarity of at least `LEAST`, and the similarities."""
    sets = [found for begin in range(0, len(texts), 1_000) for found in shingle_sets(texts[begin : begin + 1_000])]
    sizes = np.array(list(map(len, sets)))
    shingles, owners = np.concatenate(sets), np.repeat(np.arange(len(texts)), sizes)
    order = np.argsort(shingles, kind="stable")
    owners, starts = owners[order], np.flatnonzero(np.diff(shingles[order], prepend=~shingles[order[:1]]))
    counts = np.diff(starts, append=len(owners))
    pairs, shared = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for count in np.unique(counts[(counts > 1) & (counts <= MOST)]).tolist():
        groups, (x, y) = starts[counts == count], np.triu_indices(count, 1)
        for begin in range(0, len(groups), max(1, (1 << 22) // len(x))):
            members = owners[groups[begin : begin + max(1, (1 << 22) // len(x)), None] + np.arange(count)]
            keys = np.concatenate([pairs, (members[:, x] * len(texts) + members[:, y]).ravel()])
            pairs, inverse = np.unique(keys, return_inverse=True)
            shared = np.bincount(inverse, np.concatenate([shared, np.ones(len(keys) - len(shared))])).astype(np.int64)
    a, b = np.divmod(pairs, len(texts))
    similarity = shared / (sizes[a] + sizes[b] - shared)
    chosen = similarity >= LEAST
    return a[chosen], b[chosen], similarity[chosen]


def script_of(text: str) -> str:
    """Return the script of most letters of a text."""
    counts: Counter[str] = Counter()
    for letter, count in Counter(text).items():
        if letter.isalpha():
            counts[script_of_letter(letter)] += count
    if 10 * counts["Kana"] >= counts.total() > 0:
        return "Kana"
    return max(counts, key=lambda script: (counts[script], script), default="")


@functools.cache
def script_of_letter(letter: str) -> str:
    name = unicodedata.name(letter, "").partition(" ")[0]
    return SCRIPTS.get(name, name.capitalize())


def print_peer(texts: Sequence[str], hasher: MinHasher) -> None:
    """Print the ratio to datasketch's MinHash and MinHashLSH, on the same texts with the same bands."""
    from datasketch import MinHash, MinHashLSH

    started = time.process_time()
    find_clusters(texts, hasher)
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


if __name__ == "__main__":
    sys.exit(main())
