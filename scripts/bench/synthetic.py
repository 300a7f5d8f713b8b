"""Deduplication alone over hashes and signatures of made-up documents, for ``bench_growth.py --synthetic``.

python scripts/bench/synthetic.py FOLDER WORKERS     does the job in a folder, as a process that is measured
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pipeline.builder.dedup.bands import buckets_for
from pipeline.builder.dedup.lsh import write_clusters
from pipeline.builder.dedup.row_files import Piece
from pipeline.builder.engines.options import EngineOptions
from pipeline.builder.stages.dedup import Job, find_duplicates, prepare_dedup
from pipeline.builder.stages.stage import Step
from scripts.bench.process import Peak, cpu_seconds, watch

PIECE = 8_192  # documents of one file, as in a part of a build
BANDS, ROWS = 14, 8


def measure(sizes: Sequence[int], workers: int) -> Iterator[tuple[int, int, Peak]]:
    """Run dedup for each number of documents in a new process; yield how many documents are read and stay, and the cost.

    A document takes 0.7 kB of disk.
    """
    hashes, signatures = list[Piece](), list[Piece]()
    prepare_dedup()  # compiles before the first run
    with tempfile.TemporaryDirectory() as name:
        for number in range(-(-max(sizes) // PIECE)):
            for arrays, pieces, kind in zip(synthetic(number), (hashes, signatures), "hs", strict=True):
                path = Path(name, f"{number:06d}.{kind}")
                arrays.tofile(path)
                pieces.append(Piece(str(path), 0, PIECE))
            if not any(number * PIECE < size <= (number + 1) * PIECE for size in sizes):
                continue
            count, folder = len(hashes) * PIECE, Path(name, f"job-{number}")
            folder.mkdir()
            job = Job(
                tuple(hashes), tuple(signatures), BANDS * ROWS, BANDS, ROWS, threshold=0.8, buckets=buckets_for(count)
            )
            job.write(folder)
            peak = watch([sys.executable, __file__, str(folder), str(workers)])
            kept = int(np.count_nonzero(np.load(folder / "kind.npy") == 0))
            yield count, kept, peak._replace(cpu=float((folder / "cpu").read_text()))


def synthetic(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a piece of hashes and signatures: 10% equal, 20% nearly equal those of piece ``number // 2``."""
    hashes, signatures, fate = _drawn(number)
    if number:
        earlier_hashes, earlier, fates = _drawn(number // 2)
        exact, near = (fate < 0.1) & (fates >= 0.3), (fate >= 0.1) & (fate < 0.3) & (fates >= 0.3)
        changed = hashes[:, :1] % 10 == np.arange(BANDS * ROWS) % 10  # a tenth of the values
        signatures[near] = np.where(changed, signatures, earlier)[near]
        hashes[exact], signatures[exact] = earlier_hashes[exact], earlier[exact]
    return hashes, signatures


def _drawn(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.Generator(np.random.Philox(number))
    hashes = random.integers(0, 256, (PIECE, 16), np.uint8)
    return hashes, random.integers(0, 1 << 32, (PIECE, BANDS * ROWS), np.uint32), random.random(PIECE)


def main() -> None:
    """Do the job in the folder of the first argument, with the number of workers of the second."""
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    prepare_dedup()

    def make(step: Step[Any]) -> None:
        with EngineOptions(workers=1 if step.in_parent else workers).open(step.prepare) as engine:
            for _ in engine.map(step.function, step.units):
                pass

    before = cpu_seconds(own=True)
    found = find_duplicates(folder, make)
    write_clusters(folder, found.roots, found.exact, before=0)
    (folder / "cpu").write_text(str(cpu_seconds(own=True) - before))


if __name__ == "__main__":
    main()
