"""The split stage: assigns documents to training and validation, and applies the token quotas of sources.

Its result is one directory, with an entry for each document that passed the filters, in input order:

    split.npy         uint8: 0 training, 1 validation, 2 neither
    outcome.npy       uint8: its outcome, as its index in outcomes.json
    outcomes.json     the keys of the outcomes
    partitions.npy    int64 [partitions, 2]: the documents of each partition in training and in validation
    counts.json

Each partition is a unit. The parent holds two bytes a document in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...atomic import read_json, write_json
from ...atomic_directory import result_directory
from ...shards.shard_plan import SPLITS, TRAIN, VAL, in_validation
from ..counts.build_stats import BuildStats
from ..counts.counts import Counts
from ..outcome import KEPT, OF_DEDUP, Outcome
from ..partitions.partition import Partition, partitions
from ..work.workspace import Workspace
from .dedup import positions
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
        yield once(run.workspace.folder(self.name), assign_splits, run)

    def count(self, workspace: Workspace, stats: BuildStats) -> None:
        for source, group in sorted(stats.by_source.items()):
            quota, tokens = workspace.plan.recipe.quota(source), group["tokens"]
            if self.drops.key in group["dropped"] and tokens < _FILLED * quota:
                stats.notes.append(
                    f"max_tokens: {source or 'the input'} has {tokens:,} of {quota:,} tokens, since the next document that was "
                    f"drawn has more than the {quota - tokens:,} left: none is passed over for a shorter one"
                )


@dataclass(frozen=True, slots=True)
class Assigned:
    """The outcomes of the documents of a partition, and their splits."""

    split: NDArray[np.uint8]
    outcome: NDArray[np.uint8]
    counts: Counts


def assign_splits(run: Run) -> None:
    """Assign splits and apply token quotas by draws from the content; count the outcomes of all documents that passed."""
    workspace, every = run.workspace, partitions(run.workspace)
    allowed, passed = tokens_allowed(workspace), positions(every[-1]).stop if every else 0
    split, outcome, counts = np.empty(passed, np.uint8), np.empty(passed, np.uint8), Counts()
    table = np.zeros((len(every), len(SPLITS)), np.int64)
    keys = [*(outcome.key for outcome in OF_DEDUP), *dropping_stages(workspace), SplitStage.drops.key]
    function = functools.partial(assign_partition, keys)
    for number, assigned in run.map(SplitStage.name, function, list(zip(every, allowed, strict=True))):
        rows = positions(every[number])
        split[rows], outcome[rows] = assigned.split, assigned.outcome
        table[number] = [np.count_nonzero(assigned.split == value) for value in (TRAIN, VAL)]
        counts.update(assigned.counts)
    with result_directory(workspace.folder(SplitStage.name)) as directory:
        for name, array in (("split", split), ("outcome", outcome), ("partitions", table)):
            np.save(directory / f"{name}.npy", array)
        write_json(directory / "outcomes.json", keys)
        write_json(directory / "counts.json", counts.to_json())


def load_splits(workspace: Workspace) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the split of each document, and the documents of each partition in each split."""
    folder = workspace.folder(SplitStage.name)
    return np.load(folder / "split.npy", mmap_mode="r"), np.load(folder / "partitions.npy")


def load_outcomes(workspace: Workspace) -> tuple[list[str], NDArray[np.uint8]]:
    """Return the keys of outcomes, and the index of the outcome of each document."""
    folder = workspace.folder(SplitStage.name)
    return read_json(folder / "outcomes.json"), np.load(folder / "outcome.npy", mmap_mode="r")


def load_counts(workspace: Workspace) -> Counts:
    """Return the counts of the outcomes of all documents that passed the filters."""
    return Counts.read(workspace.folder(SplitStage.name) / "counts.json")


def assign_partition(keys: Sequence[str], unit: tuple[Partition, int | None]) -> Assigned:
    """Return the outcomes and splits of the documents of a partition.

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
    return Assigned(split, outcome, _count(partition, keys, outcome, tokens))


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
