"""Drawn sequences of events move a position as the table of `StreamPosition` says, in every kind of loader."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import pipeline
from tests.stream import streams
from tests.stream.position_oracle import KINDS, Passes, Run

STREAMS = {
    **streams.KINDS,
    "drop": lambda small, texts: streams.packed(small, 1).batch(2, last="drop"),
    "a batch or two": lambda small, texts: (
        pipeline.ShardDataset.from_tokens(range(24), lengths=[6] * 4, epochs=1).shuffle(seed=1).pack(8).batch(2)
    ),
    "rows": lambda small, texts: streams.packed(small, 1).rows(),
}
IN_ONE_PROCESS = [name for name, kind in KINDS.items() if not kind.workers]


def run(small: Path, texts: Path, stream: str, kinds: list[str], seeds: range) -> None:
    passes = Passes(partial(STREAMS[stream], small, texts))
    for seed in seeds:
        Run(passes, kinds, seed, ranks=stream == "epochs=1").run(12)


@pytest.mark.parametrize("stream", STREAMS)
def test_events_in_one_process_move_a_position_as_the_table_says(small: Path, texts: Path, stream: str) -> None:
    run(small, texts, stream, IN_ONE_PROCESS, range(10))


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 30), marks=pytest.mark.nightly)])
def test_events_among_workers_move_a_position_as_the_table_says(
    small: Path, texts: Path, stream: str, seeds: range
) -> None:
    run(small, texts, stream, list(KINDS), seeds)
