"""Schedules of a mix: weights that change in tokens, steps or shares are changes at sequences, exact at every border."""

from __future__ import annotations

import json
import math
from collections import Counter
from fractions import Fraction
from itertools import chain, islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from pipeline.stream.order.mixture import Mixture
from tests.stream.streams import NAMES, assert_goes_on_on_any_ranks, ids, sources

SEQ_LEN = 4
LENGTHS = dict.fromkeys(NAMES, [7] * 200)


def exact(weights: dict[str, int]) -> dict[str, Fraction]:
    return {name: Fraction(share, sum(weights.values())) for name, share in weights.items()}


def changes_of(
    points: list[tuple[Fraction, dict[str, int]]], rows_of_unit: Fraction, linear: bool
) -> list[tuple[int, dict[str, Fraction]]]:
    """Return the changes of a schedule by its description: the weights of each sequence, one by one."""
    begins = [math.ceil(at * rows_of_unit) for at, _ in points]
    weights = [exact(shares) for _, shares in points]
    by_sequence = []
    for i in range(begins[-1] + 1):
        k = max(k for k, begin in enumerate(begins) if begin <= i)
        if not linear or k + 1 == len(points) or weights[k] == weights[k + 1]:
            by_sequence.append(weights[k])
            continue
        rows = begins[k + 1] - begins[k]
        pieces = min(32, rows)
        piece = max(j for j in range(pieces) if begins[k] + j * rows // pieces <= i)
        middle = (Fraction(piece) + Fraction(1, 2)) / pieces
        by_sequence.append({n: weights[k][n] * (1 - middle) + weights[k + 1][n] * middle for n in NAMES})
    return [(i, now) for i, now in enumerate(by_sequence) if i in begins or i == 0 or now != by_sequence[i - 1]]


POINTS = st.lists(
    st.tuples(st.integers(1, 200), st.lists(st.integers(0, 5), min_size=3, max_size=3)), min_size=1, max_size=4
)


UNITS = st.sampled_from(["tokens", "steps", "shares"])


def schedule_of(
    points: Any, unit: str, linear: bool, batch: int
) -> tuple[pipeline.Schedule, list[tuple[int, dict[str, Fraction]]]]:
    """Return a schedule, and its changes by its description."""
    sizes, shares = zip(*points, strict=True)
    weights = [dict(zip(NAMES, [*row[:2], row[2] + 1], strict=True)) for row in shares]
    at = [Fraction(sum(sizes[:k])) for k in range(len(sizes))]
    options: dict[str, Any] = {"unit": unit}
    rows_of_unit = Fraction(1, SEQ_LEN)
    if unit == "steps":
        options["global_batch"], rows_of_unit = batch, Fraction(batch)
    elif unit == "shares":
        options["tokens"], rows_of_unit = 1024, Fraction(1024, SEQ_LEN)
        at = [position / 1024 for position in at]
    pairs = list(zip(at, weights, strict=True))
    return pipeline.Schedule(pairs, linear=linear, **options), changes_of(pairs, rows_of_unit, linear)


@given(points=POINTS, unit=UNITS, linear=st.booleans(), batch=st.integers(1, 3))
def test_changes_of_a_schedule_are_those_of_its_description(points: Any, unit: str, linear: bool, batch: int) -> None:
    schedule, expected = schedule_of(points, unit, linear, batch)
    assert list(schedule.for_sources(NAMES).changes(lambda weights: Fraction(SEQ_LEN))) == expected


@settings(max_examples=8, deadline=None)
@given(
    points=POINTS,
    unit=UNITS,
    linear=st.booleans(),
    lanes=st.sampled_from([1, 3, 8]),
    batches=st.lists(st.sampled_from([(1, 1), (2, 3), (3, 2), (4, 2), (1, 5)]), min_size=2, max_size=4),
    data=st.data(),
)
def test_rows_of_a_schedule_are_those_of_its_changes(
    points: Any, unit: str, linear: bool, lanes: int, batches: list[tuple[int, int]], data: Any
) -> None:
    schedule, changes = schedule_of(points, unit, linear, data.draw(st.integers(1, 3)))

    def stream_of(weights: Any) -> pipeline.Stream:
        return pipeline.mix(sources(LENGTHS), weights).shuffle(seed=5, lanes=lanes).pack(SEQ_LEN)

    whole = ids(islice(stream_of(changes), 500))
    assert ids(islice(stream_of(schedule), 500)) == whole

    state, done = None, 0
    borders = sorted({begin + step for begin, _ in changes for step in (-1, 0, 1) if 0 < begin + step < 500})
    stops = sorted({*data.draw(st.lists(st.sampled_from(borders or [9]), max_size=6)), 460})
    for stop, (ranks, size) in zip(stops, batches * len(stops), strict=False):
        streams = [stream_of(schedule).batch(size).shard(rank, ranks) for rank in range(ranks)]
        for stream in streams:
            if state:
                stream.load_state_dict(state)
        steps = max(0, stop - done) // (ranks * size)
        found = chain.from_iterable(chain.from_iterable(ids(islice(stream, steps)) for stream in streams))
        assert sorted(found) == sorted(whole[done : done + steps * ranks * size])
        done += steps * ranks * size
        state = json.loads(json.dumps(streams[0].state_dict()))


A, B = {"books": 8, "code": 1, "web": 1}, {"books": 1, "code": 1, "web": 8}
DECAY = [(0, A), (0.5, A), (1, B)]


def decay(**changes: Any) -> pipeline.Schedule:
    options = {"points": DECAY, "unit": "shares", "linear": True, "tokens": 2000 * SEQ_LEN} | changes
    return pipeline.Schedule(options.pop("points"), **options)


def mixed(weights: Any) -> pipeline.Stream:
    return pipeline.mix(sources(LENGTHS), weights).shuffle(seed=1).pack(SEQ_LEN).batch(8)


def test_stats_say_what_each_source_gave_in_each_phase_that_has_begun() -> None:
    stream = mixed(decay())
    begins = [0, 1008, 2000, 2400]  # the second at the next row of 16 lanes
    batches = islice(stream, 2400 // 8)
    found = [row[0] // 20_000 for batch in batches for row in batch["input_ids"].tolist()]
    at_end = stream.stats()["sources"]
    for number, name in enumerate(NAMES):
        phases = at_end[name]["phases"]
        counts = [found[begin:end].count(number) for begin, end in pairwise(begins)]
        assert [phase["sequences"] for phase in phases.values()] == counts
        assert sum(counts) == at_end[name]["sequences"]
        asked = [Fraction(A[name], 10), Fraction(A[name] + B[name], 20), Fraction(B[name], 10)]
        assert [phase["asked"] for phase in phases.values()] == pytest.approx(list(map(float, asked)), abs=0.02)
        for phase, count, (begin, end) in zip(phases.values(), counts, pairwise(begins), strict=True):
            assert phase["served"] == count / (end - begin)
    list(islice(early := mixed(decay()), 3))
    assert [*early.stats()["sources"]["web"]["phases"]] == ["0"]
    assert early.metrics()["data/source/web/phases/0/sequences"] > 0
    assert "phases" not in mixed(A).stats()["sources"]["web"]


def test_a_state_of_another_schedule_is_refused() -> None:
    state = mixed(decay()).state_dict()
    assert len(json.dumps(state)) < 2048
    by_steps = mixed(pipeline.Schedule([(0, A), (9, B)], unit="steps", global_batch=8)).state_dict()
    for saved, other, named in (
        (state, decay(tokens=4000 * SEQ_LEN), "tokens of the schedule was 8000 .* but is 16000"),
        (state, decay(linear=False), "linear of the schedule was True .* but is False"),
        (state, decay(points=[(0, A), (0.5, A), (1, A)]), "points of the schedule was"),
        (state, A, "weights was"),
        (mixed(A).state_dict(), decay(), "weights was"),
        (
            by_steps,
            pipeline.Schedule([(0, A), (9, B)], unit="steps", global_batch=16),
            "global_batch of the schedule was 8",
        ),
    ):
        with pytest.raises(StateError, match=rf"^{named} .*give mix\(\) the weights"):
            mixed(other).load_state_dict(saved)
    for weights in ("[]", "null"):
        with pytest.raises(StateError, match="weights"):
            mixed(A).load_state_dict(mixed(A).state_dict() | {"weights": weights})


def test_weights_set_by_hand_end_a_schedule_and_are_resumed() -> None:
    stream = mixed(decay())
    list(islice(stream, 150))  # in the linear part
    stream.set_weights({"books": 0, "code": 1, "web": 0})
    resumed = mixed(decay())
    resumed.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    rows = [ids(islice(one, 200)) for one in (stream, resumed)]
    assert rows[0] == rows[1]
    assert {row[0] // 20_000 for batch in rows[0][2:] for row in batch} == {
        1
    }  # code, from the next row of all lanes on


def test_positions_in_tokens_count_the_mean_document() -> None:
    lengths = {"books": [60, 100] * 50, "code": [9, 11] * 50, "web": [20] * 100}
    schedule = pipeline.Schedule([(0, A), (50_000, A), (80_000, B)], unit="tokens", linear=True)
    mean_a, mean_b = Fraction(8 * 80 + 10 + 20, 10), Fraction(80 + 10 + 160, 10)
    second = Fraction(50_000) / mean_a
    third = second + Fraction(30_000) / ((mean_a + mean_b) / 2)

    def stream_of(**options: Any) -> pipeline.Stream:
        return pipeline.mix(sources(lengths), schedule).shuffle(seed=0, lanes=4).documents(**options)

    def begins(stream: pipeline.Stream) -> list[int]:
        found: list[int] = json.loads(stream.state_dict()["shape"])["weights"]["sequences"]
        return found

    assert begins(stream_of()) == [0, math.ceil(second), math.ceil(third)]
    tokens = sum(len(row["input_ids"]) for row in islice(stream_of(), math.ceil(third)))
    assert tokens == pytest.approx(80_000, rel=0.02)
    assert begins(stream_of(max_length=30))[1] == math.ceil(50_000 / Fraction(8 * 30 + 10 + 20, 10))
    with pytest.raises(StateError, match=r"sequences of the schedule was \[0,"):
        stream_of(max_length=30).load_state_dict(stream_of().state_dict())


@pytest.mark.parametrize("packed", [{}, pytest.param({"best_fit": True}, marks=pytest.mark.nightly)])
def test_a_mix_of_texts_follows_its_schedule_on_any_ranks(packed: dict[str, bool]) -> None:
    def stream_of(ranks: int) -> pipeline.Stream:
        texts = {
            name: pipeline.ShardDataset.from_texts([name[0] * (5 + n % 9) for n in range(400)], "bytes")
            for name in NAMES
        }
        texts["web"] = pipeline.TextDataset([{"text": "w" * (5 + n % 9)} for n in range(400)], "bytes")
        schedule = pipeline.Schedule([(0, A), (20, A), (60, B)], unit="steps", linear=True, global_batch=6)
        return pipeline.mix(texts, schedule).shuffle(seed=2, lanes=12).pack(16, **packed).batch(6 // ranks)

    whole = ids(islice(stream_of(1), 90))
    letters = [Counter(row[0] for rows in part for row in rows) for part in (whole[:20], whole[62:])]
    assert letters[0].most_common(1)[0][0] == ord("b") + 3
    assert letters[1].most_common(1)[0][0] == ord("w") + 3
    assert_goes_on_on_any_ranks(stream_of, whole, ((2, 20), (1, 1), (3, 38), (2, 2), (1, 29)))


@pytest.mark.nightly
def test_workers_of_a_loader_follow_a_schedule() -> None:
    stream = mixed(decay())
    loader = DataLoader(stream, batch_size=None, num_workers=2)
    assert ids(islice(loader, 200)) == ids(islice(mixed(decay()), 200))


def test_thousands_of_changes_are_counted_one_after_another() -> None:
    weights = [{"a": Fraction(number % 7 + 1, 8), "b": Fraction(7 - number % 7, 8)} for number in range(3000)]
    mixture = Mixture(["a", "b"], 0, 1, [(2 * row, each) for row, each in enumerate(weights)])
    source, before = mixture.source(5999, 0)
    assert source in (0, 1)
    assert sum(mixture.counts(6000, 0)) == 6000 > before


def bad(message: str, *points: Any, **options: Any) -> Any:
    return pytest.param(list(points), options, message, id=message)


@pytest.mark.parametrize(
    ("points", "options", "message"),
    [
        bad("unit must be .*got 'epochs'", (0, A), unit="epochs"),
        bad("unit='shares' needs tokens=, which is missing", (0, A), unit="shares"),
        bad("needs global_batch=, which is missing", (0, A), unit="steps"),
        bad(r"has no tokens; remove tokens=9", (0, A), unit="tokens", tokens=9),
        bad("has no global_batch; remove global_batch=2", (0, A), unit="tokens", global_batch=2),
        bad("global_batch must be an integer of at least 1, got 0", (0, A), unit="steps", global_batch=0),
        bad(r"whole number from 1 to 9e\+15, as 10e9, got 1\.5", (0, A), unit="shares", tokens=1.5),
        bad("pairs of a position and weights", unit="tokens"),
        bad(r"pairs of a position and weights, .*got \[0, \{", 0, A, unit="tokens"),
        bad(r"must begin at 0 and ascend, got \[1\]", (1, A), unit="tokens"),
        bad(r"must begin at 0 and ascend, got \[0, 9, 5\]", (0, A), (9, A), (5, B), unit="tokens", linear=True),
        bad(r"must begin at 0 and ascend, got \[0, 5, 5\]", (0, A), (5, A), (5, B), unit="tokens"),
        bad("must be a number of tokens, got '5'", (0, A), ("5", A), unit="tokens"),
        bad("must be a number of tokens, got True", (0, A), (True, A), unit="tokens"),
        bad("must be a number of tokens, got nan", (0, A), (math.nan, A), unit="tokens"),
        bad("at most 1, got 80", (0, A), (80, B), unit="shares", tokens=100),
        bad("linear must be True or False, got 'yes'", (0, A), unit="tokens", linear="yes"),
        bad("no source 'wiki'", (0, A), (5, {"wiki": 1}), unit="tokens"),
        bad("no share of source 'books'", (0, A), (5, {"web": 1}), unit="tokens"),
    ],
)
def test_a_schedule_that_cannot_work_is_refused_with_value_and_cure(points: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pipeline.mix(sources(LENGTHS), pipeline.Schedule(points, **options))


def test_two_points_at_one_position_make_a_jump_in_a_linear_schedule() -> None:
    jump = mixed(decay(points=[(0, A), (0.5, A), (0.5, B)]))
    assert ids(islice(jump, 200)) == ids(islice(mixed([(0, A), (1000, B)]), 200))


def test_documents_of_texts_have_no_positions_in_tokens() -> None:
    texts = {name: pipeline.TextDataset([{"text": "to be"}], "bytes") for name in NAMES}
    with pytest.raises(ConfigError, match=r"give the schedule in steps.*\.pack\(\) rows"):
        next(iter(pipeline.mix(texts, decay()).documents()))


def test_many_changes_keep_the_order_of_a_schedule_and_a_small_state() -> None:
    drawn, names = np.random.default_rng(0), ("books", "code", "web")
    points = [(7 * number, dict(zip(names, drawn.integers(0, 9, 3).tolist(), strict=True))) for number in range(25)]
    points = [(at, weights | {"web": weights["web"] + 1}) for at, weights in points]

    def make(weights: Any) -> pipeline.Stream:
        data = {name: pipeline.ShardDataset.from_tokens(np.arange(900) + 1000 * n) for n, name in enumerate(names)}
        return pipeline.mix(data, weights).shuffle(seed=3, lanes=4).pack(8).batch(4)

    scheduled = make(pipeline.Schedule(points, unit="steps", global_batch=4))
    expected = ids(islice(scheduled, 7 * 25 + 20))
    stream, got = make(points[0][1]), []
    for _, weights in points[1:]:
        got += ids(islice(stream, 7))
        stream.set_weights(weights)
        state = json.dumps(stream.state_dict())
        assert len(state) < 1500
        resumed = make(points[0][1])
        resumed.load_state_dict(json.loads(state))
        assert ids(islice(resumed, 9))[:7] == expected[len(got) : len(got) + 7]
        assert resumed.state_dict()["weights"] == stream.state_dict()["weights"]
        stream = resumed if len(got) % 2 else stream
        stream.load_state_dict(json.loads(state))
    got += ids(islice(stream, 27))
    assert got == expected
    counts = {name: source["sequences"] for name, source in stream.stats()["sources"].items()}
    assert counts == {name: source["sequences"] for name, source in scheduled.stats()["sources"].items()}
    for call in (lambda: stream.trace(3), lambda: stream.seen("0")):
        with pytest.raises(ConfigError, match=r"set_weights.*load a state"):
            call()
    changes = json.loads(json.loads(state)["weights"])
    changes[0][2][1][0] += 1
    with pytest.raises(StateError, match="weights of a state must be shares of"):
        make(points[0][1]).load_state_dict(json.loads(state) | {"weights": json.dumps(changes)})
