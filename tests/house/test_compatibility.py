"""Datasets and states that an earlier checkout wrote are read as they were: the promise of the format and of states."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.shards.verify.dataset import verify_dataset
from tests.compatibility.streams import next_batches, streams

FOLDER = Path(__file__).parents[1] / "compatibility"
SAVED = json.loads((FOLDER / "states.json").read_text())


def test_a_dataset_of_before_is_sound() -> None:
    assert list(verify_dataset(FOLDER / "dataset")) == []


@pytest.mark.parametrize("kind", SAVED)
def test_a_state_of_before_goes_on_with_the_same_batches(kind: str) -> None:
    stream = streams(FOLDER)[kind]
    stream.load_state_dict(SAVED[kind]["state"])
    assert next_batches(stream) == SAVED[kind]["next"]
