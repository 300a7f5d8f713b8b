"""What is counted: by each partition, and summed over partitions, in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from filters.rules.loader import Rule

from ...errors import BuildError
from ...shards.verify.counts import imbalances
from ..outcome import DUPLICATES, KEPT, OUTCOMES
from .margins import Margins
from .samples import Samples
from .types import DamagedFile, Group, Histogram, OutcomeRow, PartitionRecord, Sample

BINS = 40
PASSED = ""  # the outcome of a document that no filter dropped
_SUMMED = ("bad", "bad_by_source", "cut", "edited", "added", "repeats")  # counters that partitions and builds both have
# Metadata of the fields of `BuildStats`: whether the manifest has them; it always has all others.
_NEVER = {"manifest": "never"}
_IF_ANY = {"manifest": "unless empty"}


class OutcomeCounts:
    """How many documents and characters met which outcome, by source and language.

    >>> flow = OutcomeCounts()
    >>> flow.add("web", "en", "words", 10), flow.add("web", "de", "words", 5)
    (None, None)
    >>> flow.by("outcome")
    {'words': [2, 15]}
    """

    FIELDS = ("source", "language", "outcome")

    def __init__(self, rows: Iterable[OutcomeRow] = ()) -> None:
        self._sums: dict[tuple[str, str, str], list[int]] = {}
        for source, language, outcome, documents, characters in rows:
            self.add(source, language, outcome, characters, documents=documents)

    def add(self, source: str, language: str, outcome: str, characters: int, *, documents: int = 1) -> None:
        pair = self._sums.setdefault((source, language, outcome), [0, 0])
        pair[0] += documents
        pair[1] += characters

    def extend(self, documents: Iterable[tuple[str, str, str, int]]) -> None:
        """Count documents by ``(source, language, outcome, characters)``."""
        for source, language, outcome, characters in documents:
            self.add(source, language, outcome, characters)

    def update(self, other: OutcomeCounts) -> None:
        for (source, language, outcome), (documents, characters) in other._sums.items():
            self.add(source, language, outcome, characters, documents=documents)

    def by(self, name: str) -> dict[str, list[int]]:
        """Sum ``[documents, characters]`` by one field."""
        sums: dict[str, list[int]] = {}
        for (group, _), (documents, characters) in self.by_outcome(name).items():
            pair = sums.setdefault(group, [0, 0])
            pair[0] += documents
            pair[1] += characters
        return sums

    def by_outcome(self, name: str) -> dict[tuple[str, str], list[int]]:
        """Sum ``[documents, characters]`` by one field and the outcome."""
        field = self.FIELDS.index(name)
        sums: dict[tuple[str, str], list[int]] = {}
        for key, (documents, characters) in sorted(self._sums.items()):
            pair = sums.setdefault((key[field], key[2]), [0, 0])
            pair[0] += documents
            pair[1] += characters
        return sums

    def to_json(self) -> list[OutcomeRow]:
        return [(*key, documents, characters) for key, (documents, characters) in sorted(self._sums.items())]


class Histograms:
    """Documents by the value of each measure, in fixed bins around its limits, so that they can be summed.

    Bins are equal parts of 0 to ``top``, or of log2(1 + value) where limits lie far apart, as for 50 to 100,000 words.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        self._limits = [[limit for limit in (rule.min, rule.max) if np.isfinite(limit)] for rule in self._rules]
        self._tops = [_top(rule, limits) for rule, limits in zip(self._rules, self._limits, strict=True)]
        self._logs = np.array([_far_apart(limits) for limits in self._limits], bool)
        self._ends = np.where(self._logs, np.log2(1.0 + np.array(self._tops)), self._tops)
        self._counts = np.zeros((len(self._rules), BINS), np.int64)

    def add(self, values: NDArray[np.float64], holds: NDArray[np.bool_]) -> None:
        """Count what was measured of documents, ``[documents, rules]`` each.

        NaN and values that do not hold are in no bin; values beyond the ends are in the first or the last one.
        """
        counted = holds & ~np.isnan(values)
        scaled = np.where(counted, values, 0)
        scaled[:, self._logs] = np.log2(1.0 + np.maximum(scaled[:, self._logs], 0))
        scaled *= BINS / self._ends
        bins = np.clip(scaled, 0, BINS - 1).astype(np.int64) + BINS * np.arange(len(self._rules))
        self._counts += np.bincount(bins[counted], minlength=self._counts.size).reshape(self._counts.shape)

    def to_json(self) -> dict[str, Histogram]:
        return {
            rule.name: {"top": top, "log": log, "limits": limits, "counts": counts}
            for rule, top, log, limits, counts in zip(
                self._rules, self._tops, self._logs.tolist(), self._limits, self._counts.tolist(), strict=True
            )
        }


