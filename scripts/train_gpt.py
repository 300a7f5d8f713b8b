"""Train a GPT on shards, raw text, urls or arrays of tokens. A killed run resumes on any number of ranks.

    python scripts/train_gpt.py shards --preset tiny --steps 200
    python scripts/train_gpt.py raw/*.jsonl.zst --tokenizer bytes
    python scripts/train_gpt.py web=shards/web:0.7 wiki=https://host/shards/wiki:0.3 --preset 124M
    torchrun --nproc-per-node 8 scripts/train_gpt.py shards --preset 350M --checkpoint run --log-file run.jsonl
    python scripts/train_gpt.py --config run.toml --dry-run

A file of ``--config`` has flags by their names, as in ``data = ["shards"]`` and ``seq-len = 512``; flags of the command
override them. ``--dry-run`` takes one step and describes the run. A table ``[weights]`` of the file has the arguments of
``pipeline.Schedule``, for a mix whose weights change over the run; without ``unit``, positions are shares of the run's tokens:

    data = ["web=shards/web", "wiki=shards/wiki"]
    [weights]
    linear = true
    points = [[0, {web = 0.9, wiki = 0.1}], [0.8, {web = 0.9, wiki = 0.1}], [1, {web = 0.5, wiki = 0.5}]]

With ``--checkpoint DIRECTORY`` the same command resumes after a kill, Ctrl-C or SIGTERM. The global batch has the same
sequences on any number of ranks, so the losses equal those of a run that was never killed: exactly on the same number of CPU
ranks, else up to rounding. Each step prints a line of JSON to stdout. With ``--log-file`` the lines go there, and stdout gets
one a second.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pipeline
from pipeline.atomic import atomic_file


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Sizes of a model and of a step. Those of 124M to 1B are from Brown et al. 2020, table 2.1."""

    layers: int
    heads: int
    width: int
    seq_len: int
    global_batch: int
    lr: float


PRESETS = {
    "tiny": Preset(layers=4, heads=4, width=128, seq_len=256, global_batch=24, lr=1e-3),
    "small": Preset(layers=6, heads=6, width=384, seq_len=512, global_batch=32, lr=6e-4),
    "124M": Preset(layers=12, heads=12, width=768, seq_len=1024, global_batch=480, lr=6e-4),
    "350M": Preset(layers=24, heads=16, width=1024, seq_len=2048, global_batch=240, lr=3e-4),
    "1B": Preset(layers=24, heads=16, width=2048, seq_len=2048, global_batch=480, lr=2e-4),
}


