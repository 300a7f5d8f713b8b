"""The stage that drops documents whose ids are in a list, such as a list of opt-outs.

It runs after dedup: if a listed document was kept in place of its duplicates, all of them are gone. Ids are compared without
the spaces around them, and whole numbers without the ``.0`` that tables of floats add.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from ...atomic import read_json, write_json
from ...errors import first_few
from ..counts.build_stats import BuildStats
from ..counts.sums import Counts
from ..outcome import Outcome
from ..partitions.partition import Partition, partitions
from ..recipe import Recipe
from ..transforms.references import listed_ids_path
from ..work.workspace import Workspace
from .stage import Run, Stage, Step
from .survivors import drop, drops_path

_WHOLE_FLOAT = re.compile(r"-?(\d+\.0|\d(\.\d+)?e\+\d\d)", re.ASCII)  # as Python spells them


class DropIdsStage(Stage):
    """Drops documents whose ids are in a list."""

    name = "drop_ids"
    drops = Outcome("drop_ids", "its id is in the list of drop_ids")

    def wanted(self, recipe: Recipe) -> bool:
        return recipe.drop_ids is not None

    def steps(self, run: Run) -> Iterator[Step[Any]]:
        yield Step(
            units=partitions(run.workspace),
            function=drop_listed,
            makes=lambda partition: drops_path(partition, self.name),
            prepare=functools.partial(_listed, run.workspace),
        )

    def count(self, workspace: Workspace, counts: Counts, stats: BuildStats) -> Mapping[str, Any]:
        listed = _listed(workspace)
        left = listed.difference(*(read_json(_matched_path(partition)) for partition in partitions(workspace)))
        if left:
            stats.notes.append(
                f"drop_ids: {len(left):,} of {len(listed):,} listed ids match no document that passed the filters: "
                f"{first_few(sorted(left))}"
            )
        return {}


def drop_listed(partition: Partition) -> None:
    """Write which documents of a partition are listed, by their id or the id of the document that a transform split."""
    listed, origins = _listed(partition.workspace), partition.origins()
    parts = partition.values("part")["part"]
    matches = [_listed_as(origins[row].id.removesuffix(part), part, listed) for row, part in enumerate(parts)]
    write_json(_matched_path(partition), sorted({id for id in matches if id is not None}))
    drop(partition, DropIdsStage.name, np.array([id is not None for id in matches], bool))


def _matched_path(partition: Partition) -> Path:
    return drops_path(partition, DropIdsStage.name).with_suffix(".json")


def _listed_as(id: str, part: str, listed: frozenset[str]) -> str | None:
    """Return the listed id of a document, or of the whole that it is a part of; None if neither is listed."""
    id = compared(id)
    return f"{id}{part}" if f"{id}{part}" in listed else id if id in listed else None


def compared(id: str) -> str:
    """Return an id as it is compared.

    >>> [compared(id) for id in (" a ", "7.0", "9e+19", "007", "1.5")]
    ['a', '7', '90000000000000000000', '007', '1.5']
    """
    id = id.strip()
    return id if not _WHOLE_FLOAT.fullmatch(id) or (number := Decimal(id)) % 1 else str(int(number))


def _listed(workspace: Workspace) -> frozenset[str]:
    """Return the ids of the list, read once in each process."""
    return _read_ids(listed_ids_path(workspace), workspace.plan.definitions["drop_ids"])


@functools.lru_cache(maxsize=1)
def _read_ids(path: Path, sha256: str) -> frozenset[str]:
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    return frozenset(map(compared, lines)) - {""}
