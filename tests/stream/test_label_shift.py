from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError
from pipeline.stream.batch.collate import stack
from pipeline.stream.order import derive_key

SEQ_LEN = 12
SHIFTS = (1, 2, 3, 4, 6)


def packed(dataset: Path, shift: Any = "divisors", epochs: int | None = 1, **options: Any) -> pipeline.Stream:
    return pipeline.ShardDataset(dataset, epochs=epochs).shuffle(seed=5, lanes=6).pack(SEQ_LEN, shift=shift, **options)


def drawn(step: int, sequences: int) -> int:
    """The shift of a step of so many sequences, in the words of the definition."""
    return SHIFTS[derive_key("shift", 5, step * sequences) % len(SHIFTS)]


@pytest.mark.parametrize(("world_size", "options"), [(1, {}), (3, {"boundaries": True}), (2, {"stride": 5})])
def test_every_step_is_a_batch_of_its_drawn_shift_on_every_rank(
    dataset: Path, world_size: int, options: dict[str, Any]
) -> None:
    seen = set()
    for rank in range(world_size):
        plain = {s: list(packed(dataset, s, **options).batch(4).shard(rank, world_size)) for s in SHIFTS}
        batches = list(packed(dataset, **options).batch(4).shard(rank, world_size))
        assert len(batches) == len(plain[1])
        for step, batch in enumerate(batches):
            shift = drawn(step, 4 * world_size)
            seen.add(shift)
            expected = plain[shift][step]
            assert batch.keys() == {*expected, "shift"}
            assert type(batch["shift"]) is int
            assert batch["shift"] == shift
            # It ends as a stream of the largest shift does: a smaller one has a label in rows that this one leaves out.
            assert torch.equal(batch["input_ids"].reshape(4, SEQ_LEN), plain[max(SHIFTS)][step]["input_ids"])
            alike = (plain[max(SHIFTS)][step]["input_ids"] == expected["input_ids"]).all(1)
            assert alike.all() or step > len(batches) - 4
            for key in expected.keys() & {"input_ids", "labels", "position_ids"}:
                assert batch[key].shape == (4, SEQ_LEN // shift, shift)
                assert torch.equal(batch[key].reshape(4, SEQ_LEN)[alike], expected[key][alike])
            for key in expected.keys() - {"input_ids", "labels", "position_ids"} if alike.all() else ():
                assert np.array_equal(np.asarray(batch[key]), np.asarray(expected[key]))
    assert len(seen) > 2


@pytest.mark.parametrize("world_size", [1, 3])
def test_before_batching_a_step_is_one_sequence_on_every_rank(dataset: Path, world_size: int) -> None:
    for rank in range(world_size):
        for step, sample in enumerate(islice(packed(dataset).shard(rank, world_size), 9)):
            shift = drawn(step, world_size)
            assert (sample["shift"], sample["input_ids"].shape) == (shift, (SEQ_LEN // shift, shift))


def test_samples_of_two_shifts_are_no_batch() -> None:
    with pytest.raises(ConfigError, match=r"one shift, got \[1, 2\]"):
        stack([{"shift": 1}, {"shift": 2}])


def test_drawn_shifts_resume_and_do_not_depend_on_workers(dataset: Path) -> None:
    sources = {name: pipeline.ShardDataset(dataset) for name in ("a", "b")}
    mixed = pipeline.mix(sources, weights={"a": 1, "b": 2}).pack(SEQ_LEN, shift="divisors").batch(2)
    for make in (lambda: packed(dataset).batch(3), lambda: mixed.take(20)):
        pipeline.assert_resumes(make)
        loaded = DataLoader(make(), batch_size=None, num_workers=2)
        for a, b in zip(islice(make(), 10), islice(loaded, 10), strict=True):
            assert a["shift"] == b["shift"]
            assert torch.equal(a["labels"], b["labels"])


def test_what_drawn_shifts_cannot_do_is_refused_with_the_cure(dataset: Path) -> None:
    data = pipeline.ShardDataset(dataset)
    with pytest.raises(ConfigError, match="remove shift"):
        data.pack(12, shift="divisors", labels="same")
    with pytest.raises(ConfigError, match="at least 2, got 1"):
        data.pack(1, shift="divisors")
    with pytest.raises(ConfigError, match="or 'divisors', got 'divisor'"):
        data.pack(12, shift="divisor")
    with pytest.raises(ConfigError, match=r"put \.batch\(\) before \.apply\(\)"):
        data.pack(12, shift="divisors").apply(iter).batch(2)
