"""The units' counts -> the build's counts. Sums, so the order of units does not matter."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .filtering import SAMPLES, unit_path

_NUMBERS = ("read", "kept", "characters", "kept_characters")
_COUNTERS = ("bad", "dropped", "cut", "read_by_language", "read_by_source", "kept_by_source")


def sum_counts(work: Path, units: Sequence[int]) -> dict[str, Any]:
    """Return the summed counts of all filter units.

    ``read`` documents are those that were judged; ``bad`` records gave none. ``dropped`` counts by rule, ``histograms``
    holds bins of each measure, ``samples`` the first few texts of each verdict, ``hashes`` the sha256 of each span read.
    """
    total: dict[str, Any] = dict.fromkeys(_NUMBERS, 0)
    counters: dict[str, Counter[str]] = {name: Counter() for name in _COUNTERS}
    histograms: dict[str, dict[str, Any]] = {}
    samples: dict[str, list[Any]] = {}
    hashes = []
    for unit in units:
        counts = json.loads((unit_path(work, unit) / "counts.json").read_text(encoding="utf-8"))
        for name in _NUMBERS:
            total[name] += counts[name]
        for name, counter in counters.items():
            counter.update(counts[name])
        for name, histogram in counts["histograms"].items():
            held = histograms.setdefault(name, {**histogram, "counts": [0] * len(histogram["counts"])})
            held["counts"] = [a + b for a, b in zip(held["counts"], histogram["counts"], strict=True)]
        for name, found in counts["samples"].items():
            samples[name] = (samples.get(name, []) + found)[:SAMPLES]
        hashes.append([span["sha256"] for span in counts["spans"]])
    total["passed_filters"] = total.pop("kept")
    return {**total, **counters, "histograms": histograms, "samples": samples, "hashes": hashes}
