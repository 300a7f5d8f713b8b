"""On a CUDA GPU: how fast batches arrive, and how long a training step waits for them.

    python scripts/bench_gpu.py shards

Prints the rate of the stream from host to device, compared with a plain pinned copy. Then it compares a small GPT's steps on
the stream with steps on one batch that stays on the device. The difference is the wait for data.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pipeline  # noqa: E402
from pipeline.shards.manifest import Manifest  # noqa: E402
from scripts.train_gpt import GPT, PRESETS  # noqa: E402


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dataset", help="a dataset directory, as build_shards.py writes it")
    parser.add_argument("--batch", type=int, default=32, help="sequences per batch (default: 32)")
    parser.add_argument("--steps", type=int, default=200, help="steps timed (default: 200)")
    parser.add_argument("--preset", choices=PRESETS, default="124M", help="sizes of the model (default: 124M)")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no CUDA GPU here: nothing was measured", file=sys.stderr)
        return 1
    print(f"{torch.cuda.get_device_name()}, batches of {options.batch} x {PRESETS[options.preset].seq_len}")
    transfer(options)
    steps(options)
    return 0


def make_stream(options: argparse.Namespace) -> Any:
    return (
        pipeline.ShardDataset(options.dataset)
        .shuffle(seed=0)
        .pack(PRESETS[options.preset].seq_len)
        .batch(options.batch)
        .to("cuda")
    )


def timed(action: Callable[[], object], count: int) -> float:
    """Return seconds per call, including the work of the GPU."""
    for _ in range(10):
        action()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(count):
        action()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / count


def transfer(options: argparse.Namespace) -> None:
    """Compare the arrival of batches on the device with a plain copy of as many bytes from one pinned buffer."""
    iterator = iter(make_stream(options))
    tokens = options.batch * PRESETS[options.preset].seq_len
    ours = timed(lambda: next(iterator), options.steps)
    width = Manifest.read(options.dataset).token_dtype.itemsize
    pinned = torch.empty(2 * tokens * width, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(pinned, device="cuda")
    bare = timed(lambda: target.copy_(pinned, non_blocking=True), options.steps)
    print(f"{bare / ours:8.2f}  x the rate of a bare pinned copy of ids and labels in stored width")
    print(f"{tokens / ours / 1e6:8.0f}  M tokens/s arrive on the device")


def steps(options: argparse.Namespace) -> None:
    """Compare training steps on batches of the stream with steps on one batch that stays on the device."""
    model = GPT(Manifest.read(options.dataset).tokenizer["vocab_size"], PRESETS[options.preset]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    stream = make_stream(options)
    iterator = iter(stream)
    resident = next(iterator)

    def step(batch: dict[str, Any]) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    still = timed(lambda: step(resident), options.steps)
    fed = timed(lambda: step(next(iterator)), options.steps)
    print(f"{fed / still - 1:8.2%}  of a step is spent on data: {fed * 1e3:.2f} ms fed, {still * 1e3:.2f} ms resident")


if __name__ == "__main__":
    sys.exit(main())
