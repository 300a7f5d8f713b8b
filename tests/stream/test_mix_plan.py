"""The plan of a mix: what a run reads of each source, counted before it by arithmetic, and weights that keep within caps."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.errors import ConfigError
from tests.stream.order_oracle_mixes import served
from tests.stream.streams import NAMES, sources


def sized(**tokens: int) -> dict[str, pipeline.Stream]:
    return sources({name: [5] * (size // 5) for name, size in tokens.items()})


POINTS = st.lists(
    st.tuples(st.integers(1, 900), st.lists(st.integers(0, 5), min_size=3, max_size=3)), min_size=1, max_size=3
)


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(20, 200), min_size=3, max_size=3),
    points=POINTS,
    linear=st.booleans(),
    kind=st.sampled_from(["pack", "strided", "documents", "sample"]),
    lanes=st.sampled_from([1, 3, 8]),
    tokens=st.integers(1, 6000),
)
def test_a_plan_of_shards_is_what_the_run_reads(
    sizes: list[int], points: Any, linear: bool, kind: str, lanes: int, tokens: int
) -> None:
    documents = {name: [4 + number % 3 for number in range(size)] for name, size in zip(NAMES, sizes, strict=True)}
    at, shares = zip(*points, strict=True)
    named = [dict(zip(NAMES, [*row[:2], row[2] + 1], strict=True)) for row in shares]
    schedule = pipeline.Schedule(
        [(sum(at[:k]), weights) for k, weights in enumerate(named)], unit="tokens", linear=linear
    )
    shuffled = pipeline.mix(sources(documents), schedule).shuffle(
        seed=3, **({} if kind == "sample" else {"lanes": lanes})
    )
    stream = {
        "pack": lambda: shuffled.pack(8),
        "strided": lambda: shuffled.pack(8, stride=3),
        "documents": shuffled.documents,
        "sample": lambda: shuffled.sample(8),
    }[kind]()
    plan = stream.plan(tokens)
    found = [row["input_ids"].tolist() for row in islice(stream, plan.rows)]
    if kind != "documents":
        assert plan.rows == -(-tokens // 8)
        assert plan.exact
    of_source = Counter(NAMES[row[0] // 20_000] for row in found)
    units = {name: len(each) if kind == "documents" else sum(each) for name, each in documents.items()}
    stride = {"documents": 1, "strided": 3}.get(kind, 8)
    for name, row in plan.sources.items():
        assert row["rows"] == of_source[name]
        assert row["share"] == of_source[name] / plan.rows
        assert row["epochs"] == pytest.approx(of_source[name] * stride / units[name])
        assert row["rows"] == sum(phase["sources"][name]["rows"] for phase in plan.phases)
        assert plan.course[name]["epochs"][-1] == row["epochs"]
        if kind != "documents":
            assert row["tokens"] == 8 * row["rows"]
    assert [phase["begin"] for phase in plan.phases[1:]] == [phase["end"] for phase in plan.phases[:-1]]
    assert json.loads(json.dumps(plan.to_json()))["rows"] == plan.rows


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(40, 400), min_size=2, max_size=2),
    shares=st.lists(st.integers(0, 5), min_size=2, max_size=2),
    change=st.integers(1, 300),
    lanes=st.sampled_from([1, 3, 8]),
    stride=st.sampled_from([3, 8]),
)
def test_a_source_begins_again_at_the_first_row_of_its_second_epoch(
    sizes: list[int], shares: list[int], change: int, lanes: int, stride: int
) -> None:
    weights = [{"books": share, "web": 2} for share in shares]
    data = sized(books=sizes[0], web=sizes[1])
    mixed = pipeline.mix(data, [(0, weights[0]), (change, weights[1])]).shuffle(seed=4, lanes=lanes)
    plan = mixed.pack(8, stride=stride).plan(8 * 400)
    exact = [{name: Fraction(share, sum(row.values())) for name, share in row.items()} for row in weights]
    rows = [served(["books", "web"], {0: exact[0], -(-change // lanes): exact[1]}, 4, lane) for lane in range(lanes)]
    expected: dict[str, int | None] = {"books": None, "web": None}
    for i in range(400):
        name, earlier = next(rows[i % lanes])
        tokens = sizes[("books", "web").index(name)] // 5 * 5
        if expected[name] is None and (earlier * lanes + i % lanes) * stride >= tokens:
            expected[name] = 8 * i
    assert {name: row["second_pass"] for name, row in plan.sources.items()} == expected


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(400, 9000), min_size=3, max_size=3),
    weights=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=2),
    kind=st.sampled_from(["pack", "documents", "best fit"]),
    tokens=st.integers(500, 40_000),
    caps=st.dictionaries(st.sampled_from(NAMES[:2]), st.sampled_from([0.5, 1, 2.5]), min_size=1),
)
def test_weights_that_fit_keep_the_caps_and_other_proportions(
    sizes: list[int], weights: Any, kind: str, tokens: int, caps: dict[str, float]
) -> None:
    named = [dict(zip(NAMES, [*row[:2], row[2] + 1], strict=True)) for row in weights]
    stated: Any = [(500 * number, each) for number, each in enumerate(named)]

    def stream_of(weights: Any) -> pipeline.Stream:
        mixed = pipeline.mix(sized(**dict(zip(NAMES, sizes, strict=True))), weights).shuffle(seed=1)
        if kind == "documents":
            return mixed.documents()
        return mixed.pack(8, best_fit=kind == "best fit")

    before = stream_of(stated).plan(tokens)
    fit = stream_of(stated).plan(tokens, max_epochs=caps, on_cap="renormalize")
    over = {name for name, cap in caps.items() if before.sources[name]["epochs"] > cap}
    if not over:
        assert fit == before == stream_of(stated).plan(tokens, max_epochs=caps)
        return
    assert all(fit.sources[name]["epochs"] <= cap for name, cap in caps.items())
    assert stream_of(fit.weights).plan(tokens, max_epochs=caps).sources == fit.sources
    if len(stated) == 1 and over == {*caps}:
        for name in over:  # as many rows as fit, but for a period's noise and a row of 4,096
            assert fit.sources[name]["epochs"] > 0.85 * caps[name] - 40 * 8 / dict(zip(NAMES, sizes, strict=True))[name]
        free = [name for name in NAMES if name not in over and named[0][name]]
        ratios = [float(fit.weights[name]) / named[0][name] for name in free]
        assert ratios == pytest.approx([ratios[0]] * len(free), rel=0.01, abs=2 / 4096)
    with pytest.raises(
        ConfigError,
        match=rf"^{tokens:,} tokens read .* times.*, above max_epochs .*give the weights .* or on_cap='renormalize'",
    ):
        stream_of(stated).plan(tokens, max_epochs=caps)


def test_a_cap_may_be_the_epochs_of_a_plan() -> None:
    stream = pipeline.mix(sized(web=9000, books=700, code=333), {"web": 7, "books": 2, "code": 1}).pack(7)
    for tokens in range(1000, 1400, 7):
        plan = stream.plan(tokens)
        assert stream.plan(tokens, max_epochs={name: row["epochs"] for name, row in plan.sources.items()}) == plan


def test_a_cap_lowers_a_source_by_one_factor_at_all_points() -> None:
    points = [(0, {"web": 80, "wiki": 20}), (0.8, {"web": 80, "wiki": 20}), (1, {"web": 20, "wiki": 80})]
    schedule = pipeline.Schedule(points, unit="shares", linear=True, tokens=1e5)
    data = {
        name: pipeline.ShardDataset.from_tokens(np.zeros(size, np.uint16))
        for name, size in (("web", 10**5), ("wiki", 4000))
    }
    stream = pipeline.mix(data, schedule).shuffle(seed=0).pack(8)
    fit = stream.plan(max_epochs={"wiki": 4}, on_cap="renormalize").weights
    shares = [float(weights["wiki"]) for _, weights in fit.points]
    assert shares == pytest.approx([0.1231, 0.1231, 0.4923], rel=0.01)  # 16,000 of 26,000 tokens
    assert (fit.unit, fit.linear, fit.tokens) == ("shares", True, 10**5)
    assert pipeline.mix(data, fit).shuffle(seed=0).pack(8).plan().sources["wiki"]["epochs"] == pytest.approx(
        4, rel=0.02
    )


def test_a_mix_by_best_fit_is_planned_to_a_few_percent() -> None:
    lengths = {name: [3 + number % 13 for number in range(size)] for name, size in (("books", 900), ("web", 2000))}
    stream = pipeline.mix(sources(lengths), {"books": 1, "web": 1}).shuffle(seed=0).pack(64, best_fit=True).batch(4)
    plan = stream.plan(32_000)
    assert not plan.exact
    list(islice(stream, plan.rows // 4))
    read = stream.stats()["sources"]
    for name, row in plan.sources.items():
        assert row["rows"] == pytest.approx(read[name]["sequences"], abs=60)
        assert row["tokens"] == pytest.approx(read[name]["tokens"] * row["rows"] / read[name]["sequences"], rel=0.1)


PRINTED = """\
8,000 tokens, 1,000 rows

