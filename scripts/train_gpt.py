"""Train a small GPT from shards, alone or under torchrun; a killed run continues on any number of ranks.

    python scripts/train_gpt.py data/shards --steps 200
    torchrun --nproc-per-node 2 scripts/train_gpt.py data/shards --steps 200 --checkpoint run.pt

The checkpoint holds model, optimizer and the stream's position. With the same ``--global-batch`` the batches of a step are
the same sequences on any number of ranks, so the loss follows the same curve. One JSON line per step goes to stdout.

It trains on the split ``train``. Where the dataset has a split ``val``, which a build draws with ``--val-fraction``, the loss
on it is printed as ``val_loss`` every ``--validate-every`` steps and after the last one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pipeline  # noqa: E402
from pipeline.atomic import atomic_file  # noqa: E402
from pipeline.errors import ShardwrightError  # noqa: E402
from pipeline.shards.manifest import Manifest  # noqa: E402

VAL = "val"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Sizes of the model: the vocabulary, and how many layers, heads and features."""

    vocab_size: int
    seq_len: int
    layers: int = 4
    heads: int = 4
    width: int = 128


class Block(nn.Module):
    """Pre-norm causal self-attention and a four times wider MLP (Radford et al. 2019)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm_attention = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.project = nn.Linear(config.width, config.width)
        self.norm_mlp = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width), nn.GELU(), nn.Linear(4 * config.width, config.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        changed: Tensor = x + self.mlp(self.norm_mlp(x))
        return changed


class GPT(nn.Module):
    """A GPT with learned positions and tied embeddings: ids ``[batch, length]`` to logits over the vocabulary."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.seq_len, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        logits: Tensor = self.norm(self.blocks(x)) @ self.tokens.weight.T
        return logits


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dataset", help="a dataset directory, as build_shards.py writes it")
    parser.add_argument("--split", default="train", help="split to train on (default: train)")
    parser.add_argument("--validate-every", type=int, default=50, help="steps between validations (default: 50)")
    parser.add_argument(
        "--val-batches", type=int, default=20, help="global batches of a validation, the same each time (default: 20)"
    )
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps in all (default: 200)")
    parser.add_argument("--seq-len", type=int, default=256, help="tokens per sequence (default: 256)")
    parser.add_argument("--global-batch", type=int, default=24, help="sequences per step over all ranks (default: 24)")
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate (default: 1e-3)")
    parser.add_argument("--layers", type=int, default=4, help="layers of the model (default: 4)")
    parser.add_argument("--width", type=int, default=128, help="features of the model (default: 128)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and order (default: 0)")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="where to train (default: cuda where there is one)")
    parser.add_argument("--checkpoint", type=Path, help="file to resume from and to save to")
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints (default: 50)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    rank, ranks, device = start_ranks(options.device)
    batch_size = share(options.global_batch, ranks)
    manifest = Manifest.read(options.dataset)
    vocab_size = manifest.tokenizer["vocab_size"]
    torch.manual_seed(options.seed)
    config = ModelConfig(vocab_size=vocab_size, seq_len=options.seq_len, layers=options.layers, width=options.width)
    model = GPT(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1)
    stream = (
        pipeline.ShardDataset(options.dataset, split=options.split)
        .shuffle(seed=options.seed)
        .pack(options.seq_len)
        .batch(batch_size)
        .to(device)
    )
    validation = None
    if options.split != VAL and VAL in manifest.splits and manifest.split(VAL).tokens:
        held_out = pipeline.ShardDataset(options.dataset, split=VAL, epochs=1)
        validation = held_out.pack(options.seq_len).batch(batch_size).to(device)
    step = load(options.checkpoint, model, optimizer, stream) if options.checkpoint else 0
    for batch in stream:
        if step >= options.steps:
            break
        started = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options.steps, options.lr)
        loss = train_step(model, optimizer, batch, ranks)
        step += 1
        if rank == 0:
            print(
                json.dumps({"step": step, "loss": round(loss, 6), "seconds": round(time.perf_counter() - started, 4)})
            )
            sys.stdout.flush()
            if options.checkpoint and (step % options.save_every == 0 or step == options.steps):
                save(options.checkpoint, step, model, optimizer, stream)
        if validation is not None and (step % options.validate_every == 0 or step == options.steps):
            loss = validate(model, validation, options.val_batches, device, ranks)
            if rank == 0:
                print(json.dumps({"step": step, "val_loss": round(loss, 6)}), flush=True)
    if dist.is_initialized():
        dist.barrier()  # a rank that leaves while another still talks to it may abort
        dist.destroy_process_group()
    return 0


def start_ranks(device: str | None) -> tuple[int, int, str]:
    """Join the process group when torchrun started us; return rank, world size and device."""
    cuda = device == "cuda" or (device is None and torch.cuda.is_available())
    if "LOCAL_RANK" not in os.environ:
        return 0, 1, "cuda" if cuda else "cpu"
    local = int(os.environ["LOCAL_RANK"])
    if cuda:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if cuda else "gloo")
    return dist.get_rank(), dist.get_world_size(), f"cuda:{local}" if cuda else "cpu"


def share(global_batch: int, ranks: int) -> int:
    """Return the sequences of a step that one rank trains on."""
    if global_batch % ranks:
        raise SystemExit(f"--global-batch {global_batch} cannot be shared evenly by {ranks} ranks")
    return global_batch // ranks


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over the first twentieth, then a cosine down to a tenth."""
    warm = max(1, steps // 20)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def train_step(model: GPT, optimizer: torch.optim.Optimizer, batch: dict[str, Any], ranks: int) -> float:
    """Take one step on the mean loss over all ranks; return that loss."""
    logits = model(batch["input_ids"])
    loss = F.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten())
    loss.backward()
    if ranks > 1:
        # Every rank holds equally many labels, so the mean of the means is the mean.
        total = loss.detach().clone()
        dist.all_reduce(total)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(ranks)  # type: ignore[union-attr]
        loss = total / ranks
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


@torch.no_grad()
def validate(model: GPT, stream: Any, batches: int, device: str, ranks: int) -> float:
    """Return the mean loss of the labels of the first global batches of a bounded stream."""
    total = torch.zeros(2, dtype=torch.float64, device=device)
    with closing(iter(stream)) as iterator:
        for batch in islice(iterator, batches):
            logits = model(batch["input_ids"]).flatten(0, 1).float()
            total[0] += F.cross_entropy(logits, batch["labels"].flatten(), reduction="sum")
            total[1] += batch["valid_tokens"]
    if ranks > 1:
        dist.all_reduce(total)
    loss, labels = total.tolist()
    return float(loss / labels)


def save(path: Path, step: int, model: GPT, optimizer: torch.optim.Optimizer, stream: Any) -> None:
    """Write the checkpoint whole or not at all."""
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "data": stream.state_dict(),
    }
    with atomic_file(path) as file:
        torch.save(state, file)


def load(path: Path, model: GPT, optimizer: torch.optim.Optimizer, stream: Any) -> int:
    """Restore a checkpoint where there is one; return the step it was saved after."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True, map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    stream.load_state_dict(state["data"])
    return int(state["step"])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ShardwrightError as error:
        sys.exit(f"error: {error}")
