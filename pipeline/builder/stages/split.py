"""The split stage: assigns documents to training and validation, and applies the token quotas of sources.

Its result is one directory, with an entry for each document that passed the filters, in input order:

    split.npy         uint8: 0 training, 1 validation, 2 neither
    outcome.npy       uint8: its outcome, a number in Plan.outcomes
    partitions.npy    int64 [partitions, 2]: the documents of each partition in training and in validation
    runs.json         for each split, [source, documents] as they follow each other in input order
    counts.json

Each partition is a unit. In the memory of the parent are two bytes a document.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from ...atomic import write_json
from ..counts.counts import Counts
from ..draws import draws, threshold
from ..outcome import KEPT, Outcome
from ..partitions.partition import SPLIT, Partition, partitions
from ..quotas import tokens_allowed
from ..workspace.atomic_directory import result_directory
from .stage import Run, Stage

TRAIN, VAL, NEITHER = 0, 1, 2
SPLITS = ("train", "val")


class SplitStage(Stage):
    """Assigns splits and applies token quotas."""

    name = SPLIT
    applies_quotas = True
    drops = Outcome("max_tokens", "max_tokens", "max_tokens of its source reached")

    def run(self, run: Run) -> None:
        if not run.workspace.folder(self.name).exists():
            assign_splits(run)


@dataclass(frozen=True, slots=True)
class Assigned:
    """What became of the documents of a partition. ``runs`` are those of its sources, for each split."""

    split: NDArray[np.uint8]
    outcome: NDArray[np.uint8]
    runs: list[list[tuple[str, int]]]
    counts: Counts


def assign_splits(run: Run) -> None:
    """Assign splits and apply token quotas by what is drawn for each content; count the outcomes of all that passed."""
    workspace, every = run.workspace, partitions(run.workspace)
    allowed, passed = tokens_allowed(workspace), every[-1].rows.stop if every else 0
    split, outcome, counts = np.empty(passed, np.uint8), np.empty(passed, np.uint8), Counts()
    table = np.zeros((len(every), len(SPLITS)), np.int64)
    runs: list[list[list[tuple[str, int]]]] = [[] for _ in every]
    for number, assigned in run.map(SPLIT, assign_partition, list(zip(every, allowed, strict=True))):
        rows = every[number].rows
        split[rows], outcome[rows] = assigned.split, assigned.outcome
        table[number] = [np.count_nonzero(assigned.split == place) for place in (TRAIN, VAL)]
        runs[number] = assigned.runs
        counts.update(assigned.counts)
    with result_directory(workspace.folder(SPLIT)) as directory:
        for name, array in (("split", split), ("outcome", outcome), ("partitions", table)):
            np.save(directory / f"{name}.npy", array)
        joined = {name: joined_runs(itertools.chain(*(each[k] for each in runs))) for k, name in enumerate(SPLITS)}
        write_json(directory / "runs.json", joined)
        write_json(directory / "counts.json", counts.to_json())


def assign_partition(unit: tuple[Partition, int | None]) -> Assigned:
    """Assign the documents of a partition, of which so many tokens are allowed; None: all of them."""
    partition, allowed = unit
    plan, hashes, tokens = partition.workspace.plan, partition.hashes, partition.token_lengths
    outcome = np.array(partition.outcomes)
    if allowed is not None:
        survivors = np.flatnonzero(outcome == KEPT)
        beyond = beyond_quota(draws(hashes[survivors], plan.recipe.seed, "max_tokens"), tokens[survivors], allowed)
        outcome[survivors[beyond]] = plan.number_of_drops(SPLIT)
    # Parts of one document share much text, windows that overlap most of it: they go together.
    origins = partition.origins_hashes if plan.recipe.transforms else hashes
    drawn = draws(origins, plan.recipe.seed, "val")
    split = np.where(in_validation(drawn, plan.recipe.val_fraction), VAL, TRAIN).astype(np.uint8)
    split[outcome != KEPT] = NEITHER
    names = sorted({item.source for item in partition.inputs})
    of_span = np.array([names.index(item.source) for item in partition.inputs])
    sources: NDArray[np.int64] = of_span[partition.array("span", np.int32)]
    runs = [joined_runs((names[k], 1) for k in sources[split == place].tolist()) for place in (TRAIN, VAL)]
    return Assigned(split, outcome, runs, _count(partition, names, sources, outcome, tokens))


def in_validation(drawn: NDArray[np.uint64], val_fraction: float) -> NDArray[np.bool_]:
    """Return which documents belong to validation: those whose number falls below the fraction.

    This depends neither on the order of the input, nor on what else it holds, nor on how it is cut into shards.
    """
    return drawn < threshold(val_fraction)


def beyond_quota(drawn: NDArray[np.uint64], tokens: NDArray[np.int64], allowed: int) -> NDArray[np.bool_]:
    """Return which documents a quota has no room for, taken in the order of what is drawn for them, to the first such one.

    So a larger quota holds all that a smaller one does.

    >>> beyond_quota(np.array([3, 1, 2], np.uint64), np.array([5, 5, 9]), 12).tolist()
    [True, False, True]
    """
    order = np.argsort(drawn, kind="stable")
    beyond = np.empty(len(order), bool)
    beyond[order] = np.cumsum(tokens[order]) > allowed
    return beyond


def joined_runs(runs: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Join neighbouring runs of one source.

    >>> joined_runs([("web", 1), ("web", 1), ("wiki", 3)])
    [('web', 2), ('wiki', 3)]
    """
    return [(name, sum(map(itemgetter(1), some))) for name, some in itertools.groupby(runs, itemgetter(0))]


def _count(
    partition: Partition,
    sources: list[str],
    source: NDArray[np.int64],
    outcome: NDArray[np.uint8],
    tokens: NDArray[np.int64],
) -> Counts:
    counts = Counts()
    if not len(outcome):
        return counts
    outcomes = partition.workspace.plan.outcomes
    languages, language = np.unique(np.array(partition.values("language")["language"]), return_inverse=True)
    shape = len(sources), len(languages), len(outcomes)
    groups, group = np.unique(np.ravel_multi_index((source, language, outcome), shape), return_inverse=True)
    kept = np.where(outcome == KEPT, tokens, 0)
    sums = [
        np.bincount(group, values).astype(np.int64).tolist()
        for values in (None, partition.array("characters", np.int64), kept)
    ]
    for (a, b, c), documents, characters, tokens_kept in zip(
        np.stack(np.unravel_index(groups, shape), axis=1).tolist(), *sums, strict=True
    ):
        counts.add_outcome("final", sources[a], str(languages[b]), outcomes[c].key, characters, documents)
        counts.add("tokens", sources[a], str(languages[b]), number=tokens_kept)
    powers, numbers = np.unique(np.log2(np.maximum(tokens[outcome == KEPT], 1)).astype(int), return_counts=True)
    counts.add_all("token lengths", dict(zip(map(str, powers.tolist()), numbers.tolist(), strict=True)))
    return counts
