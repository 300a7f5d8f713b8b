"""The split stage: assigns documents to training and validation, and applies the token quotas of sources.

The result is one directory, with entries in input order. It is made partition by partition: nothing of it is in memory as
a whole.

    split.npy         uint8, for each survivor: 0 training, 1 validation, 2 over the quota of its source
    runs.json         for each split, [source, documents] as they follow each other in input order
    outcome.npy       uint8, for each document that passed the filters: its outcome, a number in Plan.outcomes
    partitions.npy    int64 [partitions, 3]: the survivors of each partition, by what split.npy says
    counts.json
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...atomic import read_json, write_json
from ...errors import ConfigError, did_you_mean
from ..counts.stats import BuildStats, OutcomeCounts
from ..dedup.row_files import write_npy
from ..draws import draws, threshold
from ..outcome import KEPT, Outcome
from ..partitions.partition import SPLIT, Partition, partitions
from ..plan import Plan
from ..reading import AT, BEYOND, quotas_of_pieces
from ..workspace.atomic_directory import result_directory
from ..workspace.workspace import Workspace
from .stage import Run, Stage

TRAIN, VAL, OVER = 0, 1, 2
SPLITS = ("train", "val")
_BINS = 1 << 16  # of hashes, in which a quota is looked for


class Survivors(NamedTuple):
    """Survivors in input order: the number of each one's source, what is drawn for it, and its tokens.

    ``quotas`` (uint64) are drawn from the hash of its content and the seed, ``splits`` from that of the document it is
    a part of.
    """

    sources: NDArray[np.int64]
    splits: NDArray[np.uint64]
    quotas: NDArray[np.uint64]
    lengths: NDArray[np.int64]


class SplitStage(Stage):
    """Assigns splits and applies token quotas."""

    name = SPLIT
    applies_quotas = True
    drops = Outcome("max_tokens", "max_tokens", "max_tokens of its source reached")

    def run(self, run: Run) -> None:
        if not run.workspace.folder(self.name).exists():
            assign_splits(run.workspace)

    def count(self, workspace: Workspace, stats: BuildStats) -> None:
        held = read_json(workspace.folder(self.name) / "counts.json")
        stats.token_lengths = held["token_lengths"]
        tokens = {"source": held["tokens_by_source"], "language": held["tokens_by_language"]}
        stats.add_final(OutcomeCounts(held["outcomes"]), tokens)


def assign_splits(workspace: Workspace) -> None:
    """Assign splits and apply token quotas by what is drawn for each content; count the outcomes of all that passed."""
    plan, every = workspace.plan, partitions(workspace)
    sides, quotas = quotas_of_pieces(workspace, every)
    numbered = _numbered(plan)
    bounds = quota_bounds(lambda: (_at_quota(plan, *each) for each in zip(every, sides, strict=True)), numbered, quotas)
    survivors = sum(int(np.count_nonzero(partition.survives)) for partition in every)
    passed, over_quota = every[-1].rows.stop if every else 0, plan.number_of_drops(SPLIT)
    counts, table, runs = _Counts(plan), np.zeros((len(every), 3), np.int64), [Runs(), Runs()]
    names = list(numbered)
    with result_directory(workspace.folder(SPLIT)) as directory:
        with open(directory / "split.npy", "wb") as splits, open(directory / "outcome.npy", "wb") as outcomes:
            write_npy(splits, (survivors,), np.uint8, [])
            write_npy(outcomes, (passed,), np.uint8, [])
            for partition, side in zip(every, sides, strict=True):
                found = _survivors(plan, partition)
                place = np.where(in_validation(found.splits, plan.recipe.val_fraction), VAL, TRAIN).astype(np.uint8)
                if side == BEYOND:
                    place[:] = OVER
                elif side == AT:
                    place[beyond_quotas(found, int(table.sum()), bounds)] = OVER
                outcome = np.array(partition.outcomes)
                outcome[outcome == KEPT] = np.where(place == OVER, over_quota, KEPT)
                place.tofile(splits)
                outcome.tofile(outcomes)
                table[partition.number] = np.bincount(place, minlength=3)
                for number, run in enumerate(runs):
                    run.add(found.sources[place == number], names)
                counts.add(partition, outcome, found.lengths[place != OVER])
        np.save(directory / "partitions.npy", table)
        write_json(directory / "runs.json", {SPLITS[number]: run.held for number, run in enumerate(runs)})
        write_json(directory / "counts.json", counts.to_json())


def in_validation(drawn: NDArray[np.uint64], val_fraction: float) -> NDArray[np.bool_]:
    """Return which documents belong to validation: those whose number falls below the fraction.

    This depends neither on the order of the input, nor on what else it holds, nor on how it is cut into shards.
    """
    return drawn < threshold(val_fraction)


def quota_bounds(
    batches: Callable[[], Iterable[Survivors]], names: dict[str, int], quotas: dict[str, int]
) -> dict[int, tuple[int, int]]:
    """Return, for each source with a quota of tokens, the first document by (draw, ordinal) that is not kept.

    Documents are taken in the order of what is drawn for them: a larger quota holds all that a smaller one does.
    ``batches`` gives all survivors in input order, and is called twice: to find the bin of draws in which each quota is
    reached, and to sort what lies in that bin. Sources with fewer tokens are left out.
    Raises ``ConfigError`` for a quota of a source that is not there.
    """
    for name in quotas:
        if name and name not in names:
            raise ConfigError(f"max_tokens: no source {name!r}{did_you_mean(name, names)}")
    limits = {
        number: quotas[name if name in quotas else ""]
        for name, number in names.items()
        if name in quotas or "" in quotas
    }
    tokens = {number: np.zeros(_BINS, np.int64) for number in limits}
    for batch in batches():
        for number, held in tokens.items():
            mine = batch.sources == number
            bins = (batch.quotas[mine] >> np.uint64(48)).astype(np.int64)
            np.add.at(held, bins, batch.lengths[mine])
    ends = {number: np.cumsum(held) for number, held in tokens.items()}
    bins = {number: int(np.searchsorted(end, limits[number], side="right")) for number, end in ends.items()}
    inside: dict[int, list[NDArray[np.uint64]]] = {number: [] for number in bins if bins[number] < _BINS}
    seen = 0
    for batch in batches():
        for number, found in inside.items():
            mine = np.flatnonzero((batch.sources == number) & (batch.quotas >> np.uint64(48) == bins[number]))
            columns = batch.quotas[mine], (seen + mine).astype(np.uint64), batch.lengths[mine].astype(np.uint64)
            found.append(np.stack(columns))
        seen += len(batch.sources)
    bounds = {}
    for number, found in inside.items():
        hashes, ordinals, lengths = np.concatenate(found, axis=1)
        order = np.argsort(hashes, kind="stable")
        before = int(ends[number][bins[number]] - tokens[number][bins[number]])
        first = order[np.flatnonzero(before + np.cumsum(lengths[order]) > limits[number])[0]]
        bounds[number] = int(hashes[first]), int(ordinals[first])
    return bounds


def beyond_quotas(batch: Survivors, seen: int, bounds: dict[int, tuple[int, int]]) -> NDArray[np.bool_]:
    """Return which survivors lie at or beyond the bounds of their sources; ``seen`` survivors came before these."""
    beyond = np.zeros(len(batch.sources), bool)
    ordinals = np.arange(seen, seen + len(beyond))
    for number, (least, ordinal) in bounds.items():
        hashes = batch.quotas
        after = (hashes > np.uint64(least)) | ((hashes == np.uint64(least)) & (ordinals >= ordinal))
        beyond |= after & (batch.sources == number)
    return beyond


def _numbered(plan: Plan) -> dict[str, int]:
    return {name: number for number, name in enumerate(sorted({item.source for item in plan.inputs}))}


def _sources(plan: Plan, partition: Partition) -> NDArray[np.int64]:
    """Return the number of the source of each document of a partition."""
    numbers = _numbered(plan)
    of_span = np.array([numbers[item.source] for item in partition.inputs])
    sources: NDArray[np.int64] = of_span[partition.array("span", np.int32)]
    return sources


def _survivors(plan: Plan, partition: Partition) -> Survivors:
    stay = partition.survives
    # Parts of one document share much text, windows that overlap most of it: they go together.
    origins = partition.origins_hashes if plan.recipe.transforms else partition.hashes
    splits = draws(origins[stay], plan.recipe.seed, "val")
    quotas = draws(partition.hashes[stay], plan.recipe.seed, "max_tokens")
    return Survivors(_sources(plan, partition)[stay], splits, quotas, partition.token_lengths)


def _at_quota(plan: Plan, partition: Partition, side: int) -> Survivors:
    """Return the survivors of a partition; those beside the piece in which a quota is reached are of no source."""
    found = _survivors(plan, partition)
    return found if side == AT else found._replace(sources=np.full_like(found.sources, -1))


class Runs:
    """How many documents of which source follow each other.

    >>> runs = Runs()
    >>> runs.add(np.array([0, 0, 1]), ["web", "wiki"])
    >>> runs.add(np.array([1, 0]), ["web", "wiki"])
    >>> runs.held
    [('web', 2), ('wiki', 2), ('web', 1)]
    """

    def __init__(self) -> None:
        self.held: list[tuple[str, int]] = []

    def add(self, sources: NDArray[np.int64], names: Sequence[str]) -> None:
        """Go on with the numbers of the sources of more documents."""
        starts = np.flatnonzero(np.diff(sources, prepend=-1)).tolist()
        for start, end in pairwise([*starts, len(sources)]):
            name = names[int(sources[start])]
            if self.held and self.held[-1][0] == name:
                self.held[-1] = name, self.held[-1][1] + end - start
            else:
                self.held.append((name, end - start))


class _Counts:
    """Sums documents and characters by (source, language, outcome), and tokens by source, by language and by length."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._names = sorted({item.source for item in plan.inputs})
        self._outcomes = OutcomeCounts()
        self._by_source: Counter[str] = Counter()
        self._by_language: Counter[str] = Counter()
        self._powers: Counter[int] = Counter()

    def add(self, partition: Partition, outcome: NDArray[np.uint8], lengths: NDArray[np.int64]) -> None:
        """Count the documents of a partition; ``lengths`` are the tokens of those that were kept."""
        tokens = np.zeros(len(outcome), np.int64)
        tokens[outcome == 0] = lengths
        languages = partition.values("language")["language"]
        known, codes = np.unique(np.array(languages, dtype=object).astype(str), return_inverse=True)
        characters = partition.array("characters", np.int64)
        by_number = self._plan.outcomes
        keys = (_sources(self._plan, partition) * len(known) + codes) * len(by_number) + outcome
        for key in np.unique(keys).tolist():
            chosen = keys == key
            rest, what = divmod(key, len(by_number))
            source, language = self._names[rest // len(known)], str(known[rest % len(known)])
            self._outcomes.add(
                source, language, by_number[what].key, int(characters[chosen].sum()), documents=int(chosen.sum())
            )
            held = int(tokens[chosen].sum())
            self._by_source[source] += held
            self._by_language[language] += held
        self._powers.update(np.log2(np.maximum(lengths, 1)).astype(int).tolist())

    def to_json(self) -> dict[str, object]:
        return {
            "outcomes": self._outcomes.to_json(),
            "tokens_by_source": dict(self._by_source),
            "tokens_by_language": dict(self._by_language),
            "token_lengths": {str(2**power): self._powers[power] for power in sorted(self._powers)},
        }