def _top(rule: Rule, limits: Sequence[float]) -> float:
    """Return where the last bin ends, as the docstring of `filters` tells authors of measures."""
    measure = rule.measure.rpartition(":")[2]
    if "ratio" in measure or "score" in measure:
        return 1.0
    return max([2 * limit for limit in limits if limit > 0], default=1.0)


def _far_apart(limits: Sequence[float]) -> bool:
    return len(limits) == 2 and 0 < 100 * limits[0] <= limits[1]


@dataclass(slots=True)
class PartitionCounts:
    """What filtering one partition counted."""

    histograms: Histograms
    outcomes: OutcomeCounts = field(default_factory=OutcomeCounts)
    bad: Counter[str] = field(default_factory=Counter)
    bad_by_source: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    edited: Counter[str] = field(default_factory=Counter)  # documents, by the user's transform that changed their text
    added: Counter[str] = field(default_factory=Counter)  # documents beyond the one that several were made of
    added_to: OutcomeCounts = field(default_factory=OutcomeCounts)  # the same by source and language
    samples: Samples = field(default_factory=Samples)
    margins: Margins = field(default_factory=Margins)
    read_characters: int = 0  # as read, before normalising and cutting
    records: int = 0  # consumed, bad ones included
    kept: int = 0

    def to_json(self) -> PartitionRecord:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        plain = {name: value.to_json() if hasattr(value, "to_json") else value for name, value in values.items()}
        return cast(PartitionRecord, plain)


class Change(NamedTuple):
    """What removed documents or characters, or added documents: then ``documents`` is negative."""

    what: str
    documents: int
    characters: int


