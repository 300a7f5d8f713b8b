"""The split stage: assigns documents to training and validation, and applies the token quotas of sources.

split/000034/split.npy      uint8, for each document of partition 34 that passed the filters: 0 training, 1 validation, 2 neither
split/000034/outcome.npy    uint8: its outcome, as its index in `outcome_keys`
split/000034/counts.json    the documents, characters and tokens of each outcome
split/table.npy             int64 [partitions, 2]: the documents of each partition in training and in validation
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...atomic import atomic_file, write_json
from ...atomic_directory import result_directory
from ...shards.shard_plan import SPLITS, TRAIN, VAL, in_validation
from ..counts.build_stats import BuildStats
from ..counts.sums import Counts
from ..outcome import KEPT, OF_DEDUP, Outcome
from ..partitions.partition import COUNTS, Partition, partitions
from ..work.workspace import Workspace
from .quotas import MAX_TOKENS, beyond_quota, tokens_allowed
from .stage import Run, Stage, Step, once
from .survivors import dropping_stages, outcomes
from .tokenize import token_lengths

NEITHER = 2
_FILLED = 0.99  # of a quota: if a source has less, a note says why


class SplitStage(Stage):
    """Assigns splits and applies token quotas."""

    name = "split"
    drops = Outcome(MAX_TOKENS, "max_tokens of its source reached")

    def steps(self, run: Run) -> Iterator[Step[Any]]:
        workspace, every = run.workspace, partitions(run.workspace)
        yield Step(
            units=list(zip(every, tokens_allowed(workspace), strict=True)),
            function=functools.partial(assign_partition, outcome_keys(workspace)),
            makes=lambda unit: _folder(unit[0]),
            label=lambda unit: str(unit[0]),
        )
        path = _table_path(workspace)
        yield once(path, _write_table, path, every)

    def count(self, workspace: Workspace, counts: Counts, stats: BuildStats) -> Mapping[str, Any]:
        for source, group in sorted(stats.by_source.items()):
            quota, tokens = workspace.plan.recipe.quota(source), group["tokens"]
            if self.drops.key in group["dropped"] and tokens < _FILLED * quota:
                stats.notes.append(
                    f"max_tokens: {source or 'the input'} has {tokens:,} of {quota:,} tokens, since the next document that was "
                    f"drawn has more than the {quota - tokens:,} left: none is passed over for a shorter one"
                )
        return {}


def outcome_keys(workspace: Workspace) -> list[str]:
    """Return the keys of the outcomes of documents that passed the filters, by number."""
    return [*(outcome.key for outcome in OF_DEDUP), *dropping_stages(workspace), MAX_TOKENS]


def assign_partition(keys: Sequence[str], unit: tuple[Partition, int | None]) -> None:
    """Assign splits and apply token quotas by draws from the content; count the outcomes of all documents that passed.

    ``keys`` are the keys of the outcomes, by number. ``unit`` has the partition, and its tokens allowed; None: all.
    """
    partition, allowed = unit
    plan, hashes, tokens = partition.workspace.plan, partition.hashes, token_lengths(partition)
    outcome = outcomes(partition, keys[len(OF_DEDUP) : -1])
    outcome[beyond_quota(partition, outcome == KEPT, allowed)] = len(keys) - 1
    # Parts of one document may overlap, so they share a split.
    origins = partition.origins_hashes if plan.recipe.transforms else hashes
    in_val = in_validation(origins, plan.recipe.seed, plan.recipe.val_fraction)
    split = np.where(in_val, VAL, TRAIN).astype(np.uint8)
    split[outcome != KEPT] = NEITHER
    with result_directory(_folder(partition)) as directory:
        np.save(directory / "split.npy", split)
        np.save(directory / "outcome.npy", outcome)
        write_json(directory / COUNTS, _count(partition, keys, outcome, tokens).to_json())


def _write_table(path: Path, every: Sequence[Partition]) -> None:
    splits = map(load_split, every)
    rows = [[np.count_nonzero(split == value) for value in (TRAIN, VAL)] for split in splits]
    with atomic_file(path) as file:
        np.save(file, np.array(rows, np.int64).reshape(-1, len(SPLITS)))


def _folder(partition: Partition) -> Path:
    return partition.workspace.folder(SplitStage.name) / f"{partition.number:06d}"


def _table_path(workspace: Workspace) -> Path:
    return workspace.folder(SplitStage.name) / "table.npy"


def load_split(partition: Partition) -> NDArray[np.uint8]:
    """Return the split of each document of a partition."""
    return np.asarray(np.load(_folder(partition) / "split.npy"))


def load_outcome(partition: Partition) -> NDArray[np.uint8]:
    """Return the index in `outcome_keys` of the outcome of each document of a partition."""
    return np.asarray(np.load(_folder(partition) / "outcome.npy"))


def split_sizes(workspace: Workspace) -> NDArray[np.int64]:
    """Return the documents of each partition in each split, int64 ``[partitions, 2]``."""
    return np.asarray(np.load(_table_path(workspace)))


def load_counts(workspace: Workspace) -> Counts:
    """Return the counts of the outcomes of all documents that passed the filters."""
    return Counts.sum(Counts.read(_folder(partition) / COUNTS) for partition in partitions(workspace))


def _count(partition: Partition, keys: Sequence[str], outcome: NDArray[np.uint8], tokens: NDArray[np.int64]) -> Counts:
    counts = Counts()
    if not len(outcome):
        return counts
    source = partition.source
    languages, language = np.unique(np.array(partition.values("language")["language"]), return_inverse=True)
    kept = outcome == KEPT
    groups, group = np.unique(language * len(keys) + outcome, return_inverse=True)
    weights = (None, partition.array("characters", np.int64), np.where(kept, tokens, 0))
    sums = [np.bincount(group, weight).astype(np.int64).tolist() for weight in weights]
    for number, documents, size, tokens_kept in zip(groups.tolist(), *sums, strict=True):
        name, key = str(languages[number // len(keys)]), keys[number % len(keys)]
        counts.add_outcome("final", source, name, key, size, documents)
        counts.add("tokens", source, name, number=tokens_kept)
    powers, numbers = np.unique(np.log2(np.maximum(tokens[kept], 1)).astype(int), return_counts=True)
    counts.add_all("token lengths", dict(zip(map(str, powers.tolist()), numbers.tolist(), strict=True)))
    return counts
