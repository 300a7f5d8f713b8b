"""Which documents survive: they passed the filters, are no duplicates, and no stage after dedup dropped them.

round/drops/STAGE/000034.npy    bool, for each document of partition 34: STAGE is the first stage that drops it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...atomic import atomic_file
from ..outcome import KEPT, NEAR
from ..partitions.partition import Partition
from ..work.workspace import Workspace
from .dedup import duplicate_kinds

DROPS = "drops"


def drops_path(partition: Partition, stage: str) -> Path:
    """Return the file that says which documents of a partition a stage drops."""
    return partition.workspace.folder(DROPS) / stage / f"{partition.number:06d}.npy"


def drop(partition: Partition, stage: str, drops: NDArray[np.bool_]) -> None:
    """Write which documents of a partition a stage drops. Some of them may be dropped already."""
    path = drops_path(partition, stage)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        np.save(file, drops & _survives(partition, dropping_stages(partition.workspace, but=stage)))


def survives(partition: Partition) -> NDArray[np.bool_]:
    """Return which documents of a partition are survivors so far."""
    return _survives(partition, dropping_stages(partition.workspace))


def surviving_texts(partition: Partition) -> Iterator[tuple[NDArray[np.int64], list[str]]]:
    """Yield the rows of the survivors of a partition and their texts, for each record batch that has survivors."""
    surviving, first = survives(partition), 0
    for batch in partition.batches("text"):
        rows = np.flatnonzero(surviving[first : first + len(batch)])
        if len(rows):
            texts = batch.column(0).to_pylist()
            yield first + rows, [texts[row] for row in rows.tolist()]
        first += len(batch)


def _survives(partition: Partition, stages: Sequence[str]) -> NDArray[np.bool_]:
    return np.asarray(outcomes(partition, stages) == KEPT)


def outcomes(partition: Partition, stages: Sequence[str]) -> NDArray[np.uint8]:
    """Return the outcome of each document before token quotas: a number of dedup's outcomes, followed by ``stages``."""
    found = np.array(duplicate_kinds(partition))
    for number, stage in enumerate(stages, NEAR + 1):
        found[np.load(drops_path(partition, stage))] = number
    return found


def dropping_stages(workspace: Workspace, but: str = "") -> list[str]:
    """Return the names of the stages that have dropped documents after dedup, except ``but``."""
    return sorted(path.name for path in workspace.folder(DROPS).glob("*") if path.name != but)