phase 0: tokens 0 to 4,000
source    share  rows  tokens  epochs
books     0.00%     0       0   0.000
web     100.00%   500   4,000   0.444

phase 1: tokens 4,000 to 8,000
source   share  rows  tokens  epochs
books   32.80%   164   1,312   1.458
web     67.20%   336   2,688   0.299

the whole run
source   share  rows  tokens  epochs  second pass at
books   16.40%   164   1,312   1.458           6,808
web     83.60%   836   6,688   0.743

share of the rows over the run, and the pass that a source is in
books                      ▃▂▄▃▃▂▄▃▃▃▁▃▃▄▄▄▂▅▂▃  1111111111111111111111111111111112222222
web    ████████████████████▆▇▅▆▆▇▅▆▆▆█▆▆▅▅▅▇▄▇▆  1111111111111111111111111111111111111111

weights that keep books within max_epochs: points=[(0, {'books': 0, 'web': 4096}), (4000, {'books': 1371, 'web': 2725})]"""


def test_a_printed_plan_has_a_table_for_each_phase_and_a_chart() -> None:
    points = [(0, {"books": 0, "web": 1}), (4000, {"books": 1, "web": 1})]
    data = sized(books=900, web=9000)
    stream = pipeline.mix(data, pipeline.Schedule(points, unit="tokens")).pack(8)
    assert str(stream.plan(8000, max_epochs={"books": 1.5}, on_cap="renormalize")) == PRINTED
    at_rows = pipeline.mix(data, [(0, points[0][1]), (500, points[1][1])]).pack(8)
    for capped, weights in (
        (stream, PRINTED.partition("max_epochs: ")[2]),
        (at_rows, "[(0, {'books': 0, 'web': 4096}), (500, "),
    ):
        with pytest.raises(ConfigError) as refused:
            capped.plan(8000, max_epochs={"books": 1.5})
        said = "8,000 tokens read 'books' 2.240 times, above max_epochs {'books': 1.5}; give the weights that fit, "
        assert str(refused.value).startswith(said + weights)
    expected = str(pipeline.mix(data, {"books": 1, "web": 1}).documents().plan(8000)).splitlines()
    assert expected[:3] == ["8,000 tokens, 1,600 rows; numbers are expectations", "", PRINTED.splitlines()[13]]


DATA = {"web": 10_000, "books": 500}
WEIGHTS_OF_TWO = {"web": 1, "books": 1}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s["web"].pack(8).plan(9), r"plan\(\) is for streams of pipeline\.mix"),
        (lambda s: pipeline.mix(s, WEIGHTS_OF_TWO).plan(9), r"\.pack"),
        (lambda s: pipeline.mix(s, WEIGHTS_OF_TWO).pack(8).plan(), r"tokens= is missing.*plan\(tokens=10e9\)"),
        (lambda s: pipeline.mix(s, WEIGHTS_OF_TWO).pack(8).plan(0), r"whole number from 1 to 9e\+15, as 10e9, got 0"),
        (lambda s: pipeline.mix(s, WEIGHTS_OF_TWO).pack(8).plan(1e30), r"from 1 to 9e\+15, as 10e9, got 1e\+30"),
        (lambda s: pipeline.mix(s, WEIGHTS_OF_TWO).pack(8).plan(9, max_epochs=4), "a dict of numbers by source.*got 4"),
        (lambda s: pipeline.mix(s, WEIGHTS_OF_TWO).pack(8).plan(9, max_epochs={"wbe": 4}), "no source 'wbe'.*web"),
        (lambda s: pipeline.mix(s, WEIGHTS_OF_TWO).pack(8).plan(9, max_epochs={"web": 0}), "above 0, got 0 for 'web'"),
        (lambda s: pipeline.mix(s, WEIGHTS_OF_TWO).pack(8).plan(9, on_cap="drop"), "on_cap must be .*got 'drop'"),
        (
            lambda s: pipeline.mix(s, WEIGHTS_OF_TWO, stopping_strategy="first_exhausted").pack(8).plan(9_000),
            r"9,000 tokens are 1,125 rows, but .*'first_exhausted' ends the mix after \d+: plan fewer",
        ),
        (
            lambda s: pipeline.mix(s, WEIGHTS_OF_TWO).pack(8).plan(90_000, max_epochs={"web": 4, "books": 4}),
            r"90,000 tokens read .*, above max_epochs \{'web': 4, 'books': 4\}, and no other source can take the rows",
        ),
        (
            lambda s: pipeline.mix(s | {"web": pipeline.TextDataset([{"text": "a"}], "bytes")}, WEIGHTS_OF_TWO).pack(8).plan(9),
            "tokens of text source 'web' are unknown",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_with_the_cure(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make({name: pipeline.ShardDataset.from_texts(["a" * (size - 1)], "bytes") for name, size in DATA.items()})