@dataclass(slots=True)
class BuildStats:
    """The counts of a build, as ``counts`` of its manifest. Documents ``read`` or ``added`` are dropped, duplicates or kept.

    ``bad`` records gave no document; ``dropped`` counts by rule; ``cut`` counts lines; ``histograms`` holds bins of each
    measure. ``repeats``, where repeated lines or paragraphs were cut: how many characters were ``compared``, in how many
    ``passages``, and how many ``lines`` or ``paragraphs`` of ``characters`` were cut from ``documents`` that were kept.
    """

    read: int = 0
    characters: int = 0
    passed_filters: int = 0
    kept: int = 0
    kept_characters: int = 0
    tokens: int = 0
    bad: dict[str, int] = field(default_factory=dict)
    bad_by_source: dict[str, int] = field(default_factory=dict)
    damaged: list[DamagedFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list, metadata=_IF_ANY)  # what else a reader of the report must know
    dropped: dict[str, int] = field(default_factory=dict)
    dropped_characters: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    edited: dict[str, int] = field(default_factory=dict, metadata=_IF_ANY)  # documents, by the user's transform
    added: dict[str, int] = field(default_factory=dict, metadata=_IF_ANY)  # documents, by the user's transform
    repeats: dict[str, int] = field(default_factory=dict, metadata=_IF_ANY)
    duplicates: dict[str, int] = field(default_factory=dict)
    duplicate_characters: dict[str, int] = field(default_factory=dict)
    cluster_sizes: dict[str, int] = field(default_factory=dict)
    token_lengths: dict[str, int] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    by_source: dict[str, Group] = field(default_factory=dict)
    by_language: dict[str, Group] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    filtered: OutcomeCounts = field(default_factory=OutcomeCounts, metadata=_NEVER)  # the outcomes of the filters
    added_to: OutcomeCounts = field(default_factory=OutcomeCounts, metadata=_NEVER)

    def to_json(self) -> dict[str, Any]:
        values = {item: getattr(self, item.name) for item in fields(self) if item.metadata != _NEVER}
        return {item.name: value for item, value in values.items() if value or item.metadata != _IF_ANY}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BuildStats:
        known = {item.name for item in fields(cls) if item.metadata != _NEVER}
        return cls(**{name: count for name, count in value.items() if name in known})

    def add_partitions(self, partitions: Iterable[PartitionRecord]) -> None:
        """Sum the counts of all partitions."""
        sums = {name: Counter[str]() for name in _SUMMED}
        for partition in partitions:
            self.filtered.update(OutcomeCounts(partition["outcomes"]))
            self.added_to.update(OutcomeCounts(partition["added_to"]))
            self.characters += partition["read_characters"]
            for name, counter in sums.items():
                counter.update(cast(dict[str, int], partition.get(name, {})))
            for name, histogram in partition["histograms"].items():
                total = self.histograms.setdefault(name, {**histogram, "counts": [0] * BINS})
                total["counts"] = [a + b for a, b in zip(total["counts"], histogram["counts"], strict=True)]
        for name, counter in sums.items():
            setattr(self, name, dict(counter))
        by_rule = self.filtered.by("outcome")
        self.passed_filters, self.kept_characters = by_rule.pop(PASSED, [0, 0])
        self.read = self.passed_filters + sum(documents for documents, _ in by_rule.values())
        self.read -= sum(self.added.values())
        self.dropped = {name: documents for name, (documents, _) in by_rule.items()}
        self.dropped_characters = {name: size for name, (_, size) in by_rule.items()}

    def add_final(self, final: OutcomeCounts, tokens: Mapping[str, Mapping[str, int]]) -> None:
        """Add what became of the documents that passed the filters; ``tokens`` are those by source and by language."""
        outcomes = final.by("outcome")
        self.kept, self.kept_characters = outcomes.pop(OUTCOMES[KEPT].key, [0, 0])
        self.duplicate_characters = {key: outcomes.pop(key, [0, 0])[1] for key in DUPLICATES}
        for key, (documents, characters) in outcomes.items():
            self.dropped[key] = self.dropped.get(key, 0) + documents
            self.dropped_characters[key] = self.dropped_characters.get(key, 0) + characters
        self.tokens = sum(tokens["source"].values())
        self.by_source = by_group("source", self.filtered, final, tokens["source"], self.added_to)
        self.by_language = by_group("language", self.filtered, final, tokens["language"], self.added_to)

    def check(self) -> None:
        """Raise ``BuildError`` unless the counts add up, in all and for each source and language."""
        for imbalance in imbalances(self.to_json()):
            raise BuildError(f"{imbalance}: this is a fault of the builder, not of the input; please report it")


def by_group(
    name: str,
    filtered: OutcomeCounts,
    final: OutcomeCounts,
    tokens: Mapping[str, int],
    added: OutcomeCounts | None = None,
) -> dict[str, Group]:
    """Return, for each source or language, what became of its documents; its numbers add up to those read.

    ``filtered`` holds the outcomes of the filters, ``final`` what became of those that passed: they are "kept", "exact" or
    "near" duplicates, or dropped by a later stage. Those ``added`` by transforms, of the former, are not among those read.
    """
    groups: dict[str, Group] = {}
    for (group, outcome), (documents, characters) in filtered.by_outcome(name).items():
        counts = groups.setdefault(group, {"read": 0, "characters": 0, "dropped": {}, "kept": 0, "tokens": 0})
        counts["read"] += documents
        counts["characters"] += characters
        if outcome != PASSED:
            counts["dropped"][outcome] = documents
    for group, (documents, _) in (added.by(name) if added else {}).items():
        groups[group]["read"] -= documents
        groups[group]["added"] = documents
    for (group, outcome), (documents, _) in final.by_outcome(name).items():
        if outcome == OUTCOMES[KEPT].key:
            groups[group]["kept"] = documents
            groups[group]["tokens"] = tokens.get(group, 0)
        elif outcome in DUPLICATES:
            groups[group].setdefault("duplicates", {})[outcome] = documents
        else:
            dropped = groups[group]["dropped"]
            dropped[outcome] = dropped.get(outcome, 0) + documents
    return groups


def descending(counter: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the entries by falling number, equal ones by name."""
    return sorted(counter.items(), key=lambda item: (-item[1], item[0]))
