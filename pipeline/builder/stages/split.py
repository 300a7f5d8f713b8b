"""Where every document ends: training, validation, or dropped because its source has its fill.

The result is one directory, with entries in input order. It is made part by part: nothing of it is in memory as a whole.

    split.npy       uint8, for each survivor of dedup: 0 training, 1 validation, 2 its source had its fill
    runs.json       for each split, [source, documents] as they follow each other in input order
    outcome.npy     uint8, for each document that passed the filters: 0 kept, or why not
    parts.npy       int64 [parts, 3]: the survivors of each part by what split.npy says of them
    counts.json
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...atomic import write_json
from ...errors import ConfigError, did_you_mean
from ..dedup.lsh import EXACT, NEAR
from ..dedup.row_files import write_npy
from ..draws import draws
from ..plan import Plan
from ..report.stats import Flow
from ..workspace import result_directory
from .partition import all_parts, column_numbers, column_values, part_slice, read_json
from .tokenize import survivors, token_lengths

TRAIN, VAL, OVER = 0, 1, 2
SPLITS = ("train", "val")
OVER_QUOTA = NEAR + 1  # an outcome, beside 0, EXACT and NEAR
_BINS = 1 << 16  # of hashes, in which a quota is looked for


class Survivors(NamedTuple):
    """Survivors of dedup in input order: the number of each one's source, what is drawn for it, and its tokens.

    ``splits`` and ``quotas`` (uint64) are drawn from the hash of its content and the seed.
    """

    sources: NDArray[np.int64]
    splits: NDArray[np.uint64]
    quotas: NDArray[np.uint64]
    lengths: NDArray[np.int64]


def settle(work: Path, plan: Plan) -> None:
    """Assign splits and apply token quotas by what is drawn for each content; count what became of all that passed."""
    parts = range(len(all_parts(work)))
    quotas, bounds = plan.recipe.quotas, {}
    if quotas:
        bounds = quota_bounds(lambda: (_survivors(work, plan, part) for part in parts), _numbered(plan), quotas)
    kinds = np.load(work / "dedup" / "kind.npy", mmap_mode="r")
    survive = len(kinds) - sum(read_json(work / "dedup" / "counts.json")["duplicates"].values())
    tally, table, runs = _Tally(plan), np.zeros((len(parts), 3), np.int64), [Runs(), Runs()]
    names = list(_numbered(plan))
    with result_directory(work / "settled") as directory:
        with open(directory / "split.npy", "wb") as splits, open(directory / "outcome.npy", "wb") as outcomes:
            write_npy(splits, (survive,), np.uint8, [])
            write_npy(outcomes, kinds.shape, np.uint8, [])
            for part in parts:
                kind = np.array(kinds[part_slice(work, part)])
                found = _survivors(work, plan, part)
                place = np.where(in_validation(found.splits, plan.recipe.val_fraction), VAL, TRAIN).astype(np.uint8)
                place[beyond_quotas(found, int(table.sum()), bounds)] = OVER
                outcome = kind.copy()
                outcome[kind == 0] = np.where(place == OVER, OVER_QUOTA, 0)
                place.tofile(splits)
                outcome.tofile(outcomes)
                table[part] = np.bincount(place, minlength=3)
                for number, run in enumerate(runs):
                    run.add(found.sources[place == number], names)
                tally.add(work, part, outcome, found.lengths[place != OVER])
        np.save(directory / "parts.npy", table)
        write_json(directory / "runs.json", {SPLITS[number]: run.held for number, run in enumerate(runs)})
        write_json(directory / "counts.json", tally.to_json())


def in_validation(drawn: NDArray[np.uint64], val_fraction: float) -> NDArray[np.bool_]:
    """Return which documents belong to validation: those whose number falls below the fraction.

    The order of the input, what else it holds and how it is cut into shards do not matter.
    """
    return drawn < np.uint64(min(val_fraction * 2.0**64, 2.0**64 - 2048))


def quota_bounds(
    batches: Callable[[], Iterable[Survivors]], names: dict[str, int], quotas: dict[str, int]
) -> dict[int, tuple[int, int]]:
    """Return for each source with a quota of tokens the first document, by (draw, ordinal), that stays no more.

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


