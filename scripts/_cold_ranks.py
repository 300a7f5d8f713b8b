"""The memory of several ranks of one machine together, with and without workers; used by ``bench_stream.py cold``.

    python scripts/_cold_ranks.py DATASET RANK WORLD_SIZE WORKERS BATCHES     one rank; started by `memory_of_ranks`

Pages that processes share count once: the proportional set sizes of all are added while all of them stand still.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts._process import memory  # noqa: E402

SEQ_LEN, BATCH = 2048, 32


def memory_of_ranks(path: Path, world_size: int, workers: int, batches: int) -> float:
    """Return the bytes (PSS) that all ranks hold together after so many batches of each, beyond their imports."""
    arguments = [sys.executable, str(Path(__file__).resolve()), str(path)]
    ranks = [
        subprocess.Popen(
            [*arguments, *map(str, (rank, world_size, workers, batches))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        sums = []
        for _ in ("imported", "streamed"):
            told = [each.stdout.readline() for each in ranks if each.stdout is not None]
            pids = [int(pid) for line in told for pid in line.split()]
            sums.append(sum(memory(pid).proportional for pid in pids))
            for each in ranks:
                if each.stdin is not None:
                    each.stdin.write("\n")
                    each.stdin.flush()
        return sums[1] - sums[0]
    finally:
        for each in ranks:
            each.kill()
            each.wait()


def main(path: str, rank: int, world_size: int, workers: int, batches: int) -> None:
    """Read batches as one rank; tell the ids of this rank's processes after its imports, and after the batches."""
    import multiprocessing
    import os

    import torch
    from torch.utils.data import DataLoader

    import pipeline

    source = pipeline.ShardDataset
    torch.set_num_threads(1)
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    stream = source(path).shuffle(seed=0).pack(SEQ_LEN).batch(BATCH).shard(rank, world_size)
    loader = DataLoader(stream, batch_size=None, num_workers=workers) if workers else stream
    items = iter(loader)
    for _ in islice(items, batches):
        pass
    print(os.getpid(), *(child.pid for child in multiprocessing.active_children()), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
