"""A state that was saved inside a step goes on under its own ranks and batches, and is refused under others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.errors import StateError
from tests.stream.order_samples import numbered, written


def without_a_third(items: Iterator[Any]) -> Iterator[Any]:
    """Drop about a third of the rows, so that batches end inside steps."""
    for item in items:
        if int(item["input_ids"].sum()) % 3:
            yield item


@pytest.mark.parametrize("kind", ["packed", "samples", "mix"])
def test_a_state_inside_a_step_goes_on_under_its_ranks_and_batches(tmp_path: Path, kind: str) -> None:
    for name, first in (("one", 1), ("two", 20_000)):
        written(tmp_path / name, numbered([[n % 40 for n in range(size)] for size in (30, 0, 8, 1, 21)], first))

    def make(ranks: int = 1, batch: int = 4) -> pipeline.Stream:
        one, two = (pipeline.ShardDataset(tmp_path / name) for name in ("one", "two"))
        source = pipeline.mix({"one": one, "two": two}, [(0, {"one": 1, "two": 2}), (77, {"one": 5, "two": 1})])
        stream = {
            "packed": one.shuffle(seed=3, lanes=4).pack(8, stride=7),
            "samples": one.shuffle(seed=3).sample(8),
            "mix": source.shuffle(seed=3, lanes=4).pack(8),
        }[kind]
        return stream.apply(without_a_third).shard(0, ranks).batch(batch)

    def ids(stream: pipeline.Stream, count: int) -> list[Any]:
        return [batch["input_ids"].tolist() for batch in islice(stream, count)]

    stream, whole, inside = make(), ids(make(), 12), 0
    for done in range(1, 9):
        assert ids(stream, done) == whole[:done]
        state = json.loads(json.dumps(stream.state_dict()))
        again = make()
        again.load_state_dict(state)
        assert ids(again, 12 - done) == whole[done:]
        if state["rank_0"]["0.without_a_third"].get("step") is not None:
            inside += 1
            for ranks, batch, reason in ((2, 4, "without_a_third"), (1, 8, "saved inside a step.*batch_size was")):
                with pytest.raises(StateError, match=reason):
                    make(ranks, batch).load_state_dict(state)
    assert inside >= 2