class GPT(nn.Module):
    """A GPT with learned positions and tied embeddings: ids ``[batch, length]`` to logits over the vocabulary."""

    def __init__(self, vocab_size: int, sizes: Preset) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, sizes.width)
        self.positions = nn.Embedding(sizes.seq_len, sizes.width)
        options: dict[str, Any] = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        block = nn.TransformerEncoderLayer(sizes.width, sizes.heads, 4 * sizes.width, **options)
        norm = nn.LayerNorm(sizes.width)
        self.blocks = nn.TransformerEncoder(block, sizes.layers, norm, enable_nested_tensor=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(length, device=ids.device))
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=ids.device)
        return F.linear(self.blocks(x, causal, is_causal=True), self.tokens.weight)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    as_written = argparse.RawDescriptionHelpFormatter
    usage = "%(prog)s WHAT... [flags]"
    parser = argparse.ArgumentParser(None, usage, __doc__, formatter_class=as_written, allow_abbrev=False)
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="TOML file with these flags by their names")
    add("data", nargs="*", metavar="WHAT", help="a dataset, shards, text, a url, an array.bin; NAME=WHAT:WEIGHT mixes")
    add("--tokenizer", help="tokenizer of raw text: a name, a path, a tokenizer.json (default: bytes)")
    add("--text-key", help="field of the text in records (default: text)")
    add("--dtype", "--dtype-of-tokens", metavar="DTYPE", help="dtype of an array.bin: uint16 or uint32")
    add("--vocab-size", type=int, help="number of ids of an array.bin (default: the tokenizer's)")
    add("--cache-dir", help="cache of shards from a server (default: the user's cache directory)")
    add("--tries", type=int, default=8, help="most attempts at one request to a server (default: 8)")
    add("--timeout", type=float, default=20.0, help="seconds of silence before a request is repeated (default: 20)")
    add("--limit", type=int, metavar="N", help="train only on the first N documents of each source, kept in memory")
    add("--num-workers", type=int, default=0, help="reader processes of a rank (default: 0, mostly the fastest)")
    add("--val-share", type=float, help="share to validate on without a split val (default: 0.005; for text 0)")
    add("--val-batches", type=int, default=20, help="global batches of a validation (default: 20)")
    add("--eval-every", type=int, default=100, help="steps between validations, 0 for none (default: 100)")
    add("--preset", choices=PRESETS, default="tiny", help="sizes, which the next six flags change (default: tiny)")
    for name, kind in Preset.__annotations__.items():
        add(f"--{name.replace('_', '-')}", type=float if kind == "float" else int, help="instead of the preset's")
    add("--stride", type=int, help="tokens from one sequence to the next (default: --seq-len)")
    add("--shift", type=int, default=1, help="tokens from an input to its label (default: 1)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, help="optimizer steps in all (default: 200)")
    length.add_argument("--epochs", type=int, help="passes over the data instead of steps")
    add("--accumulate", type=int, default=1, help="micro-batches of a rank in a step (default: 1)")
    add("--weight-decay", type=float, default=0.1, help="weight decay of matrices (default: 0.1)")
    add("--precision", choices=("bf16", "fp32"), help="dtype of the arithmetic (default: bf16 on CUDA)")
    add("--compile", action="store_true", help="compile the model")
    add("--seed", type=int, default=0, help="seed of weights and order (default: 0)")
    add("--device", choices=("cuda", "cpu"), help="where to train (default: cuda if there is one)")
    add("--checkpoint", type=Path, metavar="DIRECTORY", help="directory to resume from and to save to")
    add("--save-every", type=int, default=100, help="steps between checkpoints (default: 100)")
    add("--log-file", type=Path, metavar="FILE", help="a line of JSON for each step (default: stdout, if no terminal)")
    add("--dry-run", action="store_true", help="take one step, and print the sizes and the time of the run")
    arguments = sys.argv[1:] if arguments is None else arguments
    options, weights = parser.parse_args(arguments), None
    if options.config:
        try:
            values = tomllib.loads(options.config.read_text())
        except (OSError, ValueError) as error:
            parser.error(f"--config {options.config}: {error}")
        weights = values.pop("weights", None)
        parser.set_defaults(data=values.pop("data", []))
        on = {name: value for name, value in values.items() if value is not False}
        stated = [f"--{name}" if value is True else f"--{name}={value}" for name, value in on.items()]
        options = parser.parse_args([*stated, *arguments])  # the last one of equal flags counts
    if not options.data:
        parser.error("name what to train on: a dataset, shards, text, a url or an array.bin")
    if options.dtype in ("bf16", "fp32", "bfloat16", "float32"):
        parser.error(f"--dtype {options.dtype} is no dtype of tokens; the arithmetic has --precision bf16 or fp32")
    options.weights = weights
    changed = {name: value for name in Preset.__annotations__ if (value := getattr(options, name)) is not None}
    options.sizes = replace(PRESETS[options.preset], **changed)
    if options.sizes.width % options.sizes.heads:
        parser.error(f"--width {options.sizes.width} must be a multiple of --heads {options.sizes.heads}")
    return options


Data = tuple[pipeline.Stream, pipeline.Stream | None, int]  # for training, for validation, and the number of ids


def open_data(options: argparse.Namespace) -> Data:
    """Open the data that the command names: one dataset, or a mix."""
    form = r"([\w-]+)=(.+)" if options.weights else r"([\w-]+)=(.+):(\d*\.?\d+)"
    named = [re.fullmatch(form, what) for what in options.data]
    unweighted = [what for what in options.data if re.match(r"[\w-]+=", what) and not Path(what).exists()]
    if not any(named) and not options.weights and not unweighted:
        return open_one(options.data if len(options.data) > 1 else options.data[0], options)
    if not all(named):
        wanted = (
            "NAME=WHAT NAME=WHAT with [weights]"
            if options.weights
            else "NAME=WHAT:WEIGHT of each, such as web=shards:0.7 wiki=wiki:0.3"
        )
        raise SystemExit(f"error: a mix is {wanted}, got {' '.join(options.data)}")
    weights: Any = schedule(options) if options.weights else {match[1]: float(match[3]) for match in named if match}
    parts = {match[1]: open_one(match[2], options) for match in named if match}
    train = pipeline.mix({name: data for name, (data, _, _) in parts.items()}, weights)
    val = {name: data for name, (_, data, _) in parts.items() if data is not None}
    held_out = pipeline.mix(val, weights) if len(val) == len(parts) else None
    return train, held_out, max(ids for _, _, ids in parts.values())


def schedule(options: argparse.Namespace) -> pipeline.Schedule:
    """Return the weights of ``[weights]``; without a unit, positions are shares of the run."""
    given, sizes = dict(options.weights), options.sizes
    if "unit" not in given:
        given |= {"unit": "shares", "tokens": (options.steps or 200) * sizes.global_batch * sizes.seq_len}
    elif given["unit"] == "steps":
        given.setdefault("global_batch", sizes.global_batch)
    try:
        return pipeline.Schedule(given.pop("points", None), **given)
    except TypeError as error:
        raise SystemExit(f"error: [weights] of {options.config}: {error}") from None


def open_one(what: str | list[str], options: argparse.Namespace) -> Data:
    """Open one dataset. Its split ``val``, or a share of its documents, is for validation."""
    settings = {key: getattr(options, key) for key in ("tokenizer", "text_key", "dtype", "tries", "timeout")}
    settings["epochs"] = 1 if options.limit else options.epochs
    if options.cache_dir:
        settings["cache_dir"] = options.cache_dir
    train: Any = pipeline.open_dataset(what, **settings)
    is_text = isinstance(train, pipeline.TextDataset)
    if is_text and options.tokenizer is None and os.environ.get("RANK", "0") == "0":
        print(f"{what}: text, tokenized by its bytes; --tokenizer names another tokenizer", file=sys.stderr)
    vocab_size = options.vocab_size or train.vocab_size
    if vocab_size is None:
        raise SystemExit(
            f"error: {what} does not say how many ids there are; give --vocab-size, such as 50257 of GPT-2"
        )
    val: pipeline.Stream | None = None
    try:
        val = pipeline.open_dataset(what, split="val", **settings) if options.eval_every else None
    except (pipeline.ManifestError, pipeline.ConfigError):  # a share of text is known only after all of it is read
        if share := options.val_share if options.val_share is not None else 0.0 if is_text else 0.005:
            try:
                train, val = train.split(val=share)
                next(iter(val.shuffle().pack(options.sizes.seq_len)))  # an error if nothing is held out
            except pipeline.ConfigError as error:
                raise SystemExit(f"error: {error}; give another --val-share, 0 for no validation") from None
    if options.limit:
        first = [row["input_ids"].numpy() for row in train.documents().shard(0, 1).take(options.limit)]
        lengths, epochs = [len(ids) for ids in first], options.epochs
        train = pipeline.ShardDataset.from_tokens(np.concatenate(first), lengths=lengths, epochs=epochs)
    return train, val, vocab_size


class Run:
    """A model, its optimizer and its data on one rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.sizes = options, options.sizes
        self.rank, self.ranks, self.device = start_ranks(options.device)
        size, parts = self.sizes.global_batch, self.ranks * options.accumulate
        if size % parts:
            wanted = f"a multiple of {parts} (ranks x --accumulate), such as {size + -size % parts}"
            raise SystemExit(f"error: --global-batch {size} must be {wanted}")
        (train, val, self.vocab_size), rows = open_data(options), size // self.ranks

        def batches(dataset: pipeline.Stream) -> pipeline.Stream:
            shuffled = dataset.shuffle(seed=options.seed)
            packing = {"stride": options.stride, "shift": options.shift, "source": bool(self.sources)}
            return shuffled.pack(self.sizes.seq_len, **packing).batch(rows)

        # The sources of a mix: each row comes from one.
        self.sources = train.source_names if hasattr(train, "proxy") else ()
        self.stream, self.begun = batches(train), 0
        self.batches: Any = DataLoader(
            self.stream, batch_size=None, num_workers=options.num_workers, worker_init_fn=outlive_sigterm
        )
        if not options.num_workers:
            self.batches = self.stream = self.stream.to(self.device)
        elif options.checkpoint:
            self.stream.state_dict(batches=0)  # an error if workers hide their positions
        self.val = None if val is None else batches(val).take(options.val_batches).to(self.device)
        self.step, self.stopped = 0, False
        self.steps = options.steps or (self.count_steps() if options.epochs else 200)
        torch.manual_seed(options.seed)
        self.plain = GPT(-(-self.vocab_size // 64) * 64, self.sizes).to(self.device)
        matrices, others = ([p for p in self.plain.parameters() if (p.dim() > 1) is many] for many in (True, False))
        groups = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=self.sizes.lr, betas=(0.9, 0.95))
        if options.checkpoint:
            self.load(options.checkpoint)
        model: Any = torch.compile(self.plain) if options.compile else self.plain
        self.model = nn.parallel.DistributedDataParallel(model) if self.ranks > 1 else model
        bf16 = options.precision == "bf16" or (options.precision is None and self.device != "cpu")
        self.autocast = torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=bf16)

    def count_steps(self) -> int:
        """Return the steps of all epochs, which the schedule of the learning rate needs. Text is read once to count them."""
        try:
            return len(self.stream)
        except TypeError:
            if self.rank == 0:
                print("text is read once to count its steps; --steps needs no count", file=sys.stderr)
            return sum(1 for _ in self.stream)

    def describe(self) -> dict[str, Any]:
        """Return the sizes of the run."""
        tokens = self.sizes.global_batch * self.sizes.seq_len
        parameters = sum(p.numel() for p in self.plain.parameters())
        found = {"parameters": parameters, "tokens_per_step": tokens, "steps": self.steps, "ranks": self.ranks}
        return found | {"device": self.device, "data": repr(self.stream)}

    def train(self) -> Iterator[dict[str, Any]]:
        """Take steps until the last one or a signal; yield a record of each."""
        for batch in self.batches if self.step < self.steps else ():
            if self.step == 0 and (largest := int(batch["input_ids"].max())) >= self.vocab_size:
                raise SystemExit(f"error: id {largest} is beyond a vocabulary of {self.vocab_size}; give --vocab-size")
            began = time.monotonic()
            record = self.take_step(batch)
            if self.options.dry_run:  # estimated from the first step
                record["hours"] = round((time.monotonic() - began) * self.steps / 3600, 2)
            self.step += 1
            last = record.pop("stop") or self.step == self.steps or self.options.dry_run
            if self.val is not None and (last or self.step % self.options.eval_every == 0):
                record |= self.validate()
            due = last or self.step % self.options.save_every == 0
            if self.options.checkpoint and due and not self.options.dry_run:
                self.save(self.options.checkpoint)
            yield {"step": self.step, **record, **self.progress()}
            if last:
                return

    def take_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Take one step on the mean loss of all labels of the global batch."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.steps, self.sizes.lr)
        labels, stop = self.total(float(batch["valid_tokens"]), float(self.stopped))
        both = (batch[key].to(self.device, non_blocking=True) for key in ("input_ids", "labels"))
        parts = zip(*(tensor.chunk(self.options.accumulate) for tensor in both), strict=True)
        losses = []
        for number, (ids, targets) in enumerate(parts, start=1):
            with self.model.no_sync() if self.ranks > 1 and number < self.options.accumulate else nullcontext():
                part = self.losses_of_rows(ids, targets)
                (part.sum() / labels * self.ranks).backward()  # gradients are averaged over ranks
            losses.append(part.detach())
        nn.utils.clip_grad_norm_(self.plain.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        of_rows = torch.cat(losses).double()
        loss = round(self.total(float(of_rows.sum()))[0] / labels, 6)
        return {
            "loss": loss,
            **self.losses_of_sources(batch, of_rows),
            "receipt": self.receipt(batch),
            "stop": bool(stop),
        }

    def receipt(self, batch: dict[str, Any]) -> str:
        """Return the receipt of the global batch, from which ``shardwright trace --receipts`` names a row that differs."""
        parts = [self.stream.receipt(batch, rows=self.options.log_file is not None)] * self.ranks
        if self.ranks > 1:
            dist.all_gather_object(parts, parts[self.rank])
        return pipeline.merge_receipts(parts)

    def losses_of_rows(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the summed loss of each row."""
        with self.autocast:
            logits = self.model(ids)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none")
        return losses.view(labels.shape).sum(1)

    def losses_of_sources(self, batch: dict[str, Any], of_rows: Tensor) -> dict[str, float]:
        """Return the mean loss of each source of a mix that gave a row of the global batch."""
        if not self.sources:
            return {}
        counts = (batch["labels"] != -100).sum(1).to(of_rows)
        sums = of_rows.new_zeros(len(self.sources), 2)
        sums.index_add_(0, batch["source"].to(self.device), torch.stack([of_rows, counts], 1))
        totals = np.reshape(self.total(*sums.flatten().tolist()), (-1, 2)).tolist()
        by_name = zip(self.sources, totals, strict=True)
        return {f"loss/{name}": round(loss / labels, 6) for name, (loss, labels) in by_name if labels}

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return the loss and the perplexity of the first batches of the validation data."""
        assert self.val is not None
        loss = labels = 0.0
        for batch in self.val.loader(repeat=True):  # equal batches each time
            loss += float(self.losses_of_rows(batch["input_ids"], batch["labels"]).sum())
            labels += float(batch["valid_tokens"])
        loss, labels = self.total(loss, labels)
        mean = loss / labels if labels else math.nan
        return {"val_loss": round(mean, 6), "perplexity": round(math.exp(min(mean, 50.0)), 3)}

    def total(self, *values: float) -> list[float]:
        """Return the sums over all ranks."""
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.ranks > 1:
            dist.all_reduce(sums)
        return list(sums.tolist())

    def progress(self) -> dict[str, Any]:
        """Return the speed of all ranks, the share of time that this rank waited for data, and the metrics of each source."""
        data = self.stream.metrics()
        record = {"tokens_per_second": round(data["data/tokens_per_second"] * self.ranks), "epoch": data["data/epoch"]}
        if "data/waited_share" in data:  # not known if workers read
            record["waited_share"] = round(data["data/waited_share"], 4)
        return record | {name: round(value, 4) for name, value in data.items() if name.startswith("data/source/")}

    def save(self, directory: Path) -> None:
        """Write a checkpoint atomically, and keep the last two."""
        steps = self.step - self.begun if self.options.num_workers else None
        data: list[Any] = [self.stream.state_dict(batches=steps)] * self.ranks
        if self.ranks > 1:  # for raw text, each rank has the state of its own lanes
            dist.all_gather_object(data, data[self.rank])
        if self.rank == 0:
            directory.mkdir(parents=True, exist_ok=True)
            with atomic_file(directory / f"step-{self.step:09d}.pt") as file:
                state = {"step": self.step, "sizes": asdict(self.sizes), "model": self.plain.state_dict()}
                state |= {"optimizer": self.optimizer.state_dict(), "rng": torch.get_rng_state()}
                torch.save({**state, "data": json.dumps(pipeline.merge_states(data))}, file)
            for old in sorted(directory.glob("step-*.pt"))[:-2]:
                old.unlink()

    def load(self, directory: Path) -> None:
        """Resume from the last checkpoint, if there is one."""
        if not (saved := sorted(directory.glob("step-*.pt"))):
            return
        state = torch.load(saved[-1], weights_only=True, map_location="cpu")
        for name, size in asdict(self.sizes).items():
            if name != "lr" and state["sizes"][name] != size:
                was = f"--{name.replace('_', '-')} {state['sizes'][name]}"
                raise SystemExit(f"error: {saved[-1]} is of {was}, not {size}; give {was}, or another --checkpoint")
        self.stream.load_state_dict(json.loads(state["data"]))
        self.plain.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        self.step = self.begun = state["step"]


def start_ranks(device: str | None) -> tuple[int, int, str]:
    """Join the process group if torchrun started this process; return rank, world size and device."""
    cuda = device == "cuda" or (device is None and torch.cuda.is_available())
    if "LOCAL_RANK" not in os.environ:
        return 0, 1, "cuda" if cuda else "cpu"
    local = int(os.environ["LOCAL_RANK"])
    if cuda:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if cuda else "gloo")
    return dist.get_rank(), dist.get_world_size(), f"cuda:{local}" if cuda else "cpu"


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Return the learning rate: a linear warm-up over the first twentieth, then a cosine down to a tenth."""
    warm = max(1, steps // 20)
    cosine = math.cos(math.pi * max(0, step - warm) / max(1, steps - warm))
    return peak * min((step + 1) / warm, 0.55 + 0.45 * cosine)


def forget_later(log: Path, step: int) -> None:
    """Drop the log's lines of steps after the checkpoint, because the resumed run takes these steps again."""
    if log.exists():
        lines = log.read_text().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
        with atomic_file(log) as file:
            file.write("".join(kept).encode())


def outlive_sigterm(worker: int) -> None:
    """Let a loader's worker ignore the first SIGTERM: a scheduler may send it to all processes before the script saves.

    The second one ends the worker; a loader that ends also sends one.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: signal.signal(number, signal.SIG_DFL))


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    run = Run(options)

    def stop(number: int, frame: object) -> None:
        run.stopped = True  # all ranks stop at the end of the step

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    shown, lines = 0.0, options.log_file or sys.stdout.isatty()  # people see one line a second
    if options.dry_run and run.rank == 0:
        print("\n".join(f"{name:15} {value}" for name, value in run.describe().items()))
    if options.log_file and run.rank == 0:
        forget_later(options.log_file, run.step)
    with options.log_file.open("a") if options.log_file else nullcontext(None if lines else sys.stdout) as log:
        for record in run.train():
            if run.rank:
                continue
            if log is not None:
                print(json.dumps(record), file=log, flush=True)
            if lines and (time.monotonic() - shown >= 1 or record["step"] == run.steps):
                shown = time.monotonic()
                print("  ".join(f"{name} {value}" for name, value in record.items() if name != "receipt"), flush=True)
    if run.stopped and run.rank == 0 and run.step < run.steps:
        kept = f"; the same command goes on from {options.checkpoint}" if options.checkpoint else ""
        print(f"stopped at step {run.step} of {run.steps}{kept}", file=sys.stderr)
    if dist.is_initialized():
        dist.barrier()  # if a rank ends while another communicates with it, that one may abort
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except pipeline.ShardwrightError as error:
        sys.exit(f"error: {error}")
