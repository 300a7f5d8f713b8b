"""The counts of a part of a build: of a partition, a stage or the whole. They merge by adding, in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from filters.rules.rule import Rule

from ...atomic import read_json
from .samples import NearestTexts, Samples

PASSED = ""  # the outcome of a document that no filter dropped
BINS = 40  # of a histogram


class Histogram(TypedDict):
    """``counts`` of documents in equal bins from 0 to ``top`` of a measured value, or of log2(1 + value) if ``log``."""

    top: float
    log: bool
    limits: list[float]
    counts: list[int]


class Counts:
    """Numbers by paths of names, histograms and nearest texts by rule, and samples by outcome.

    The paths, as stages write them:

        filtered, SOURCE, LANGUAGE, OUTCOME     documents after the filters; outcome '' passed them
        final, SOURCE, LANGUAGE, OUTCOME        the documents that passed, by their last outcome
        characters of filtered, ...             their characters; "characters of final, ..." likewise
        tokens, SOURCE, LANGUAGE                tokens of the kept documents
        token lengths, POWER                    documents of that many tokens, as a power of two
        bad, REASON                             records without a document; also "bad by source, SOURCE"
        cut, WHAT / edited, TRANSFORM           lines that were cut; documents that a transform edited
        added, TRANSFORM                        n - 1 for each document that became n
        added to, SOURCE, LANGUAGE              these added documents, by source and language
        NAME, WHAT                              other counts of a stage, under a name that the stage chooses
        read characters / records               characters before any edit; records, the bad ones too

    >>> counts, more = Counts(), Counts()
    >>> counts.add_outcome("filtered", "web", "en", "words", 10)
    >>> more.add_outcome("filtered", "web", "de", "words", 5)
    >>> counts.update(more)
    >>> counts.by("filtered", 2), counts.by("characters of filtered", 1)
    ({'words': 2}, {'de': 5, 'en': 10})
    """

    def __init__(self, histograms: Mapping[str, Histogram] | None = None) -> None:
        self.numbers: Counter[tuple[str, ...]] = Counter()
        self.histograms = dict(histograms or {})
        self.samples = Samples()
        self.nearest = NearestTexts()

    def add(self, *path: str, number: int = 1) -> None:
        self.numbers[path] += number

    def add_all(self, name: str, numbers: Mapping[str, int]) -> None:
        """Add numbers under the paths ``name, key``."""
        for key, number in numbers.items():
            self.numbers[name, key] += number

    def add_outcome(
        self, name: str, source: str, language: str, outcome: str, characters: int, documents: int = 1
    ) -> None:
        self.numbers[name, source, language, outcome] += documents
        self.numbers[f"characters of {name}", source, language, outcome] += characters

    def update(self, other: Counts) -> None:
        self.numbers.update(other.numbers)
        self.histograms = add_histograms(self.histograms, other.histograms)
        self.samples.update(other.samples.to_json())
        self.nearest.merge(other.nearest)

    def by(self, name: str, at: int = 0) -> dict[str, int]:
        """Sum the numbers under a name by one of the names that follow it."""
        return {group: number for (group,), number in self.groups(name, at)}

    def groups(self, name: str, *at: int) -> list[tuple[tuple[str, ...], int]]:
        """Sum the numbers under a name by some of the names that follow it."""
        sums: Counter[tuple[str, ...]] = Counter()
        for (first, *rest), number in self.numbers.items():
            if first == name:
                sums[tuple(rest[index] for index in at)] += number
        return sorted(sums.items())

    def to_json(self) -> dict[str, Any]:
        numbers = [[*path, number] for path, number in sorted(self.numbers.items())]
        return {
            "numbers": numbers,
            "histograms": self.histograms,
            "samples": self.samples.to_json(),
            "nearest": self.nearest,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Counts:
        counts = cls(value["histograms"])
        counts.numbers.update({tuple(path): number for *path, number in value["numbers"]})
        counts.samples.update(value["samples"])
        counts.nearest.merge(value["nearest"])
        return counts

    @classmethod
    def read(cls, path: Path) -> Counts:
        return cls.from_json(read_json(path))

    @classmethod
    def sum(cls, pieces: Iterable[Counts]) -> Counts:
        total = cls()
        for piece in pieces:
            total.update(piece)
        return total


def descending(numbers: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the entries by falling number; entries of equal numbers by name."""
    return sorted(numbers.items(), key=lambda item: (-item[1], item[0]))


class Bins:
    """The bins of the values that some rules measure.

    They divide 0 to ``top`` equally, or log2(1 + value) if the limits are far apart, as for 50 to 100,000 words.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._limits = [[limit for limit in (rule.min, rule.max) if np.isfinite(limit)] for rule in rules]
        self._tops = [_top(rule, limits) for rule, limits in zip(rules, self._limits, strict=True)]
        far_apart = [len(limits) == 2 and 0 < 100 * limits[0] <= limits[1] for limits in self._limits]
        self._logs = np.array(far_apart, bool)
        self._ends = np.where(self._logs, np.log2(1.0 + np.array(self._tops)), self._tops)

    def empty(self) -> dict[str, Histogram]:
        """Return the histograms of no documents."""
        return self.count(np.empty((0, len(self._rules))), np.empty((0, len(self._rules)), bool))

    def count(self, values: NDArray[np.float64], holds: NDArray[np.bool_]) -> dict[str, Histogram]:
        """Return the histograms of measured ``values``. ``holds`` says which values apply; both are ``[documents, rules]``.

        NaN and values that do not apply are in no bin. Values beyond the ends are in the first or the last bin.
        """
        counted = holds & ~np.isnan(values)
        scaled = np.where(counted, values, 0)
        scaled[:, self._logs] = np.log2(1.0 + np.maximum(scaled[:, self._logs], 0))
        scaled *= BINS / self._ends
        bins = np.clip(scaled, 0, BINS - 1).astype(np.int64) + BINS * np.arange(len(self._rules))
        counts = np.bincount(bins[counted], minlength=BINS * len(self._rules)).reshape(-1, BINS)
        return {
            rule.name: {"top": top, "log": log, "limits": limits, "counts": some}
            for rule, top, log, limits, some in zip(
                self._rules, self._tops, self._logs.tolist(), self._limits, counts.tolist(), strict=True
            )
        }


def add_histograms(first: Mapping[str, Histogram], second: Mapping[str, Histogram]) -> dict[str, Histogram]:
    """Return the histograms of both, with the counts of equal names added."""
    total = {**first, **second}
    for name in first.keys() & second.keys():
        pairs = zip(first[name]["counts"], second[name]["counts"], strict=True)
        total[name] = {**first[name], "counts": [a + b for a, b in pairs]}
    return total


def _top(rule: Rule, limits: Sequence[float]) -> float:
    """Return the end of the last bin, by the rule in the docstring of `filters`."""
    measure = rule.measure.rpartition(":")[2]
    if "ratio" in measure or "score" in measure:
        return 1.0
    return max([2 * limit for limit in limits if limit > 0], default=1.0)
