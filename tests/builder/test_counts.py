from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from filters.rules.ruleset import load_rules
from pipeline.builder.counts.stats import BINS, PASSED, BuildStats, Histograms, OutcomeCounts, PartitionCounts, by_group


def counted(*rows: tuple[str, str, str, int]) -> OutcomeCounts:
    flow = OutcomeCounts()
    for row in rows:
        flow.add(*row)
    return flow


def test_sums_do_not_depend_on_the_order_of_parts() -> None:
    parts = []
    for number in range(4):
        counts = PartitionCounts(Histograms(load_rules("gopher_quality").rules[:1]))
        counts.outcomes.add("web", "en", "words" if number % 2 else PASSED, 10 * number)
        counts.histograms.add(np.array([[10.0 * number]]), np.ones((1, 1), bool))
        counts.bad["invalid JSON"] += number
        parts.append(json.loads(json.dumps(counts.to_json())))
    whole, reverse = BuildStats(), BuildStats()
    whole.add_partitions(parts)
    reverse.add_partitions(parts[::-1])
    assert whole.to_json() == reverse.to_json()
    assert (whole.read, whole.dropped, whole.bad) == (4, {"words": 2}, {"invalid JSON": 6})
    assert whole.dropped_characters == {"words": 40}
    assert sum(whole.histograms["words"]["counts"]) == 4


def test_counts_of_outcomes_survive_json() -> None:
    flow = counted(("web", "en", "words", 5), ("web", "en", "words", 6), ("", "de", PASSED, 7))
    assert OutcomeCounts(json.loads(json.dumps(flow.to_json()))).to_json() == flow.to_json()
    assert flow.by_outcome("source") == {("web", "words"): [2, 11], ("", PASSED): [1, 7]}


def test_histograms_pass_over_nan_and_count_what_lies_beyond_in_the_outer_bins() -> None:
    histograms = Histograms(load_rules("gopher_quality").rules[:2])
    words = [math.nan, -1.0, 0.0, 1e9, math.inf, 3.0]
    histograms.add(np.array([words, [5.0] * 6]).T, np.array([[True] * 5 + [False], [True] * 6]).T)
    counts = histograms.to_json()["words"]["counts"]
    assert (len(counts), sum(counts), counts[0], counts[-1]) == (BINS, 4, 2, 2)
    assert sorted(histograms.to_json()["mean_word_length"]["counts"])[-2:] == [0, 6]


def test_limits_far_apart_have_bins_of_equal_ratios() -> None:
    rules = load_rules("gopher_quality").rules[:1]
    assert (rules[0].name, rules[0].min, rules[0].max) == ("words", 50, 100_000)
    histograms = Histograms(rules)
    values = [-5.0, 0.0, 1.0, 49.0, 50.0, 3_000.0, 199_999.0, 1e9, float("inf")]
    histograms.add(np.array([values]).T, np.ones((len(values), 1), bool))
    held = histograms.to_json()["words"]
    assert held["log"]
    places = [k for k, count in enumerate(held["counts"]) for _ in range(count)]
    wanted = [int(BINS * np.log1p(max(0.0, value)) / np.log1p(200_000)) for value in values[:7]]
    assert places == [*wanted, BINS - 1, BINS - 1]
    assert places[3] > 8  # where bins of equal width would hold all but the longest in the first


def test_a_histogram_ends_where_its_measure_says_whatever_the_rule_is_called(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        'rude = { measure = "profanity_ratio", max = 0.01 }\nscored_words = { measure = "words", max = 20 }\n'
        '"column:int_score" = { min = 3 }\n'
    )
    held = Histograms(load_rules(tmp_path / "own.toml").rules).to_json()
    assert {name: each["top"] for name, each in held.items()} == {"rude": 1, "scored_words": 40, "column:int_score": 6}


@pytest.mark.parametrize("name", ["source", "language"])
def test_every_group_adds_up(name: str) -> None:
    filtered = counted(*[("web", "en", PASSED, 5)] * 4, ("web", "de", "words", 2), ("wiki", "en", PASSED, 3))
    final = counted(
        ("web", "en", "kept", 5), ("web", "en", "exact", 5), ("web", "en", "near", 5), ("web", "en", "max_tokens", 5)
    )
    final.add("wiki", "en", "kept", 3)
    for group in by_group(name, filtered, final, {"web": 9}).values():
        lost = sum(group["dropped"].values()) + sum(group.get("duplicates", {}).values())
        assert group["read"] == lost + group["kept"]
