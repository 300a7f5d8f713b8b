"""Trainers of transformers and TRL keep documents of a row apart and rows whole, or are refused with the setting to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pipeline
from pipeline.errors import ConfigError
from tests.helpers.documentation import blocks_of
from tests.stream.ranks import run_ranks

pytestmark = pytest.mark.stacks
VOCABULARY = 64
[RECIPE] = [block for _, block in blocks_of("docs/frameworks.md") if "SFTTrainer" in block]
CURE = "data_collator=transformers.default_data_collator"


def sequences(boundaries: bool = True, length: int = 16) -> pipeline.Stream:
    tokens = [(7 * n + 3) % (VOCABULARY - 1) + 1 for n in range(6000)]
    data = pipeline.ShardDataset.from_tokens(tokens, lengths=[5] * 1200, eos_id=0)
    return data.pack(length, boundaries=boundaries)


def rows(**options: Any) -> pipeline.Stream:
    return sequences(**options).rows(keys="hf")


def tokenizer() -> Any:
    import tokenizers
    import transformers

    words = {"<eos>": 0, **{f"w{number}": number for number in range(1, VOCABULARY)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<eos>"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", pad_token="<eos>")


def recording_model(kind: str = "llama") -> tuple[Any, list[Any]]:
    """Return a model, and the list to which it adds the inputs of each call."""
    import torch
    import transformers

    torch.manual_seed(0)
    ends: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0}
    model: Any
    if kind == "llama":
        shape: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
        config = transformers.LlamaConfig(num_attention_heads=2, **shape, **ends)
        model = transformers.LlamaForCausalLM(config)
    elif kind == "gpt2":
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=64, **ends)
        )
    else:  # takes no position_ids
        model = transformers.BloomForCausalLM(transformers.BloomConfig(hidden_size=16, n_layer=1, n_head=2, **ends))
    inputs: list[Any] = []
    model.register_forward_pre_hook(lambda _, args, given: inputs.append(given), with_kwargs=True)
    return model, inputs


def crossing(model: Any, inputs: Any, **options: Any) -> float:
    """Return how much the logits of later documents change if the first document of each row changes."""
    import torch

    given = {key: inputs[key] for key in ("input_ids", "position_ids", "attention_mask") if key in inputs}
    first = (inputs["position_ids"] == 0).cumsum(-1) == 1
    ids = torch.where(first, (given["input_ids"] + 1) % VOCABULARY, given["input_ids"])
    with torch.no_grad():
        logits = [model.eval()(**{**given, **changed, **options}).logits for changed in ({}, {"input_ids": ids})]
    return float((logits[0] - logits[1])[~first].abs().max())


def attempt(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except ConfigError as error:
        return str(error)


def with_mask(rows: list[Any]) -> dict[str, Any]:
    """Return a batch with a mask of its own for each pair of tokens."""
    import torch

    batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    document = (batch["position_ids"] == 0).cumsum(-1)
    same = document[:, None, :, None] == document[:, None, None, :]
    return {**batch, "attention_mask": same.tril()}


def stacked(rows: list[Any], key: str = "position_ids", more: int = 0, masked: int = 0) -> dict[str, Any]:
    """Return a batch whose positions are called ``key``, with ``more`` tokens of padding and ``masked`` labels."""
    import torch

    padding = {"input_ids": 0, "labels": -100, "position_ids": 0}
    batch = {
        name: torch.nn.functional.pad(torch.stack([row[name] for row in rows]), (0, more), value=value)
        for name, value in padding.items()
    }
    batch["labels"][:, :masked] = -100
    return {key: batch.pop("position_ids"), **batch}


def causal(rows: list[Any]) -> dict[str, Any]:
    """Return a batch with a mask of its own in which documents attend to each other."""
    masked = with_mask(rows)["attention_mask"]
    return {**stacked(rows), "attention_mask": masked.new_ones(masked.shape).tril().float().log()}


def through_trainers(directory: str) -> dict[str, Any]:
    """Return the crossing of documents after training, or the refusal, for each way to set up a ``Trainer``."""
    import transformers

    def train(
        kind: str = "llama",
        given: Any = None,
        workers: int = 0,
        attention: str = "",
        options: Any = None,
        **more: Any,
    ) -> float:
        model, inputs = recording_model(kind)
        model.config._attn_implementation = attention or model.config._attn_implementation
        arguments = transformers.TrainingArguments(
            directory,
            max_steps=1,
            per_device_train_batch_size=2,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            dataloader_num_workers=workers,
            **(options or {}),
        )
        transformers.Trainer(model, arguments, train_dataset=given or rows(), **more).train()
        return crossing(model, inputs[0]) if "position_ids" in inputs[0] else -1.0

    made, collator = tokenizer(), transformers.default_data_collator
    masking = pipeline.ShardDataset.from_tokens(range(640), lengths=[8] * 80)
    masked = masking.map_documents(lambda ids, mask: (ids % 50, ids % 2), same_length=True, name="odd")
    language_model = transformers.DataCollatorForLanguageModeling(made, mlm=False)
    loop, _ = recording_model()
    [batch] = sequences().batch(2).take(1).loader(keys="hf")
    return {
        "llama": attempt(train),
        "gpt2": attempt(lambda: train("gpt2", processing_class=made, data_collator=collator)),
        "workers": attempt(lambda: train(workers=1)),
        "plain": attempt(lambda: train(given=rows(boundaries=False), processing_class=made)),
        "tokenizer": attempt(lambda: train(processing_class=made)),
        "tokenizer in a worker": attempt(lambda: train(processing_class=made, workers=1)),
        "function": attempt(lambda: train(data_collator=lambda each: made.pad(each, return_tensors="pt"))),
        "language model": attempt(lambda: train(data_collator=language_model)),
        "own mask": attempt(lambda: train(data_collator=with_mask)),
        "own padding": attempt(lambda: train(data_collator=lambda each: stacked(each, more=8))),
        "own labels": attempt(lambda: train(data_collator=lambda each: stacked(each, masked=8))),
        "own key": attempt(
            lambda: train(data_collator=lambda each: stacked(each, "seq_idx"), options={"remove_unused_columns": False})
        ),
        "causal mask": attempt(lambda: train(data_collator=causal)),
        "flattening": attempt(lambda: train(data_collator=transformers.DataCollatorWithFlattening())),
        "bloom": attempt(lambda: train("bloom")),
        "masks": attempt(lambda: train(given=masked.pack(16).rows(keys="hf"), data_collator=language_model)),
        "masks padded": attempt(
            lambda: train(
                given=masked.documents().rows(keys="hf"),
                data_collator=transformers.DataCollatorForSeq2Seq(made, pad_to_multiple_of=16),
            )
        ),
        "masks kept": attempt(lambda: train(given=masked.pack(16).rows(keys="hf"))),
        "flash": attempt(lambda: train(attention="flash_attention_2")),
        "loop": crossing(loop, batch, use_cache=False),
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    [found] = run_ranks(through_trainers, 1, str(tmp_path_factory.mktemp("trainers")))
    return dict(found)


@pytest.mark.parametrize("name", ["llama", "gpt2", "workers", "own mask", "own padding", "own labels", "loop"])
def test_documents_of_a_row_do_not_change_each_others_logits(trained: dict[str, Any], name: str) -> None:
    assert trained[name] == 0


@pytest.mark.parametrize("name", ["tokenizer", "tokenizer in a worker", "function", "language model"])
def test_a_collator_that_adds_a_mask_to_documents_of_a_row_is_refused(trained: dict[str, Any], name: str) -> None:
    assert "adds an attention_mask" in trained[name]
    assert CURE in trained[name]


def test_positions_that_do_not_reach_the_model_are_refused(trained: dict[str, Any]) -> None:
    assert "drops or changes position_ids" in trained["flattening"]
    assert CURE in trained["flattening"]
    assert "forward() of this model does not name" in trained["bloom"]
    assert "remove boundaries=True, or take a model" in trained["bloom"]


def test_a_mask_of_pairs_that_joins_documents_is_refused(trained: dict[str, Any]) -> None:
    assert "adds an attention_mask in which documents attend to each other" in trained["causal mask"]


def test_a_collator_that_replaces_the_labels_of_masked_tokens_is_refused(trained: dict[str, Any]) -> None:
    assert "changes labels of the rows, so masked tokens would count" in trained["masks"]
    assert trained["masks kept"] == trained["masks padded"] == trained["own key"] == trained["plain"] == -1.0


def test_flash_attention_on_several_rows_with_boundaries_is_refused(trained: dict[str, Any]) -> None:
    assert "attn_implementation='flash_attention_2'" in trained["flash"]
    assert "per_device_train_batch_size=1" in trained["flash"]


def through_trl(directory: str) -> dict[str, Any]:
    """Return the crossing of documents and the row length after training, or the refusal, for each way to set up TRL."""
    import logging
    import os

    from trl import SFTConfig, SFTTrainer

    os.chdir(directory)
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("pipeline").addHandler(handler)

    def train(given: pipeline.Stream, code: str = RECIPE, **options: Any) -> list[Any]:
        model, inputs = recording_model()
        config = lambda *args, **named: SFTConfig(  # noqa: E731
            *args, bf16=False, report_to="none", save_strategy="no", disable_tqdm=True, **{**named, **options}
        )
        around: dict[str, Any] = {"model": model, "sequences": given, "tokenizer": tokenizer(), "max_steps": 2}
        exec(
            code.replace("from trl import SFTConfig, SFTTrainer", ""),
            {**around, "SFTConfig": config, "SFTTrainer": SFTTrainer},
        )
        found = [list(each["input_ids"].shape) for each in inputs]
        return [crossing(model, inputs[0]) if "position_ids" in inputs[0] else None, found[0]]

    own = RECIPE.replace("    data_collator=transformers.default_data_collator,\n", "")
    own = own.replace("    remove_unused_columns=False,  # keeps position_ids\n", "")
    defaults = own.replace("    max_length=None,  # the stream says how long rows are\n", "")
    assert len(defaults) < len(own) < len(RECIPE)
    documents = pipeline.ShardDataset.from_tokens(range(60), lengths=[20] * 3, eos_id=0)
    return {
        "recipe": attempt(lambda: train(sequences())),
        "long": attempt(lambda: train(sequences(False, 1040), own)),
        "own collator": attempt(lambda: train(sequences(), own)),
        "cut": attempt(lambda: train(sequences(False, 1040), defaults)),
        "packed": attempt(lambda: train(sequences(False, 1040), defaults, packing=True)),
        "cut documents": attempt(lambda: train(documents.documents(), defaults)),
        "documents": attempt(lambda: train(documents.documents(max_length=64), defaults)),
        "logged": logged,
    }


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    [found] = run_ranks(through_trl, 1, str(tmp_path_factory.mktemp("trl")))
    return dict(found)


def test_the_recipe_of_trl_keeps_documents_apart_and_rows_whole(tuned: dict[str, Any]) -> None:
    assert tuned["recipe"] == [0, [2, 16]]
    assert tuned["long"] == [None, [2, 1040]]
    assert tuned["documents"] == [None, [2, 20]]
    assert not [line for line in tuned["logged"] if "began with the same items" in line]


def test_the_collator_of_trl_is_refused_for_documents_that_share_a_row(tuned: dict[str, Any]) -> None:
    assert "adds an attention_mask" in tuned["own collator"]
    assert "SFTConfig(max_length=None, remove_unused_columns=False)" in tuned["own collator"]
    assert CURE in tuned["own collator"]


@pytest.mark.parametrize(
    ("name", "length"), [("cut", "1,040"), ("packed", "1,040"), ("cut documents", "any number of")]
)
def test_rows_that_trl_would_cut_are_refused(tuned: dict[str, Any], name: str, length: str) -> None:
    assert "SFTTrainer cuts rows at 1,024 tokens" in tuned[name]
    assert f"have {length} tokens: set max_length=None" in tuned[name]
