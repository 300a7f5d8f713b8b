"""What was counted. Each unit counts for itself; sums over units are the build's counts, in whatever order they came."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from filters.rules.loader import Rule

from .samples import Samples

BINS = 40
PASSED = ""  # the outcome of a document that no filter dropped


class Flow:
    """How many documents and characters met which outcome, by source and language.

    >>> flow = Flow()
    >>> flow.add("web", "en", "words", 10), flow.add("web", "de", "words", 5)
    (None, None)
    >>> flow.by("outcome")
    {'words': [2, 15]}
    """

    FIELDS = ("source", "language", "outcome")

    def __init__(self, rows: Iterable[Sequence[Any]] = ()) -> None:
        self._held: dict[tuple[str, str, str], list[int]] = {}
        for source, language, outcome, *numbers in rows:
            self.add(source, language, outcome, numbers[1], documents=numbers[0])

    def add(self, source: str, language: str, outcome: str, characters: int, *, documents: int = 1) -> None:
        held = self._held.setdefault((source, language, outcome), [0, 0])
        held[0] += documents
        held[1] += characters

    def update(self, other: Flow) -> None:
        for (source, language, outcome), (documents, characters) in other._held.items():
            self.add(source, language, outcome, characters, documents=documents)

    def by(self, *names: str) -> dict[Any, list[int]]:
        """Sum ``[documents, characters]`` by one field, or by the tuple of several."""
        places = [self.FIELDS.index(name) for name in names]
        sums: dict[Any, list[int]] = {}
        for key, (documents, characters) in sorted(self._held.items()):
            held = sums.setdefault(key[places[0]] if len(places) == 1 else tuple(key[p] for p in places), [0, 0])
            held[0] += documents
            held[1] += characters
        return sums

    def to_json(self) -> list[list[Any]]:
        return [[*key, *numbers] for key, numbers in sorted(self._held.items())]


class Histograms:
    """Documents by the value of each measure, in fixed bins around its limits, so that they can be summed.

    Bins are equal parts of 0 to ``top``, or of log2(1 + value) where limits lie far apart, as for 50 to 100,000 words.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        self._limits = [[limit for limit in (rule.min, rule.max) if np.isfinite(limit)] for rule in self._rules]
        self._tops = [_top(rule.name, limits) for rule, limits in zip(self._rules, self._limits, strict=True)]
        self._logs = np.array([_far_apart(limits) for limits in self._limits], bool)
        self._ends = np.where(self._logs, np.log2(1.0 + np.array(self._tops)), self._tops)
        self._counts = np.zeros((len(self._rules), BINS), np.int64)

    def add(self, values: NDArray[np.float64], holds: NDArray[np.bool_]) -> None:
        """Count what was measured of documents, ``[documents, rules]`` each.

        NaN and what does not hold is in no bin, what lies beyond in the outer ones.
        """
        counted = holds & ~np.isnan(values)
        scaled = np.where(counted, values, 0)
        scaled[:, self._logs] = np.log2(1.0 + np.maximum(scaled[:, self._logs], 0))
        scaled *= BINS / self._ends
        bins = np.clip(scaled, 0, BINS - 1).astype(np.int64) + BINS * np.arange(len(self._rules))
        self._counts += np.bincount(bins[counted], minlength=self._counts.size).reshape(self._counts.shape)

    def to_json(self) -> dict[str, dict[str, Any]]:
        return {
            rule.name: {"top": top, "log": log, "limits": limits, "counts": counts}
            for rule, top, log, limits, counts in zip(
                self._rules, self._tops, self._logs.tolist(), self._limits, self._counts.tolist(), strict=True
            )
        }


def _top(name: str, limits: Sequence[float]) -> float:
    """Return where the last bin ends."""
    return 1.0 if "ratio" in name or "score" in name else max([2 * limit for limit in limits if limit > 0], default=1.0)


def _far_apart(limits: Sequence[float]) -> bool:
    return len(limits) == 2 and 0 < 100 * limits[0] <= limits[1]


@dataclass(slots=True)
class Counts:
    """What one part of a filter unit counted."""

    histograms: Histograms
    flow: Flow = field(default_factory=Flow)
    bad: Counter[str] = field(default_factory=Counter)
    bad_by_source: Counter[str] = field(default_factory=Counter)
    cut: Counter[str] = field(default_factory=Counter)
    samples: Samples = field(default_factory=Samples)
    read_characters: int = 0  # as read, before normalising and cutting
    records: int = 0  # consumed, bad ones included
    kept: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "histograms": self.histograms.to_json(),
            "flow": self.flow.to_json(),
            "bad": dict(self.bad),
            "bad_by_source": dict(self.bad_by_source),
            "cut": dict(self.cut),
            "samples": self.samples.to_json(),
            "read_characters": self.read_characters,
            "records": self.records,
            "kept": self.kept,
        }


def sum_filter_counts(parts: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], Flow]:
    """Sum the counts of all filter parts.

    ``read`` documents were judged; ``bad`` records gave none; ``dropped`` counts by rule, ``cut`` counts lines and
    ``histograms`` holds bins of each measure. Where repeated lines or paragraphs were cut, ``repeats`` holds how many
    characters were ``compared``, in how many ``passages``, and how many ``lines`` or ``paragraphs`` of ``characters`` were
    cut from ``documents`` of which enough was left.
    """
    flow = Flow()
    counters: dict[str, Counter[str]] = {name: Counter() for name in ("bad", "bad_by_source", "cut")}
    repeats: Counter[str] = Counter()
    histograms: dict[str, dict[str, Any]] = {}
    characters = 0
    for part in parts:
        flow.update(Flow(part["flow"]))
        characters += part["read_characters"]
        for name, counter in counters.items():
            counter.update(part[name])
        repeats.update(part.get("repeats", {}))
        for name, histogram in part["histograms"].items():
            held = histograms.setdefault(name, {**histogram, "counts": [0] * BINS})
            held["counts"] = [a + b for a, b in zip(held["counts"], histogram["counts"], strict=True)]
    outcomes = flow.by("outcome")
    passed = outcomes.pop(PASSED, [0, 0])
    counts = {
        "read": passed[0] + sum(documents for documents, _ in outcomes.values()),
        "characters": characters,
        "passed_filters": passed[0],
        "kept_characters": passed[1],
        "dropped": {name: documents for name, (documents, _) in outcomes.items()},
        "dropped_characters": {name: size for name, (_, size) in outcomes.items()},
        "histograms": histograms,
        **counters,
        **({"repeats": repeats} if repeats else {}),
    }
    return counts, flow


def by_group(name: str, filtered: Flow, final: Flow, tokens: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return, for each source or language, what became of its documents; its numbers add up to those read.

    ``filtered`` holds the outcomes of the filters, ``final`` what became of those that passed: "exact" or "near"
    duplicates, "max_tokens", "kept".
    """
    groups: dict[str, dict[str, Any]] = {}
    for (group, outcome), (documents, characters) in filtered.by(name, "outcome").items():
        held = groups.setdefault(group, {"read": 0, "characters": 0, "dropped": {}, "kept": 0, "tokens": 0})
        held["read"] += documents
        held["characters"] += characters
        if outcome != PASSED:
            held["dropped"][outcome] = documents
    for (group, outcome), (documents, _) in final.by(name, "outcome").items():
        if outcome == "kept":
            groups[group]["kept"] = documents
            groups[group]["tokens"] = tokens.get(group, 0)
        elif outcome in ("exact", "near"):
            groups[group].setdefault("duplicates", {})[outcome] = documents
        else:
            groups[group]["dropped"][outcome] = documents
    return groups
