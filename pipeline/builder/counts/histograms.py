"""Documents by the value of each measure, in fixed bins around its limits, so that they can be summed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from filters.rules.rule import Rule

from .count_types import Histogram

BINS = 40


class Bins:
    """The bins of the measures of some rules.

    They are equal parts of 0 to ``top``, or of log2(1 + value) where limits lie far apart, as for 50 to 100,000 words.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._limits = [[limit for limit in (rule.min, rule.max) if np.isfinite(limit)] for rule in rules]
        self._tops = [_top(rule, limits) for rule, limits in zip(rules, self._limits, strict=True)]
        self._logs = np.array([_far_apart(limits) for limits in self._limits], bool)
        self._ends = np.where(self._logs, np.log2(1.0 + np.array(self._tops)), self._tops)

    def empty(self) -> dict[str, Histogram]:
        """Return the histograms of no documents."""
        return self.count(np.empty((0, len(self._rules))), np.empty((0, len(self._rules)), bool))

    def count(self, values: NDArray[np.float64], holds: NDArray[np.bool_]) -> dict[str, Histogram]:
        """Return the histograms of what was measured of documents, ``[documents, rules]`` each.

        NaN and values that do not hold are in no bin; values beyond the ends are in the first or the last one.
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
    """Return the sums of histograms of equal names, and the others as they are."""
    total = {**first, **second}
    for name in first.keys() & second.keys():
        pairs = zip(first[name]["counts"], second[name]["counts"], strict=True)
        total[name] = {**first[name], "counts": [a + b for a, b in pairs]}
    return total


def _top(rule: Rule, limits: Sequence[float]) -> float:
    """Return where the last bin ends, as the docstring of `filters` tells authors of measures."""
    measure = rule.measure.rpartition(":")[2]
    if "ratio" in measure or "score" in measure:
        return 1.0
    return max([2 * limit for limit in limits if limit > 0], default=1.0)


def _far_apart(limits: Sequence[float]) -> bool:
    return len(limits) == 2 and 0 < 100 * limits[0] <= limits[1]
