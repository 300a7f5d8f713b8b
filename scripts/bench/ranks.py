"""Counts the windows that the ranks of a run read, from the order alone: no data is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.stream.order import RankStep
from scripts.bench.report import table

BATCH, SEQ_LEN, NODE = 8, 2048, 8
WINDOW_BYTES, WINDOW_BLOCKS = 4 << 20, 8
WINDOW_ROWS = WINDOW_BYTES // 2 // SEQ_LEN  # tokens have two bytes
WINDOWS_A_LANE = 8  # windows that a lane passes: enough that the run's two ends do not matter
CHOICES = {
    8: (64, 256, 1024),
    48: (64, 96),
    64: (64,),
    96: (64, 96),
    256: (64, 256),
    1024: (64, 256, 1024),
    4096: (64,),
}  # numbers of lanes to count, by the number of ranks


class Reads(NamedTuple):
    """Windows read for each window of batches, by a ``rank`` or a ``node`` whose ranks share a cache; ``lanes`` of a rank."""

    rank: float
    node: float
    lanes: float


def ranks() -> None:
    """Print what each rank and node reads and holds in memory, by the number of lanes."""
    rows = []
    for count, choices in CHOICES.items():
        for lanes in choices:
            read = reads(count, lanes)
            memory = read.lanes * WINDOW_BYTES * 9 / 8 / 1e6  # an eighth of the lanes also hold their next window
            near = 0.02 + 1 / (WINDOW_BLOCKS * min(lanes, count * BATCH))
            numbers = f"{read.rank:.1f}", f"{read.node:.1f}", f"{memory:,.0f}", f"{near:.1%}"
            least = f"{lanes * WINDOW_BYTES / 1e9:.1f}"
            rows.append((f"{count:,}", f"{-(-count // NODE):,}", f"{lanes:,}", *numbers, least))
    heads = "ranks", "nodes", "lanes", "read by a rank", "by a node", "MB of a rank", "near pairs", "from GB of data on"
    table(f"Windows read for each window of the batches, of {BATCH} rows a rank", heads, rows)


def reads(
    ranks: int, lanes: int, batch: int = BATCH, window_rows: int = WINDOW_ROWS, some: Sequence[int] = range(NODE)
) -> Reads:
    """Return the mean of the windows that ``some`` of the ranks read while each lane passes ``WINDOWS_A_LANE``."""
    size = ranks * batch
    steps = -(-WINDOWS_A_LANE * window_rows * lanes // size)
    chosen = [rank for rank in some if rank < ranks]
    read = []
    for rank in chosen:
        own = [RankStep(number * size, size, rank, ranks, lanes).indices() for number in range(steps)]
        rows, of_lane = np.divmod(np.concatenate(own), lanes)
        read.append(np.unique(np.stack([of_lane, rows // window_rows], 1), axis=0))
    given = steps * batch / window_rows  # by each rank
    whole = np.unique(np.concatenate(read), axis=0)
    lanes_of_rank = np.mean([len(np.unique(windows[:, 0])) for windows in read])
    return Reads(sum(map(len, read)) / len(chosen) / given, len(whole) / len(chosen) / given, float(lanes_of_rank))
