from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError
from pipeline.stream.batch.transport import place_on_device, read_ahead

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"))]


def sent(stream: pipeline.Stream) -> list[Any]:
    """Send batches in stored width to the CPU, as they go to a GPU."""
    return [item for _, item in place_on_device(enumerate(stream), "cpu")]


@pytest.mark.parametrize("options", [{}, {"boundaries": True}, {"boundaries": True, "shift": "divisors"}])
def test_what_is_sent_in_stored_width_arrives_as_it_was(dataset: Path, options: dict[str, Any]) -> None:
    source = pipeline.ShardDataset(dataset, epochs=1).shuffle(lanes=3).pack(16, **options)
    for here, moved in zip(source.batch(3), sent(source.batch(3, dtype="stored")), strict=True):
        assert here.keys() == moved.keys()
        for key, value in here.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(moved[key])), key


def test_a_worker_of_a_loader_which_cannot_use_a_gpu_says_what_to_remove(dataset: Path) -> None:
    stream = pipeline.ShardDataset(dataset).pack(16).batch(3).to("meta")  # as for "cuda", batches are moved
    assert next(iter(stream))["input_ids"].device.type == "meta"
    with pytest.raises(ConfigError, match=r"\.to\('meta'\).* a worker .*: remove it .*num_workers=0"):
        next(iter(DataLoader(stream, batch_size=None, num_workers=1)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("boundaries", [False, True])
def test_batches_on_a_device_equal_those_made_here_up_to_the_last(dataset: Path, device: str, boundaries: bool) -> None:
    source = pipeline.ShardDataset(dataset, epochs=1).shuffle(lanes=3).pack(16, boundaries=boundaries).batch(3)
    for here, there in zip(source, source.to(device), strict=True):
        assert here.keys() == there.keys()
        for key, value in here.items():
            if isinstance(value, torch.Tensor):
                assert there[key].device.type == device
                assert there[key].dtype == value.dtype
                assert torch.equal(there[key].cpu(), value), key
            else:
                assert there[key] == value, key


@pytest.mark.parametrize("device", DEVICES)
def test_the_state_counts_batches_handed_out_not_those_on_their_way(dataset: Path, device: str) -> None:
    source = pipeline.ShardDataset(dataset, epochs=1).shuffle(lanes=3).pack(16).batch(3)
    moved = source.to(device).prefetch(2)
    whole = [batch["input_ids"].tolist() for batch in source]
    for number, (here, _) in enumerate(zip(source, moved, strict=True), 1):
        assert moved.state_dict() == source.state_dict()
        del here
        if number == 3:
            break
    resumed = source.to(device)
    resumed.load_state_dict(moved.state_dict())
    assert [batch["input_ids"].tolist() for batch in resumed] == whole[3:]


@pytest.mark.parametrize("device", DEVICES)
def test_batches_stay_as_they_are_while_others_follow(dataset: Path, device: str) -> None:
    source = pipeline.ShardDataset(dataset).shuffle(lanes=3).pack(16).batch(3)
    kept = list(islice(source.to(device), 9))
    for here, there in zip(source, kept, strict=False):
        assert torch.equal(here["input_ids"], there["input_ids"].cpu())


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8", "i4"])
def test_ids_of_any_width_arrive_as_int64(dtype: str) -> None:
    tokens = np.arange(250).astype(dtype)
    tokens[::7] = np.iinfo(dtype).max if np.iinfo(dtype).bits < 64 else 1 << 60
    source = pipeline.ShardDataset.from_tokens(tokens, lengths=[10] * 25, epochs=1).pack(16, boundaries=True)
    for here, there in zip(source.batch(3), sent(source.batch(3, dtype="stored")), strict=True):
        for key in ("input_ids", "labels"):
            assert there[key].dtype == torch.int64
            assert torch.equal(here[key], there[key]), key


def test_arrays_are_moved_as_tensors_and_what_is_no_dict_refused(dataset: Path) -> None:
    batches = pipeline.ShardDataset(dataset).pack(8).batch(2).take(1)
    (arrays,) = sent(batches.map(lambda batch: {"x": batch["input_ids"].numpy(), "name": "a", "count": 3}))
    assert isinstance(arrays["x"], torch.Tensor)
    assert (arrays["name"], arrays["count"]) == ("a", 3)
    with pytest.raises(ConfigError, match=r"\.to\('cpu'\) moves the tensors of a dict, .* gave a tuple"):
        sent(batches.map(lambda batch: (batch["input_ids"], batch["labels"])))


def test_read_ahead_makes_no_more_than_asked_for_and_keeps_the_order() -> None:
    made: list[int] = []

    def count() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    ahead = read_ahead(count(), 3)
    seen: list[Any] = []
    for number in ahead:
        seen.append(number)
        assert len(made) <= len(seen) + 5  # three waiting, one in the hand of either side
    assert seen == list(range(100))


def test_moving_samples_or_arrays_is_refused_with_the_way_out(dataset: Path) -> None:
    source = pipeline.ShardDataset(dataset).pack(8)
    with pytest.raises(ConfigError, match=r"add \.batch"):
        source.to("cpu")
    with pytest.raises(ConfigError, match=r"remove \.numpy"):
        source.batch(2).numpy().to("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a CUDA GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda", 1)])
def test_a_gpu_that_is_not_there_is_refused_at_the_call(dataset: Path, device: Any) -> None:
    with pytest.raises(ConfigError, match=r"\.to\('cuda.*(has no CUDA|no CUDA GPU is visible).*use \.to\('cpu'\)"):
        pipeline.ShardDataset(dataset).pack(8).batch(2).to(device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_gpu_beyond_those_there_are_is_refused_without_cuda_begun(dataset: Path) -> None:
    source = pipeline.ShardDataset(dataset).pack(8).batch(2)
    with pytest.raises(ConfigError, match=r"this process sees \d+ GPUs"):
        source.to("cuda:999")
    code = f"""
import os, pipeline, torch
pipeline.ShardDataset({str(dataset)!r}).pack(8).batch(2).to("cuda")
child = os.fork()
if child == 0:
    os._exit(0 if torch.ones(1, device="cuda").item() == 1 else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True, timeout=120)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", None, 1.5, "xpu", "mps:0"])
def test_what_is_no_device_here_is_refused_at_the_call(dataset: Path, device: Any) -> None:
    if device in ("xpu", "mps:0") and (torch.xpu.is_available() or torch.backends.mps.is_available()):
        pytest.skip("this machine has one")
    with pytest.raises(ConfigError, match=r"no device of torch|torch cannot use it here"):
        pipeline.ShardDataset(dataset).pack(8).batch(2).to(device)


def test_a_stream_is_moved_once(dataset: Path) -> None:
    with pytest.raises(ConfigError, match=r"moved once; remove \.to\('cpu'\)"):
        pipeline.ShardDataset(dataset).pack(8).batch(2).to("cpu").to("cpu")
