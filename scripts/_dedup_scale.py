"""The growth of deduplication: its stage alone over hashes and signatures of a corpus many times over, or of made-up ones.

``bench_dedup.py --scales`` and ``--synthetic`` call this; run by itself it does the job of a folder, to be watched.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pipeline.builder.dedup.bands import buckets_for  # noqa: E402
from pipeline.builder.dedup.minhash import MinHasher, text_hashes  # noqa: E402
from pipeline.builder.dedup.row_files import Piece  # noqa: E402
from pipeline.builder.dedup.union_find import write_clusters  # noqa: E402
from pipeline.builder.engine.registry import open_engine  # noqa: E402
from pipeline.builder.stages.dedup import Job, find_duplicates, prepare_dedup  # noqa: E402
from scripts._process import cpu_seconds  # noqa: E402
from scripts._scaling import Growth, edit, watch  # noqa: E402

_PIECE = 8_192  # documents of one file, as parts of a build have
_VALUES = 112


class _Stage:
    """Runs the stage over files of hashes and signatures, and shows how it grows."""

    def __init__(self, threshold: float, workers: int) -> None:
        self._threshold = threshold
        self._workers = workers
        self._growth = Growth()
        prepare_dedup()  # here, so that the first run finds it compiled

    def measure(self, hashes: Sequence[Piece], signatures: Sequence[Piece]) -> None:
        """Run the stage in processes of its own and print what it took."""
        count = sum(piece.rows for piece in hashes)
        with tempfile.TemporaryDirectory() as name:
            folder, buckets = Path(name), buckets_for(count)
            Job(tuple(hashes), tuple(signatures), _VALUES, 14, 8, self._threshold, buckets=buckets).write(folder)
            peak = watch([sys.executable, __file__, name, str(self._workers)])
            kept = int(np.count_nonzero(np.load(folder / "kind.npy") == 0))
            self._growth.show(count, kept, peak._replace(cpu=float((folder / "cpu").read_text())))


def measure_copies(texts: Sequence[str], scales: Sequence[int], threshold: float, workers: int) -> None:
    """Measure the stage on edited copies of the corpus, as many as each of ``scales`` says."""
    hasher, stage = MinHasher(), _Stage(threshold, workers)
    hashes: list[Piece] = []
    signatures: list[Piece] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(max(scales)):
            edited = list(map(edit(number), texts))
            for begin in range(0, len(texts), _PIECE):
                part = edited[begin : begin + _PIECE]
                first, second = write_pieces(Path(folder), len(hashes), text_hashes(part), hasher.signatures(part))
                hashes.append(first)
                signatures.append(second)
            if number + 1 in scales:
                stage.measure(hashes, signatures)


def measure_synthetic(sizes: Sequence[int], threshold: float, workers: int) -> None:
    """Measure the stage on hashes and signatures of no texts, for each number of documents."""
    stage = _Stage(threshold, workers)
    hashes: list[Piece] = []
    signatures: list[Piece] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(-(-max(sizes) // _PIECE)):
            first, second = write_pieces(Path(folder), number, *synthetic(number))
            hashes.append(first)
            signatures.append(second)
            if any(number * _PIECE < size <= (number + 1) * _PIECE for size in sizes):
                stage.measure(hashes, signatures)


def synthetic(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a piece of hashes and signatures: 10% equal those of a document in the first half of all before, 20% nearly."""
    hashes, signatures, fate = _drawn(number)
    if number:
        earlier_hashes, earlier, fates = _drawn(number // 2)
        exact, near = (fate < 0.1) & (fates >= 0.3), (fate >= 0.1) & (fate < 0.3) & (fates >= 0.3)
        changed = hashes[:, :1] % 10 == np.arange(_VALUES) % 10  # a tenth of the values
        signatures[near] = np.where(changed, signatures, earlier)[near]
        hashes[exact], signatures[exact] = earlier_hashes[exact], earlier[exact]
    return hashes, signatures


def _drawn(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.Generator(np.random.Philox(number))
    hashes = random.integers(0, 256, (_PIECE, 16), np.uint8)
    return hashes, random.integers(0, 1 << 32, (_PIECE, _VALUES), np.uint32), random.random(_PIECE)


def write_pieces(folder: Path, number: int, hashes: np.ndarray, signatures: np.ndarray) -> tuple[Piece, Piece]:
    """Write hashes and signatures to two files; return the pieces that they are."""
    first, second = (folder / f"{number:06d}.{name}" for name in ("hashes", "signatures"))
    hashes.tofile(first)
    signatures.tofile(second)
    return Piece(str(first), 0, len(hashes)), Piece(str(second), 0, len(hashes))


def main() -> None:
    """Do the job of a folder, named in the first argument, with as many workers as the second says."""
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    prepare_dedup()

    def run(name: str, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        with open_engine(workers=workers, prepare=prepare_dedup) as engine:
            yield from engine.map(function, units)

    before = cpu_seconds(own=True)
    roots, exact = find_duplicates(folder, run)
    write_clusters(folder, roots, exact, before=0)
    (folder / "cpu").write_text(str(cpu_seconds(own=True) - before))


if __name__ == "__main__":
    main()
