from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from filters.rules.ruleset import load_rules
from pipeline.builder.counts.counts import PASSED, Counts
from pipeline.builder.counts.histograms import BINS, Bins
from pipeline.builder.counts.stats import BuildStats
from pipeline.builder.counts.types import Histogram


def counted(values: Sequence[float], holds: Sequence[bool] | None = None) -> Histogram:
    """Return the histogram of the words of documents, which may be 50 to 100,000."""
    rules = load_rules("gopher_quality").rules[:1]
    assert (rules[0].name, rules[0].min, rules[0].max) == ("words", 50, 100_000)
    kept = np.ones(len(values), bool) if holds is None else np.array(holds)
    return Bins(rules).count(np.array([values], float).T, kept[:, None])["words"]


def test_sums_do_not_depend_on_the_order_of_parts() -> None:
    parts = []
    for number in range(4):
        counts = Counts({"words": counted([10.0 * number])})
        counts.add_outcome("filtered", "web", "en", "words" if number % 2 else PASSED, 10 * number)
        counts.add("bad", "invalid JSON", number=number)
        parts.append(Counts.from_json(json.loads(json.dumps(counts.to_json()))))
    whole, reverse = (BuildStats.of(Counts.sum(some)) for some in (parts, parts[::-1]))
    assert whole.to_json() == reverse.to_json()
    assert (whole.read, whole.dropped, whole.bad) == (4, {"words": 2}, {"invalid JSON": 6})
    assert whole.dropped_characters == {"words": 40}
    assert sum(whole.histograms["words"]["counts"]) == 4


def test_histograms_pass_over_nan_and_count_what_lies_beyond_in_the_outer_bins() -> None:
    counts = counted([math.nan, -1.0, 0.0, 1e9, math.inf, 3.0], [True] * 5 + [False])["counts"]
    assert (len(counts), sum(counts), counts[0], counts[-1]) == (BINS, 4, 2, 2)


def test_limits_far_apart_have_bins_of_equal_ratios() -> None:
    values = [-5.0, 0.0, 1.0, 49.0, 50.0, 3_000.0, 199_999.0, 1e9, float("inf")]
    histogram = counted(values)
    assert histogram["log"]
    bins = [k for k, count in enumerate(histogram["counts"]) for _ in range(count)]
    wanted = [int(BINS * np.log1p(max(0.0, value)) / np.log1p(200_000)) for value in values[:7]]
    assert bins == [*wanted, BINS - 1, BINS - 1]
    assert bins[3] > 8  # where bins of equal width would hold all but the longest in the first


def test_a_histogram_ends_where_its_measure_says_whatever_the_rule_is_called(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        'rude = { measure = "profanity_ratio", max = 0.01 }\nscored_words = { measure = "words", max = 20 }\n'
        '"column:int_score" = { min = 3 }\n'
    )
    empty = Bins(load_rules(tmp_path / "own.toml").rules).empty()
    assert {name: each["top"] for name, each in empty.items()} == {"rude": 1, "scored_words": 40, "column:int_score": 6}


def test_every_source_and_language_adds_up_whatever_rules_are_called() -> None:
    counts = Counts()
    counts.add_outcome("filtered", "web", "en", PASSED, 20, documents=5)
    counts.add_outcome("filtered", "web", "de", "kept", 2)  # a rule of that name
    counts.add_outcome("filtered", "wiki", "en", PASSED, 3)
    counts.add("added", "halves")
    counts.add("added to", "web", "en")
    for outcome in ("kept", "exact", "near", "max_tokens", "max_tokens"):
        counts.add_outcome("final", "web", "en", outcome, 5)
    counts.add_outcome("final", "wiki", "en", "kept", 3)
    counts.add("tokens", "web", "en", number=9)
    stats = BuildStats.of(counts)
    stats.duplicates = {"exact": 1, "near": 1}
    stats.check()
    assert stats.by_source["web"] == {
        "read": 5,
        "characters": 22,
        "dropped": {"kept": 1, "max_tokens": 2},
        "kept": 1,
        "tokens": 9,
        "duplicates": {"exact": 1, "near": 1},
        "added": 1,
    }
    assert (stats.read, stats.kept, stats.tokens, stats.dropped) == (6, 2, 9, {"kept": 1, "max_tokens": 2})