def _sources(work: Path, plan: Plan, part: int) -> NDArray[np.int64]:
    """Return the number of the source of each document of a part."""
    numbers = _numbered(plan)
    of_span = np.array([numbers[plan.inputs[span.input].source] for span in plan.units[all_parts(work)[part][0]]])
    return of_span[column_numbers(work, part, "span", np.int32)]


def _survivors(work: Path, plan: Plan, part: int) -> Survivors:
    stay = survivors(work, part)
    hashes = np.load(work / "dedup" / "hashes.npy", mmap_mode="r")[part_slice(work, part)]
    splits, quotas = (draws(hashes[stay], plan.recipe.seed, purpose) for purpose in ("val", "max_tokens"))
    return Survivors(_sources(work, plan, part)[stay], splits, quotas, token_lengths(work, part))


class Runs:
    """How many documents of which source follow each other.

    >>> runs = Runs()
    >>> runs.add(np.array([0, 0, 1]), ["web", "wiki"])
    >>> runs.add(np.array([1, 0]), ["web", "wiki"])
    >>> runs.held
    [['web', 2], ['wiki', 2], ['web', 1]]
    """

    def __init__(self) -> None:
        self.held: list[list[Any]] = []

    def add(self, sources: NDArray[np.int64], names: Sequence[str]) -> None:
        """Go on with the numbers of the sources of more documents."""
        starts = np.flatnonzero(np.diff(sources, prepend=-1)).tolist()
        for start, end in pairwise([*starts, len(sources)]):
            name = names[int(sources[start])]
            if self.held and self.held[-1][0] == name:
                self.held[-1][1] += end - start
            else:
                self.held.append([name, end - start])


class _Tally:
    """Sums documents and characters by (source, language, outcome), and tokens by source, by language and by length."""

    NAMES: ClassVar = {0: "kept", EXACT: "exact", NEAR: "near", OVER_QUOTA: "max_tokens"}

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._names = sorted({item.source for item in plan.inputs})
        self._flow = Flow()
        self._by_source: Counter[str] = Counter()
        self._by_language: Counter[str] = Counter()
        self._powers: Counter[int] = Counter()

    def add(self, work: Path, part: int, outcome: NDArray[np.uint8], lengths: NDArray[np.int64]) -> None:
        """Count the documents of a part; ``lengths`` are the tokens of those that were kept."""
        tokens = np.zeros(len(outcome), np.int64)
        tokens[outcome == 0] = lengths
        languages = column_values(work, part, ["language"])["language"]
        known, codes = np.unique(np.array(languages, dtype=object).astype(str), return_inverse=True)
        characters = column_numbers(work, part, "characters", np.int64)
        keys = (_sources(work, self._plan, part) * len(known) + codes) * len(self.NAMES) + outcome
        for key in np.unique(keys).tolist():
            chosen = keys == key
            rest, what = divmod(key, len(self.NAMES))
            source, language = self._names[rest // len(known)], str(known[rest % len(known)])
            self._flow.add(
                source, language, self.NAMES[what], int(characters[chosen].sum()), documents=int(chosen.sum())
            )
            held = int(tokens[chosen].sum())
            self._by_source[source] += held
            self._by_language[language] += held
        self._powers.update(np.log2(np.maximum(lengths, 1)).astype(int).tolist())

    def to_json(self) -> dict[str, object]:
        return {
            "flow": self._flow.to_json(),
            "tokens_by_source": dict(self._by_source),
            "tokens_by_language": dict(self._by_language),
            "token_lengths": {str(2**power): self._powers[power] for power in sorted(self._powers)},
        }
