"""Under Accelerate every sequence is read, or an error names the loader that reads it; set_epoch undoes no resume."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

import pipeline
from pipeline.errors import ConfigError
from tests.stream.ranks import run_ranks

pytestmark = pytest.mark.stacks
SPLIT = "Accelerate would split this stream among 2 processes"


class Wrapped(IterableDataset):
    """A user's own dataset around a stream, without set_epoch."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __iter__(self) -> Any:
        yield from self.stream


def sequences(dataset: Path, **options: Any) -> pipeline.Stream:
    return pipeline.ShardDataset(dataset, **options).shuffle(seed=1, lanes=6).pack(16)


def accelerator(dispatch: bool | None) -> Any:
    from accelerate import Accelerator, DataLoaderConfiguration

    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))


def refusal_of(loader: Any) -> str:
    try:
        list(islice(loader, 2))
    except ConfigError as error:
        return str(error)
    return ""


def prepare_everything(dataset: Path, dispatch: bool | None) -> list[str]:
    """Return what iterating each prepared loader raises."""
    prepare = accelerator(dispatch).prepare
    endless, bounded = sequences(dataset), sequences(dataset, epochs=1)
    loaders = [
        DataLoader(endless, batch_size=4),
        DataLoader(bounded, batch_size=4),
        DataLoader(endless.batch(4), batch_size=None),
        DataLoader(endless.shard(0, 2), batch_size=4),
    ]
    return [refusal_of(prepare(loader)) for loader in loaders]


@pytest.mark.parametrize("dispatch", [None, False])
def test_a_loader_that_accelerate_splits_on_two_ranks_is_refused(dataset: Path, dispatch: bool | None) -> None:
    for refusals in run_ranks(prepare_everything, 2, dataset, dispatch):
        assert all(refusal.startswith(SPLIT) for refusal in refusals), refusals
        assert all("stream.loader()" in refusal for refusal in refusals)
        assert all("for evaluation stream.loader(repeat=True)" in refusal for refusal in refusals)


def iterate_a_wrapped_stream(dataset: Path, dispatch: bool | None) -> None:
    list(islice(accelerator(dispatch).prepare(DataLoader(Wrapped(sequences(dataset)), batch_size=4)), 2))


@pytest.mark.parametrize("dispatch", [None, False])
def test_a_stream_inside_a_dataset_of_the_user_is_refused_too(dataset: Path, dispatch: bool | None) -> None:
    with pytest.raises(AssertionError, match=SPLIT):
        run_ranks(iterate_a_wrapped_stream, 2, dataset, dispatch)


def prepare_with_workers(dataset: Path, dispatch: bool | None, start: str) -> list[str]:
    prepare = accelerator(dispatch).prepare
    options = {"batch_size": 4, "num_workers": 1, "multiprocessing_context": start}
    return [refusal_of(prepare(DataLoader(sequences(dataset), **options)))]


@pytest.mark.parametrize(("start", "dispatch"), [("fork", None), ("forkserver", False)])
def test_a_loader_with_workers_is_refused_whatever_starts_them(
    dataset: Path, start: str, dispatch: bool | None
) -> None:
    for refusals in run_ranks(prepare_with_workers, 2, dataset, dispatch, start):
        assert [refusal[: len(SPLIT)] for refusal in refusals] == [SPLIT]


def rows_of_what_is_allowed(dataset: Path, dispatch: bool | None) -> list[Any]:
    """Return the first rows of a stream that leaves the splitting to Accelerate, and of one that nobody prepared."""
    prepare = accelerator(dispatch).prepare
    prepared = prepare(DataLoader(sequences(dataset).shard(0, 1), batch_size=2))
    left_alone = sequences(dataset).batch(2)
    found = [[batch["input_ids"].tolist() for batch in islice(source, 6)] for source in (prepared, left_alone)]
    assert prepare(left_alone) is left_alone
    return [[row for batch in batches for row in batch] for batches in found]


@pytest.mark.parametrize("dispatch", [None, False])
def test_streams_of_one_rank_or_not_prepared_give_all_once(dataset: Path, dispatch: bool | None) -> None:
    whole = [sample["input_ids"].tolist() for sample in islice(sequences(dataset), 24)]
    ranks = run_ranks(rows_of_what_is_allowed, 2, dataset, dispatch)
    for prepared_and_not in zip(*ranks, strict=True):
        assert sorted(row for rows in prepared_and_not for row in rows) == sorted(whole)


def test_one_process_splits_nothing_so_nothing_is_refused(dataset: Path) -> None:
    (refusals,) = run_ranks(prepare_everything, 1, dataset, True)
    assert refusals == [""] * len(refusals)


def train_on_a_dataset(dataset: Path, directory: str, batched: bool) -> list[str]:
    """Return what a Trainer says that is given a stream as its training set, and as its evaluation set."""
    import transformers

    config = transformers.GPT2Config(vocab_size=60_000, n_positions=16, n_embd=4, n_layer=1, n_head=1)
    arguments = transformers.TrainingArguments(directory, max_steps=2, report_to="none", save_strategy="no")
    same, bounded = (
        pipeline.ShardDataset(dataset, epochs=epochs).pack(16, labels="same").map(only_tensors) for epochs in (None, 1)
    )
    if batched:
        same, bounded = same.batch(2), bounded.batch(2)
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config), arguments, train_dataset=same, eval_dataset=bounded
    )
    found = []
    for run in (trainer.train, trainer.evaluate):
        try:
            run()
        except ConfigError as error:
            found.append(str(error))
    return found


def only_tensors(sample: dict[str, Any]) -> dict[str, Any]:
    return {key: sample[key] for key in ("input_ids", "labels")}


def test_a_trainer_on_two_ranks_refuses_a_stream_as_its_dataset(dataset: Path, tmp_path: Path) -> None:
    for refusals in run_ranks(train_on_a_dataset, 2, dataset, str(tmp_path), True):
        assert [refusal[: len(SPLIT)] for refusal in refusals] == [SPLIT, SPLIT]


def test_a_trainer_alone_takes_a_stream_as_its_dataset(dataset: Path, tmp_path: Path) -> None:
    assert run_ranks(train_on_a_dataset, 1, dataset, str(tmp_path), False) == [[]]


def passes_of_a_stateful_loader(dataset: Path) -> list[Any]:
    """Return passes of rows in the stateful loader of Accelerate, and the rest of the second one after a resume."""
    from accelerate import Accelerator, DataLoaderConfiguration

    def loader() -> Any:
        settings = DataLoaderConfiguration(use_stateful_dataloader=True)
        rows = sequences(dataset).take(24).rows()
        return Accelerator(cpu=True, dataloader_config=settings).prepare(DataLoader(rows, batch_size=4))

    first, second = loader(), loader()
    passes = [[batch["input_ids"].tolist() for batch in first] for _ in range(2)]
    again = iter(first)
    begun = [next(again)["input_ids"].tolist() for _ in range(2)]
    second.load_state_dict(first.state_dict())
    return [*passes, begun, [batch["input_ids"].tolist() for batch in second]]


def test_the_stateful_loader_of_accelerate_reads_each_pass_and_resumes(dataset: Path) -> None:
    [[*passes, begun, rest]] = run_ranks(passes_of_a_stateful_loader, 1, dataset)
    found = [[row for batch in batches for row in batch] for batches in (*passes, begun + rest)]
    rows = [sample["input_ids"].tolist() for sample in islice(sequences(dataset), 72)]
    assert found == [rows[:24], rows[24:48], rows[48:]]
