"""The stage that drops documents whose ids are in a list, such as a list of opt-outs.

It follows dedup: where a listed document is kept in place of its duplicates, these are gone with it.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from ..outcome import Outcome
from ..partitions.partition import Partition, partitions
from ..recipe import Recipe
from ..references import References, kept_file_path
from ..workspace.workspace import Workspace
from .stage import DropsAlone, Run, Stage


class DropIdsStage(Stage):
    """Drops documents whose ids are in a list."""

    name = "drop_ids"
    drops = Outcome("drop_ids", "drop_ids", "its id is in the list of drop_ids")

    def wanted(self, recipe: Recipe) -> bool:
        return recipe.drop_ids is not None

    def drops_alone(self, recipe: Recipe, references: References) -> DropsAlone:
        file = references.files[self.name]
        listed = _read_ids(file.checked(), file.sha256)
        return lambda document: _is_listed(document.id, document.part, listed)

    def run(self, run: Run) -> None:
        run.workspace.folder(self.name).mkdir(exist_ok=True)
        todo = [partition for partition in partitions(run.workspace) if not partition.drops_path(self.name).exists()]
        run.do(self.name, drop_listed, todo, functools.partial(_listed, run.workspace))


def drop_listed(partition: Partition) -> None:
    """Write which documents of a partition are listed: by their id, or that of the document that a transform cut them from."""
    listed, origins = _listed(partition.workspace), partition.origins()
    ids = ((origins[row].id, part) for row, part in enumerate(partition.values("part")["part"]))
    drops = [_is_listed(id, part, listed) for id, part in ids]
    partition.drop(DropIdsStage.name, np.array(drops, bool))


def _is_listed(id: str, part: str, listed: frozenset[str]) -> bool:
    return id in listed or (part != "" and id.removesuffix(part) in listed)


def _listed(workspace: Workspace) -> frozenset[str]:
    """Return the ids of the list, read once in each process."""
    return _read_ids(kept_file_path(workspace, "drop_ids"), workspace.plan.definitions["drop_ids"])


@functools.lru_cache(maxsize=1)
def _read_ids(path: Path, sha256: str) -> frozenset[str]:
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    return frozenset(line.strip() for line in lines) - {""}
