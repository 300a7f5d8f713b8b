"""A state of any step's end goes on under any ranks and batches with the same sequences; one inside a step under its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.errors import StateError
from tests.stream.order_samples import numbered, written

Make = Callable[[], pipeline.Stream]
Rows = list[tuple[int, ...]]
RUNS = st.tuples(st.sampled_from([1, 2, 3, 8]), st.integers(1, 5), st.integers(1, 6))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator, folder = np.random.default_rng(7), tmp_path_factory.mktemp("resume")
    for name, first in (("one", 1), ("two", 20_000)):
        sizes = [generator.integers(0, 40, n).tolist() for n in (30, 0, 8, 1, 21)]
        written(folder / name, numbered(sizes, first), extent_bytes=2000)
    return folder


def streams(folder: Path) -> dict[str, Make]:
    def one() -> pipeline.Stream:
        return pipeline.ShardDataset(folder / "one", epochs=2).shuffle(seed=3, lanes=4, window=2)

    def half() -> pipeline.Stream:
        data = pipeline.ShardDataset(folder / "one", epochs=3).split(val=0.3)[0]
        return data.shuffle(seed=3, lanes=4, window=2).pack(8)

    def mixed() -> pipeline.Stream:
        sources = {name: pipeline.ShardDataset(folder / name) for name in ("one", "two")}
        weights = [(0, {"one": 1, "two": 2}), (77, {"one": 5, "two": 1})]
        return pipeline.mix(sources, weights).shuffle(seed=3, lanes=4, window=1)

    return {
        "packed": lambda: one().pack(8, stride=7),
        "in file order": lambda: pipeline.ShardDataset(folder / "one", epochs=2).pack(8),
        "documents": lambda: one().documents(),
        "buckets": lambda: one().documents(bucket=3),
        "half": half,
        "samples": lambda: pipeline.ShardDataset(folder / "one", epochs=2).shuffle(seed=3).sample(8),
        "mix": lambda: mixed().pack(8).take(300),
    }


def rows_of(batch: dict[str, Any]) -> Rows:
    """Return the rows of a batch that are not filled, without what pads them."""
    rows = zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True)
    return [tuple(token for token in ids if token) for ids, labels in rows if any(ids) or set(labels) != {-100}]


def run(make: Make, ranks: int, batch: int, state: dict[str, Any] | None, count: int | None) -> tuple[list[Rows], Any]:
    """Return the rows that all ranks got of each of ``count`` steps from ``state`` on, and the state behind them."""
    steps: list[Rows] = []
    states = []
    for rank in range(ranks):
        stream = make().shard(rank, ranks).batch(batch)
        if state is not None:
            stream.load_state_dict(state)
        for number, item in enumerate(islice(stream, count)):
            steps += [[]] * (number == len(steps))
            steps[number] = steps[number] + rows_of(item)
        states.append(json.dumps(stream.state_dict()))
    assert len(set(states)) == 1
    return steps, json.loads(states[0])


KINDS = ["packed", "in file order", "documents", "buckets", "half", "samples", "mix"]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs=st.lists(RUNS, min_size=1, max_size=3), last=RUNS)
def test_a_state_of_a_steps_end_goes_on_under_other_ranks_and_batches(
    folder: Path, kind: str, runs: list[tuple[int, int, int]], last: tuple[int, int, int]
) -> None:
    make = streams(folder)[kind]
    whole = [row for step in run(make, 1, 1, None, None)[0] for row in step or [()]]
    place, state = 0, None
    for ranks, batch, count in (*runs, (*last[:2], None)):
        steps, state = run(make, ranks, batch, state, count)
        for step in steps:
            expected = whole[place : place + ranks * batch]
            # A row of no tokens looks like a filled one.
            assert Counter(row for row in step if row) == Counter(row for row in expected if row)
            place = min(place + ranks * batch, len(whole))
        assert state["sequence_index"] == place
    assert place == len(whole)


def without_a_third(items: Iterator[Any]) -> Iterator[Any]:
    """Drop about a third of the rows, so that batches end inside steps."""
    for item in items:
        if int(item["input_ids"].sum()) % 3:
            yield item


@pytest.mark.parametrize("kind", ["packed", "samples", "mix"])
def test_a_state_inside_a_step_goes_on_under_the_same_ranks_and_batches_and_is_refused_under_others(
    folder: Path, kind: str
) -> None:
    def make() -> pipeline.Stream:
        stream = streams(folder)[kind]()
        return stream.apply(without_a_third)

    def ids(stream: pipeline.Stream, count: int) -> list[Any]:
        return [batch["input_ids"].tolist() for batch in islice(stream, count)]

    stream = make().shard(0, 1).batch(4)
    whole, inside = ids(make().shard(0, 1).batch(4), 12), 0
    for done in range(1, 9):
        assert ids(stream, done) == whole[:done]
        state = json.loads(json.dumps(stream.state_dict()))
        again = make().shard(0, 1).batch(4)
        again.load_state_dict(state)
        assert ids(again, 12 - done) == whole[done:]
        if state["rank_0"]["0.without_a_third"].get("step") is not None:
            inside += 1
            for ranks, batch, reason in ((2, 4, "without_a_third"), (1, 8, "saved inside a step.*batch_size was")):
                other = make().shard(0, ranks).batch(batch)
                with pytest.raises(StateError, match=reason):
                    other.load_state_dict(state)
    assert inside >= 2
