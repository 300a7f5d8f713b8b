"""stream.loader() gives frameworks their keys and a length, passes that follow one another, and exact resume."""

from __future__ import annotations

import json
import logging
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.stream.streams import batched, ids

IGNORE = -100


def make(dataset: Path, epochs: int | None = None, **options: Any) -> pipeline.Stream:
    return batched(dataset, epochs, 4, **options)


def predicted(labels: torch.Tensor) -> torch.Tensor:
    """Return the labels that a model of transformers compares with its logits: shifted by one, the last ones ignored."""
    return torch.nn.functional.pad(labels, (0, 1), value=IGNORE)[..., 1:]


@pytest.mark.parametrize("options", [{}, {"shift": 3, "boundaries": True}])
def test_a_model_that_shifts_labels_trains_on_the_labels_of_the_stream(dataset: Path, options: dict[str, Any]) -> None:
    stream = make(dataset, **options)
    for ours, theirs in zip(islice(stream, 20), stream.loader(keys="hf"), strict=False):
        expected = ours["labels"].clone()
        expected[:, -1] = IGNORE
        assert torch.equal(predicted(theirs["labels"]), expected)
        assert torch.equal(theirs["input_ids"], ours["input_ids"])
        assert set(theirs) == {"input_ids", "labels", *({"position_ids"} if "boundaries" in options else ())}
        assert all(isinstance(value, torch.Tensor) for value in theirs.values())


def test_labels_that_are_inputs_stay_and_documents_keep_their_mask(dataset: Path) -> None:
    same = make(dataset, labels="same", boundaries=True)
    for ours, theirs in zip(islice(same, 5), same.loader(keys="hf"), strict=False):
        assert torch.equal(theirs["labels"], ours["labels"])
    documents = pipeline.ShardDataset(dataset).shuffle(seed=1).documents(max_length=12).batch(4)
    for ours, theirs in zip(islice(documents, 5), documents.loader(keys="hf"), strict=False):
        assert torch.equal(predicted(theirs["labels"])[:, :-1], ours["labels"][:, :-1])
        assert torch.equal(theirs["attention_mask"], ours["attention_mask"])
        assert "valid_tokens" not in theirs


def test_torchtitan_gets_flat_inputs_and_a_function_other_keys(dataset: Path) -> None:
    for boundaries in (False, True):
        stream = make(dataset, boundaries=boundaries)
        for ours, (inputs, labels) in zip(islice(stream, 5), stream.loader(keys="torchtitan"), strict=False):
            assert torch.equal(inputs["input"], ours["input_ids"].reshape(-1))
            assert torch.equal(labels, ours["labels"].reshape(-1))
            expected = ours["position_ids"] if boundaries else torch.arange(16).repeat(4)
            assert torch.equal(inputs["positions"], expected.reshape(-1))
            assert set(inputs) == {"input", "positions"}
    loader = make(dataset, 1).loader(keys=lambda batch: (batch["input_ids"], batch["labels"]))
    assert all(torch.equal(x[:, 1:], y[:, :-1]) for x, y in islice(loader, 3))


