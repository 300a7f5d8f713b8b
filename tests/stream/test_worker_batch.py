"""Batches of a loader's workers travel in stored width, and arrive as a process without workers makes them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch.utils.data import DataLoader

import pipeline
from pipeline.stream.batch.transport import WorkerBatch

Make = Callable[[], Any]
RNG = np.random.default_rng(0)
TOKENS, LENGTHS = RNG.integers(1, 50_000, 20_000).astype("<u2"), [100] * 200


def _data() -> pipeline.ShardDataset:
    return pipeline.ShardDataset.from_tokens(TOKENS, lengths=LENGTHS, eos_id=0, epochs=1)


STREAMS: dict[str, Make] = {
    "packed": lambda: _data().shuffle(seed=1).pack(64).batch(8),
    "boundaries": lambda: _data().shuffle(seed=1).pack(64, boundaries=True).batch(8),
    "stored": lambda: _data().shuffle(seed=1).pack(64).batch(8, last="drop", dtype="stored"),
    "documents": lambda: _data().shuffle(seed=1).documents(max_length=50).batch(8),
    "mapped": lambda: _data().shuffle(seed=1).pack(64).batch(8).map(_changed),
    "arrays": lambda: _data().shuffle(seed=1).pack(64).batch(8).numpy(),
}


def _changed(batch: dict[str, Any]) -> dict[str, Any]:
    ids = batch["input_ids"]
    return {
        **batch,
        "odd": ids[:, ::2],
        "far": ids * 2**40,
        "below": -ids,
        "scores": ids / 7,
        "none": ids[:0],
        "text": ["a"],
        "half": ids.to(torch.bfloat16),
        "flags": ids > 9,
        "scalar": torch.tensor(5),
    }


def _as_given(item: Any) -> Any:
    return item


def _assert_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert type(found) is type(wanted) is dict
    assert list(found) == list(wanted)
    for key, value in wanted.items():
        assert type(found[key]) is type(value)
        if isinstance(value, torch.Tensor):
            assert found[key].dtype == value.dtype
            assert torch.equal(found[key], value)
            found[key].zero_()  # it is the receiver's own
        elif isinstance(value, np.ndarray):
            assert found[key].dtype == value.dtype
            np.testing.assert_array_equal(found[key], value)
        else:
            assert found[key] == value


@pytest.mark.parametrize("kind", STREAMS)
def test_batches_of_workers_arrive_as_without_workers(kind: str) -> None:
    stream, alone = STREAMS[kind](), list(STREAMS[kind]())
    loader = DataLoader(stream, batch_size=None, num_workers=1, collate_fn=_as_given)
    for found, wanted in zip(loader, alone, strict=True):
        _assert_equal(found, wanted)


@pytest.mark.parametrize("kind", ["packed", "stored", "boundaries"])
def test_a_batch_of_a_worker_travels_in_stored_width(kind: str) -> None:
    tokens = 8 * 64
    arrays = 3 if kind == "boundaries" else 2
    assert max(len(pickle.dumps(WorkerBatch(batch))) for batch in STREAMS[kind]()) < arrays * 2 * tokens + 1200


def test_a_large_array_travels_in_shared_memory() -> None:
    small, large = (torch.zeros(size, dtype=torch.uint8) for size in (4 << 20, (4 << 20) + 1))
    assert len(ForkingPickler.dumps(WorkerBatch(input_ids=small))) > len(small)
    assert len(ForkingPickler.dumps(WorkerBatch(input_ids=large))) < 10_000


@given(
    arrays.arrays(
        st.sampled_from([np.int64, np.int32, np.uint16, np.uint8]),
        arrays.array_shapes(max_dims=3, max_side=5),
        elements=None,
    )
)
def test_any_integers_arrive_exactly(array: Any) -> None:
    for value in (array, torch.from_numpy(array)):
        found = pickle.loads(pickle.dumps(WorkerBatch(key=value)))["key"]
        assert type(found) is type(value)
        assert found.dtype == value.dtype
        np.testing.assert_array_equal(np.asarray(found), array)
