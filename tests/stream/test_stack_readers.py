"""The lines that users of frameworks write first read the stream as it is, or are refused with the line to write."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError
from tests.helpers.documentation import PAGES
from tests.stream.ranks import run_ranks
from tests.stream.streams import batched, ids, packed

pytestmark = pytest.mark.stacks
VOCABULARY = 60_000
BATCH = 2


LINES = dict(re.findall(r"^\| ([^|]+) \| `([^`]+)`", PAGES["docs/frameworks.md"].split("## Loaders")[0], re.MULTILINE))


def refusal_of(run: Any) -> str:
    try:
        run()
    except ConfigError as error:
        return str(error)
    return ""


def trainer(directory: str, rows: Any, steps: int, **options: Any) -> Any:
    """Return a Trainer that notes the inputs of each step."""
    import transformers

    transformers.set_seed(0)
    shape: dict[str, Any] = {"n_positions": 64, "n_embd": 4, "n_layer": 1, "n_head": 1}
    no_dropout = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=VOCABULARY, **shape, **no_dropout))
    given = {name: options.pop(name) for name in ("eval_dataset", "data_collator") if name in options}
    arguments = transformers.TrainingArguments(
        directory,
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        report_to="none",
        disable_tqdm=True,
        logging_steps=1,
        **{"save_strategy": "no", **options},
    )

    class Noting(transformers.Trainer):
        def training_step(self, model: Any, inputs: Any, *more: Any) -> Any:
            self.inputs = [*getattr(self, "inputs", []), inputs]
            return super().training_step(model, inputs, *more)

    return Noting(model, arguments, train_dataset=rows, **given)


def ids_and_states(directory: str, rows: Any, steps: int, resume: str | None, options: dict[str, Any]) -> list[Any]:
    each = trainer(directory, rows, steps, **options)
    each.train(resume_from_checkpoint=resume)
    return [inputs["input_ids"].tolist() for inputs in each.inputs]


def losses(dataset: Path, directory: str) -> list[list[float]]:
    """Return the first loss that a Trainer logs for several streams, and that by hand with the labels of the stream."""
    import torch

    found = []
    for make in (packed, lambda d: packed(d, boundaries=True), lambda d: packed(d, best_fit=True, boundaries=True)):
        each = trainer(directory, make(dataset).rows(keys="hf"), 1)
        rows = list(islice(make(dataset), BATCH))
        inputs = {
            key: torch.stack([row[key] for row in rows]) for key in ("input_ids", "position_ids") if key in rows[0]
        }
        labels = torch.stack([row["labels"] for row in rows])
        labels[:, -1] = -100  # which a model that shifts does not see
        with torch.no_grad():
            logits = each.model.eval()(**inputs).logits
        by_hand = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        each.train()
        found.append([each.state.log_history[0]["loss"], float(by_hand)])
    return found


def test_a_trainer_on_rows_has_the_loss_of_the_labels_of_the_stream(dataset: Path, tmp_path: Path) -> None:
    [found] = run_ranks(losses, 1, dataset, str(tmp_path))
    for by_trainer, by_hand in found:
        assert by_trainer == pytest.approx(by_hand, rel=1e-5)


def killed_and_whole(dataset: Path, directory: str, workers: int) -> list[Any]:
    """Return the batches of a Trainer over three passes, and those after it resumed in the second."""
    options = {"save_strategy": "steps", "save_steps": 5, "num_train_epochs": 3, "dataloader_num_workers": workers}
    make = lambda: packed(dataset).take(12).rows(keys="hf")  # noqa: E731
    whole = ids_and_states(directory, make(), -1, None, options)
    return [whole, ids_and_states(directory, make(), -1, f"{directory}/checkpoint-5", options)]


@pytest.mark.parametrize(("ranks", "workers"), [pytest.param(1, 0, marks=pytest.mark.nightly), (2, 0), (2, 2)])
def test_a_trainer_resumes_on_rows_exactly_and_reads_each_once(
    dataset: Path, tmp_path: Path, ranks: int, workers: int
) -> None:
    found = run_ranks(killed_and_whole, ranks, dataset, str(tmp_path), workers)
    rows = ids(islice(packed(dataset), 36))
    read = [row for whole, _ in found for batch in whole for row in batch]
    assert sorted(read) == sorted(rows)
    if workers == 0:
        steps = [sorted(row for batch in step for row in batch) for step in zip(*(w for w, _ in found), strict=True)]
        size = BATCH * ranks
        assert steps == [sorted(rows[n : n + size]) for n in range(0, len(rows), size)]
    for whole, resumed in found:
        assert resumed == whole[5:]


def refused_trainers(dataset: Path, directory: str) -> list[str]:
    """Return what each thing that is handed to a Trainer is told."""
    import transformers

    stream, same = batched(dataset), packed(dataset, labels="same")
    right = packed(dataset).rows(keys="hf")

    def train(given: Any, **options: Any) -> str:
        return refusal_of(lambda: trainer(directory, given, 2, **options).train())

    def from_method(given: Any) -> str:
        each = trainer(directory, right, 2)
        each.get_train_dataloader = lambda: given
        return refusal_of(each.train)

    evaluate = {"eval_strategy": "steps", "eval_steps": 1}
    seq2seq = transformers.DataCollatorForSeq2Seq(Padding())
    documents = pipeline.ShardDataset(dataset).documents(max_length=16).rows(keys="hf")
    return [
        train(packed(dataset)),
        train(packed(dataset), dataloader_num_workers=1),
        train(packed(dataset), dataloader_num_workers=1, dataloader_multiprocessing_context="forkserver"),
        train(packed(dataset).rows()),
        train(right, eval_dataset=packed(dataset, 1), **evaluate),
        from_method(DataLoader(stream, batch_size=None)),
        from_method(stream),
        from_method(stream.loader()),
        train(same.batch(4)),
        train(stream.loader(keys="hf")),
        train(packed(dataset, 1, best_fit=True).rows(keys="hf")),
        train(packed(dataset, 2).rows(keys="hf")),
        train(documents),
        train(right, eval_dataset=packed(dataset, 1, best_fit=True).rows(keys="hf"), **evaluate),
        train(same),
        train(documents, data_collator=seq2seq),
        from_method(stream.loader(keys=unchanged)),
        from_method(stream.loader(keys="hf")),
    ]


class Padding:
    """What a collator asks of a tokenizer, which the tests do without."""

    padding_side = "right"

    def pad(self, features: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        import torch

        width = max(len(feature["input_ids"]) for feature in features)
        fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}
        padded = {
            key: [[*map(int, f[key]), *[fill[key]] * (width - len(f[key]))] for f in features] for key in features[0]
        }
        return {key: torch.tensor(value) for key, value in padded.items()}


def unchanged(batch: dict[str, Any]) -> dict[str, Any]:
    return {key: batch[key] for key in ("input_ids", "labels")}


def test_a_trainer_refuses_what_it_would_train_on_wrongly(dataset: Path, tmp_path: Path) -> None:
    [found] = run_ranks(refused_trainers, 1, dataset, str(tmp_path))
    shifted, rest = found[:8], found[8:]
    for refusal in shifted:
        assert 'train_dataset=stream.rows(keys="hf"), without .batch()' in refusal
        assert "models of transformers shift them again" in refusal
    assert "would stack batches of this stream, to [2, 4, ...]" in rest[0]
    assert 'train_dataset=stream.rows(keys="hf")' in rest[0]
    assert "give a Trainer train_dataset=stream.rows" in rest[1]
    assert "leave epochs out, and set max_steps" in rest[2]
    assert "set epochs=1, and num_train_epochs" in rest[3]
    assert "data_collator=transformers.DataCollatorForSeq2Seq(tokenizer)" in rest[4]
    assert rest[5:] == [""] * 5


def first_of(loader: Any) -> str:
    return refusal_of(lambda: next(iter(loader)))


def refused_loaders(dataset: Path) -> list[str]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    stream = batched(dataset)
    wrong = DataLoader(stream)  # stays alive, as in a notebook, and harms no other
    return [
        first_of(wrong),
        first_of(StatefulDataLoader(stream, batch_size=1)),
        first_of(DataLoader(stream, batch_size=1, num_workers=1, multiprocessing_context="forkserver")),
        first_of(DataLoader(stream, num_workers=1)),
        first_of(DataLoader(stream, batch_size=None)),
        first_of(stream),
        first_of(DataLoader(packed(dataset), batch_size=4)),
    ]


def test_a_loader_that_would_stack_batches_is_refused(dataset: Path) -> None:
    [found] = run_ranks(refused_loaders, 1, dataset)
    for refusal in found[:4]:
        assert "would stack batches of this stream, to [1, 2, ...]" in refusal
        assert "DataLoader(stream, batch_size=None)" in refusal
    assert found[4:] == [""] * 3


def rows_under_accelerate(dataset: Path, dispatch: bool | None) -> list[Any]:
    """Return a pass of rows that Accelerate divides, one after skipping, and what loaders without it are told."""
    from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    rows = packed(dataset).take(24).rows()
    loader = accelerator.prepare(DataLoader(rows, batch_size=BATCH))
    whole = ids(loader)
    skipped = ids(skip_first_batches(accelerator.prepare(DataLoader(rows, batch_size=BATCH)), 3))
    try:
        skip_first_batches(batched(dataset).loader(), 3)
    except AttributeError as error:
        unskipped = str(error)
    return [whole, skipped, first_of(DataLoader(rows, batch_size=BATCH)), unskipped]


@pytest.mark.parametrize(("ranks", "dispatch"), [(1, None), (2, None), (2, False)])
def test_accelerate_divides_rows_and_skips_exactly(dataset: Path, ranks: int, dispatch: bool | None) -> None:
    found = run_ranks(rows_under_accelerate, ranks, dataset, dispatch)
    rows = [row for whole, *_ in found for batch in whole for row in batch]
    assert sorted(rows) == sorted(ids(islice(packed(dataset), 24)))
    for whole, skipped, refusal, unskipped in found:
        assert skipped == whole[3:]
        assert ("each of 2 ranks would read all of it" in refusal) == (ranks == 2)
        assert "call stream.skip(n) before" in unskipped


def through_datasets(dataset: Path, directory: str) -> list[Any]:
    """Return the batches of a Trainer on what TRL takes, resumed ones, and what two workers are told."""
    from datasets import IterableDataset

    def rows() -> Any:
        return IterableDataset.from_generator(packed(dataset).rows(keys="hf").__iter__)

    options = {"save_strategy": "steps", "save_steps": 3}
    whole = ids_and_states(directory, rows(), 6, None, options)
    resumed = ids_and_states(directory, rows(), 6, f"{directory}/checkpoint-3", options)
    refusal = refusal_of(lambda: trainer(directory, rows(), 2, dataloader_num_workers=2).train())
    return [whole, resumed, refusal]


def test_rows_go_through_a_dataset_with_one_worker_at_most(dataset: Path, tmp_path: Path) -> None:
    [[whole, resumed, refusal]] = run_ranks(through_datasets, 1, dataset, str(tmp_path))
    assert json.dumps([row for batch in whole for row in batch]) == json.dumps(ids(islice(packed(dataset), 12)))
    assert resumed == whole[3:]
    assert "dataloader_num_workers=1" in refusal


def rows_of_first_lines(dataset: Path, directory: str) -> dict[str, list[Any]]:
    """Return the first rows that each line of the page reads, by the name of its framework."""
    import datasets
    import pytorch_lightning
    import transformers
    from accelerate import Accelerator
    from lightning_fabric import Fabric
    from torchdata.stateful_dataloader import StatefulDataLoader

    seen: list[Any] = []

    class Module(pytorch_lightning.LightningModule):
        def training_step(self, batch: Any, _: int) -> None:
            seen.append(batch)

        def configure_optimizers(self) -> None:
            return None

    class Trainer(transformers.Trainer):
        def training_step(self, model: Any, inputs: Any, *more: Any) -> Any:
            seen.append(inputs)
            return super().training_step(model, inputs, *more)

    found = {}
    for name, line in LINES.items():
        seen.clear()
        each = trainer(directory, None, 2)
        around: dict[str, Any] = {
            "stream": batched(dataset).take(4),
            "sequences": packed(dataset).take(8),
            "DataLoader": DataLoader,
            "StatefulDataLoader": StatefulDataLoader,
            "IterableDataset": datasets.IterableDataset,
            "Trainer": Trainer,
            "model": each.model,
            "arguments": each.args,
            "accelerator": Accelerator(cpu=True),
            "fabric": Fabric(accelerator="cpu", devices=1),
            "module": Module(),
        }
        if name == "Lightning":
            quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
            around["trainer"] = pytorch_lightning.Trainer(accelerator="cpu", max_epochs=1, **quiet)
        exec(line.replace("...", "seen.append(batch)"), {**around, "seen": seen}, around)
        if "dataset" in around:  # which the line before makes for a Trainer
            around["trainer"] = Trainer(each.model, each.args, train_dataset=around["dataset"])
        if isinstance(around.get("trainer"), Trainer):
            around["trainer"].train()
        seen.extend(around.get("loader", ()))
        batches = [batch[0] if isinstance(batch, list | tuple) else batch for batch in seen]
        tokens = [batch["input"] if "input" in batch else batch["input_ids"] for batch in batches]
        found[name] = [row for ids_of_batch in tokens for row in ids_of_batch.reshape(-1, 16).tolist()]
    return found


def test_the_first_line_of_each_framework_reads_the_stream(dataset: Path, tmp_path: Path) -> None:
    [found] = run_ranks(rows_of_first_lines, 1, dataset, str(tmp_path))
    assert len(found) == 9
    rows = ids(islice(packed(dataset), 8))
    for name, read in found.items():
        assert read == rows[: len(read)], name
        assert len(read) == (4 if "Trainer" in name else 8), name


def batches_of_lightning(dataset: Path) -> list[Any]:
    """Return the batches of three epochs, for the loader that the page gives in place of ``overfit_batches``."""
    import pytorch_lightning

    seen: list[Any] = []

    class Module(pytorch_lightning.LightningModule):
        def training_step(self, batch: Any, _: int) -> None:
            seen.append(batch["input_ids"].tolist())

        def configure_optimizers(self) -> None:
            return None

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pytorch_lightning.Trainer(accelerator="cpu", max_epochs=3, **quiet)
    trainer.fit(Module(), batched(dataset).take(2).loader(repeat=True))
    return seen


def test_lightning_trains_on_the_same_few_batches_in_each_epoch(dataset: Path) -> None:
    [found] = run_ranks(batches_of_lightning, 1, dataset)
    assert found == ids(islice(batched(dataset), 2)) * 3
