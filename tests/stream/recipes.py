"""What the recipes of docs/frameworks.md find around them: a stream, and models that write down what they are given."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import pipeline
from tests.helpers.documentation import blocks_of
from tests.stream.ranks import die_together, run_ranks

BLOCKS = [block for _, block in blocks_of("docs/frameworks.md") if "import jax" not in block and "trl" not in block]
RECIPES = dict(zip(("rows", "trainer", "accelerate", "lightning", "fabric", "dcp"), BLOCKS, strict=True))
VOCABULARY = 64
VALIDATION_BATCHES = 5


class Recorder:
    """Writes the ids of every batch to a file of this rank, and kills the process at batch ``kill_at`` of training."""

    def __init__(self, path: Path, kill_at: int | None) -> None:
        self.path, self.kill_at, self.count = path, kill_at, 0

    def __call__(self, ids: torch.Tensor, training: bool) -> None:
        if not training:
            with self.path.with_suffix(".evaluated").open("a") as file:
                file.write(json.dumps(ids.tolist()) + "\n")
            return
        self.count += 1
        if self.count == self.kill_at:
            die_together()
        with self.path.open("a") as file:
            file.write(json.dumps(ids.tolist()) + "\n")


def plain_model(record: Recorder) -> Any:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(VOCABULARY, 8)
            self.head = torch.nn.Linear(8, VOCABULARY)

        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            record(ids, self.training)
            return torch.nn.functional.cross_entropy(self.head(self.embed(ids)).flatten(0, 1), labels.flatten())

    return Model()


def hugging_face_model(record: Recorder) -> Any:
    import transformers

    class Model(transformers.GPT2LMHeadModel):
        def forward(self, input_ids: Any = None, labels: Any = None, **options: Any) -> Any:
            record(input_ids, self.training)
            return super().forward(input_ids=input_ids, labels=labels, **options)

    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=8, n_layer=1, n_head=1)
    return Model(config)


def lightning_module(record: Recorder) -> Any:
    import pytorch_lightning as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = plain_model(record)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(batch["input_ids"], batch["labels"])

        validation_step = training_step

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def make_stream(dataset: str, epochs: int | None = None) -> pipeline.Stream:
    return make_sequences(dataset, epochs).batch(2)


def make_sequences(dataset: str, epochs: int | None = None) -> pipeline.Stream:
    return pipeline.ShardDataset(dataset, epochs=epochs).shuffle(seed=1, lanes=6).pack(16)


def run_recipe(
    name: str, dataset: str, directory: str, output: str, kill_at: int | None, changes: dict[str, Any]
) -> None:
    """Run a recipe in ``directory``; ``changes`` replace what it finds around it."""
    warnings.simplefilter("ignore")
    os.chdir(directory)
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    record = Recorder(Path(output, f"{rank}.jsonl"), kill_at)
    model = hugging_face_model(record) if name in ("rows", "trainer") else plain_model(record)
    around: dict[str, Any] = {
        "stream": make_stream(dataset, changes.get("epochs")),
        "validation": make_stream(dataset, 1).take(VALIDATION_BATCHES),
        "sequences": make_sequences(dataset, changes.get("epochs")),
        "validation_sequences": make_sequences(dataset, 1).take(2 * VALIDATION_BATCHES),
        "model": model,
        "module": lightning_module(record) if name == "lightning" else None,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "max_steps": 9,
        "save_every": 2,
        "devices": world_size,
        "strategy": "ddp" if world_size > 1 else "auto",
        **changes,
    }
    if name == "dcp" and world_size > 1:
        dist.init_process_group("gloo")
    code = RECIPES[name]
    for old, new in changes.get("replace", ()):
        assert old in code, old
        code = code.replace(old, new)
    exec(compile(code, f"docs/frameworks.md, {name}", "exec"), around)


def recorded(directory: Path, world_size: int) -> list[list[Any]]:
    """Return the rows of each step, sorted, whatever rank had them."""
    ranks = [
        [json.loads(line) for line in (directory / f"{rank}.jsonl").read_text().splitlines()]
        for rank in range(world_size)
    ]
    return [sorted(row for batch in step for row in batch) for step in zip(*ranks, strict=True)]


def killed_and_resumed(
    name: str,
    dataset: str,
    folder: Path,
    kill_at: int,
    first: dict[str, Any],
    again: dict[str, Any],
    ranks: tuple[int, int] = (1, 1),
) -> list[list[list[Any]]]:
    """Run a recipe until batch ``kill_at``, and again to its end; return the steps of both runs. ``ranks`` are those of each."""
    runs = []
    for number, changes in enumerate((first, again)):
        output = folder / f"run {number}"
        output.mkdir()
        kill = kill_at if number == 0 else None
        arguments = (name, dataset, str(folder), str(output), kill, changes)
        run_ranks(run_recipe, ranks[number], *arguments, killed=kill is not None)
        runs.append(recorded(output, ranks[number]))
    return runs