@pytest.mark.parametrize(
    ("change", "keys", "error"),
    [
        (
            lambda s: s.pack(16),
            "hf",
            r"keys='hf' needs batches of int64 tensors, but the stream gives samples; add \.batch\(size\)",
        ),
        (lambda s: s.pack(16).batch(2).numpy(), "hf", r"gives NumPy arrays; remove \.numpy\(\)"),
        (lambda s: s.pack(16).batch(2, dtype="stored"), "torchtitan", "remove dtype='stored'"),
        (lambda s: s.pack(16, shift="divisors").batch(2), "hf", "set shift=1"),
        (lambda s: s.pack(16, labels="same").batch(2), "torchtitan", "remove labels='same'"),
        (
            lambda s: s.pack(16).batch(2),
            "huggingface",
            "keys must be 'hf', 'torchtitan' or a function of a batch, got 'huggingface'",
        ),
    ],
)
def test_keys_that_do_not_suit_the_stream_are_refused_with_the_cure(
    dataset: Path, change: Any, keys: str, error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        change(pipeline.ShardDataset(dataset)).loader(keys=keys)


def test_the_length_is_true_as_stated_or_huge_by_default(dataset: Path) -> None:
    assert len(make(dataset, 1).loader()) == len(list(make(dataset, 1)))
    assert len(make(dataset).take(5).loader()) == 5
    assert len(make(dataset).loader()) == 2**31
    assert len(make(dataset).loader(length=100)) == 100
    assert len(make(dataset).apply(drop_some).loader()) == 2**31  # endless
    with pytest.raises(AttributeError, match=r"has no dataset; .* call stream\.skip\(n\) before"):
        batched(dataset).loader().dataset  # noqa: B018
    with pytest.raises(ConfigError, match=r"5 batches; remove length=7"):
        make(dataset).take(5).loader(length=7)
    with pytest.raises(ConfigError, match=r"length must be .*got 0"):
        make(dataset).loader(length=0)


def epochs_of(dataset: Path, count: int, calls: bool = False) -> list[list[Any]]:
    """Return the batches of epochs as a loop calling set_epoch gives them; of epoch 0 only where it ``calls`` it then."""
    stream = make(dataset, 1)
    if calls:
        stream.set_epoch(0)
    found = [ids(stream)]
    for epoch in range(1, count):
        stream.set_epoch(epoch)
        found.append(ids(stream))
    return found


def exactly(loader: Any, count: int) -> list[Any]:
    """Take as many batches as there are without asking for more, as frameworks do that know the length."""
    return ids(islice(iter(loader), count))


def test_passes_are_epochs_whether_the_end_was_asked_for_or_not(dataset: Path) -> None:
    whole = epochs_of(dataset, 3)
    assert whole[0] != whole[1]
    for ends in (ids, lambda loader: exactly(loader, len(loader))):
        loader = make(dataset, 1).loader()
        assert [ends(loader) for _ in range(3)] == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_begins_again_and_again_alike_says_so(dataset: Path, workers: int, tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log")  # to which workers write, too
    logging.getLogger("pipeline").addHandler(handler)
    try:
        stream = make(dataset)
        source = torch.utils.data.DataLoader(stream, batch_size=None, num_workers=workers)
        for number in range(3):
            stream.set_epoch(number)
            exactly(source, 2)
        for _ in range(4 if workers == 0 else 0):  # as TRL looks at the first row
            next(iter(source))
        exactly(source, 2)  # a look at a batch, and the run
        for _ in range(3):
            ids(make(dataset, 1))
        assert not (tmp_path / "log").read_text()
        exactly(source, 2)
        assert (tmp_path / "log").read_text().count("3 passes of the stream began with the same items") == 1
    finally:
        logging.getLogger("pipeline").removeHandler(handler)


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize(("epoch", "stop"), [(0, 0), (2, 3), (2, -1)])
def test_it_resumes_inside_an_epoch_and_at_its_end(dataset: Path, epoch: int, stop: int, calls: bool) -> None:
    whole = epochs_of(dataset, epoch + 3, calls)
    first = make(dataset, 1).loader()
    for number in range(epoch + 1):
        if calls:
            first.set_epoch(number)
        if number < epoch:
            ids(first)
    stop = stop if stop > 0 else len(whole[epoch]) + stop
    assert exactly(first, stop) == whole[epoch][:stop]
    state = json.loads(json.dumps(first.state_dict()))
    resumed = make(dataset, 1).loader()
    resumed.load_state_dict(state)
    found = []
    for number in range(2):
        if calls:
            resumed.set_epoch(number)
        found.append(ids(resumed))
    expected = [whole[epoch][stop:], whole[epoch + 1], whole[epoch + 2]]
    assert found == ([batches for batches in expected if batches])[:2]


def test_passes_of_an_endless_stream_follow_one_another(dataset: Path) -> None:
    whole = ids(islice(make(dataset), 9))
    loader = make(dataset).loader(length=3)
    found = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        found += exactly(loader, 3)
    assert found == whole
    silent = make(dataset).loader(length=3)
    assert [batch for _ in range(3) for batch in exactly(silent, 3)] == whole


def is_some(document: Any) -> bool:
    return len(document) % 3 > 0


BOUNDED: dict[str, Any] = {
    "epochs": lambda d, t: make(d, 1),
    "more epochs": lambda d, t: make(d, 2),
    "take": lambda d, t: make(d).take(5),
    "mix": lambda d, t: pipeline.mix({"a": pipeline.ShardDataset(d)}, {"a": 1}).shuffle().pack(16).batch(4).take(5),
    "documents": lambda d, t: pipeline.ShardDataset(d, epochs=1).documents().batch(3, last="drop"),
    "text": lambda d, t: pipeline.TextDataset(t, "bytes", epochs=1).pack(16).batch(4),
    "filter": lambda d, t: pipeline.ShardDataset(d, epochs=1).filter(is_some).pack(16).batch(4),
    "best fit": lambda d, t: pipeline.ShardDataset(d, epochs=1).pack(16, best_fit=True).batch(4),
    "stage": lambda d, t: make(d, 1).apply(drop_some),
    "take after a stage": lambda d, t: make(d).apply(drop_some).take(5),
}
UNKNOWN = ["text", "filter", "best fit", "stage", "take after a stage"]


@pytest.mark.parametrize("kind", BOUNDED)
def test_each_pass_of_a_loader_that_repeats_is_the_whole_stream(dataset: Path, texts: Path, kind: str) -> None:
    stream = BOUNDED[kind](dataset, texts)
    whole = ids(stream)
    assert len(whole) > 2
    if kind in UNKNOWN:
        with pytest.raises(ConfigError, match=r"state it, \.loader\(length=n\), or .* \.take\(n\)"):
            stream.loader()
        assert len(stream.loader(length=7)) == 7
    loader = stream.loader(repeat=True, **({"length": 5} if kind in UNKNOWN else {}))
    state = loader.state_dict()
    assert exactly(loader, 2) == whole[:2]  # a look at the first batches, as Lightning takes it
    for epoch in (0, 1, 5):
        loader.set_epoch(epoch)
        assert ids(loader) == whole
    assert exactly(loader, len(whole)) == whole
    loader.load_state_dict(state)
    assert ids(loader) == whole


def test_a_next_pass_is_refused_while_the_stream_is_read_elsewhere(dataset: Path) -> None:
    stream = make(dataset, 1)
    loader = stream.loader()
    assert len(list(loader)) == len(loader)
    other = iter(stream)
    next(other)
    with pytest.raises(StateError, match=r"live iterator .*ignore the next pass.*end or drop it"):
        iter(loader)
    del other
    assert len(list(loader)) == len(loader)


def test_a_loader_that_repeats_moves_no_stream_read_elsewhere(dataset: Path) -> None:
    stream = make(dataset, 1)
    whole = ids(stream)
    stream.set_epoch(3)
    evaluation = stream.loader(repeat=True)
    training = iter(stream)
    next(training)
    state = stream.state_dict()
    assert ids(evaluation) == whole
    assert stream.state_dict() == state
    with pytest.raises(ConfigError, match=r"repeat=True .*bound it by epochs=1 or \.take\(n\)"):
        make(dataset).loader(repeat=True)


def drop_some(batches: Any) -> Any:
    yield from (batch for batch in batches if int(batch["input_ids"][0, 0]) % 3)


@pytest.mark.parametrize("calls", [False, True])
def test_passes_of_a_mix_after_a_stage_that_drops_follow_one_another(dataset: Path, calls: bool) -> None:
    def mixed() -> pipeline.Stream:
        sources = {"a": pipeline.ShardDataset(dataset), "b": pipeline.ShardDataset(dataset)}
        stream = pipeline.mix(sources, {"a": 1, "b": 2}).shuffle(seed=1, lanes=3).pack(16).batch(4)
        return stream.apply(drop_some)

    whole = ids(islice(mixed(), 12))
    loader, found = mixed().take(4).loader(length=4), []
    for number in range(3):
        if calls:
            loader.set_epoch(number)
        found += ids(loader)
    assert found == whole


def test_a_running_pass_ends_where_another_begins_or_the_loader_closes(dataset: Path) -> None:
    loader = make(dataset).prefetch(2).loader()
    running = iter(loader)
    next(running)
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert list(running) == []
    assert exactly(loader, 2) == ids(islice(make(dataset), 3))[1:]
    loader.close()
    loader.close()
    assert loader.state_dict()["sequence_index"] == 12
