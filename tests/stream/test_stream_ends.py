"""Ranks of texts and filters bounded by ``epochs`` agree on the end: equally many batches, all documents, no rank waits."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.helpers.text_samples import write_texts
from tests.stream.loaders import assert_raises
from tests.stream.ranks import run_ranks
from tests.stream.streams import batched, ids

TEXTS = [f"text number {n} " * (n % 7 + 1) for n in range(50)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_texts(tmp_path_factory.mktemp("texts") / "texts.jsonl", TEXTS))


def is_late(record: Any) -> bool:
    """Keep documents of the second half of the file, so that lanes end after unequally many rows."""
    return int(record.text.split()[2]) >= 20


def stream(file: str, last: str = "pad", batch: int = 3, **options: Any) -> pipeline.Stream:
    texts = pipeline.TextDataset(file, "bytes", **{"epochs": 1, "eos": False, **options})
    return texts.filter(is_late).shuffle(seed=1).documents().batch(batch, last=last)


def texts_of(batch: Any) -> list[str]:
    """Return the texts of a batch, '' for a row of padding."""
    lengths = batch["attention_mask"].sum(1).tolist()
    rows = zip(batch["input_ids"].tolist(), lengths, strict=True)
    return [bytes(id - 3 for id in row[:length]).decode() for row, length in rows]


def _passes(file: str) -> dict[str, Any]:
    dist.init_process_group("gloo")
    result: dict[str, Any] = {last: [texts_of(batch) for batch in stream(file, last)] for last in ("pad", "drop")}
    result["packed"] = len(list(stream_of_packs(file)))
    result["samples"] = len(list(pipeline.TextDataset(file, "bytes", epochs=1).shuffle(seed=1).documents()))
    one = stream(file)
    result["epochs"] = []
    for epoch in range(3):
        one.set_epoch(epoch)
        result["epochs"].append([texts_of(batch) for batch in one])
    two = stream(file)
    list(islice(two, 3))
    result["state"] = two.state_dict()
    with pytest.raises(ConfigError) as raised:
        list(pipeline.TextDataset(file, "bytes", epochs=1).filter(lambda record: False).shuffle().pack(64).batch(2))
    result["nothing"] = str(raised.value)
    result["uneven"] = [texts_of(batch) for batch in uneven()]
    three, again = uneven(), uneven()
    list(islice(three, 4))
    again.load_state_dict(three.state_dict())
    again.set_epoch(0)  # as Accelerate calls it after a restart
    result["resumed"] = [texts_of(batch) for batch in again]
    return result


def stream_of_packs(file: str) -> pipeline.Stream:
    return pipeline.TextDataset(file, "bytes", epochs=1).shuffle(seed=1).pack(64, best_fit=True).batch(2)


def _drops(file: str) -> Any:
    dist.init_process_group("gloo")
    said: list[str] = []
    logging.getLogger("pipeline").addFilter(lambda record: not said.append(record.getMessage()))
    rows = [batch["input_ids"].shape[0] for batch in uneven("drop")]
    return rows, [one for one in said if one.startswith("last=")]


def test_each_rank_says_what_it_drops_when_one_lacks_a_row(file: str) -> None:
    (given, said), (other_given, other_said) = run_ranks(_drops, 2, file)
    assert given == other_given == [3]
    begins = "last='drop' ends the stream when a rank lacks a row: this rank drops "
    (full,), (ended,) = said, other_said
    assert ended == f"{begins}0 rows of this step; its lanes have ended"
    waiting = sum(map(len, TEXTS[12:16:2]))  # of the first window, of eight documents, six are given or dropped
    assert full == f"{begins}3 rows of this step; its lanes hold {waiting} tokens in memory, and have unread input"


def uneven(last: str = "pad") -> pipeline.Stream:
    """Give rank 0 all its documents, and rank 1 the first three of its own."""
    texts = pipeline.TextDataset(lambda: ({"text": text} for text in TEXTS), "bytes", epochs=1, eos=False)
    kept = texts.filter(lambda record: record.line % 2 == 1 or record.line < 7, name="uneven")
    return kept.documents().batch(3, last=last)


def test_two_ranks_take_as_many_steps_and_give_all_once(file: str) -> None:
    ranks = run_ranks(_passes, 2, file)
    for rank in ranks:
        assert rank["nothing"].startswith("no document was kept of the whole stream")
    for each in ("pad", "drop", "uneven", "resumed"):
        assert len(ranks[0][each]) == len(ranks[1][each]) > 2
    assert ranks[0]["packed"] == ranks[1]["packed"] > 10
    assert ranks[0]["samples"] == ranks[1]["samples"] >= 25
    expected = sorted(TEXTS[20:])

    def given(name: str) -> list[str]:
        return sorted(text for rank in ranks for batch in rank[name] for text in batch if text)

    assert given("pad") == expected
    dropped = given("drop")
    assert all(batch.count("") == 0 for rank in ranks for batch in rank["drop"])
    assert len(dropped) == len(set(dropped)) >= 24
    assert set(dropped) < set(expected)
    for epoch in range(3):
        assert sorted(text for rank in ranks for batch in rank["epochs"][epoch] for text in batch if text) == expected
    assert ranks[0]["epochs"][0] == ranks[0]["pad"] != ranks[0]["epochs"][1]
    for rank in ranks:
        assert rank["resumed"] == rank["uneven"][4:]
    assert ranks[1]["uneven"] == [[TEXTS[n] for n in (1, 3, 5)], *[["", "", ""]] * 8]
    assert given("uneven") == sorted(TEXTS[::2] + TEXTS[1:6:2])
    one = stream(file, batch=6)  # one rank goes on where two were, with every document once
    one.load_state_dict(pipeline.merge_states([rank["state"] for rank in ranks]))
    before = [text for rank in ranks for batch in rank["pad"][:3] for text in batch]
    assert sorted(before + [text for batch in one for text in texts_of(batch) if text]) == expected


def _one_fails(folder: str) -> Any:
    dist.init_process_group("gloo")

    def records() -> Iterator[dict[str, Any]]:
        for number, text in enumerate(TEXTS):
            if number == 30 and dist.get_rank() == 1:
                raise OSError("the line is dead")
            yield {"text": text}

    batches = iter(pipeline.TextDataset(records, "bytes", epochs=1).documents().batch(3))
    steps = 0
    try:
        for _ in batches:
            steps += 1
    except (OSError, StateError) as error:
        return [type(error).__name__, str(error), steps]


def test_a_rank_that_fails_ends_the_others_at_the_same_step(tmp_path: Path) -> None:
    (kind, said, steps), (other_kind, other_said, other_steps) = run_ranks(_one_fails, 2, str(tmp_path))
    assert (other_kind, other_said) == ("OSError", "the line is dead")
    assert (kind, said) == (
        "StateError",
        "another rank failed at this step, so this rank ends too; see the error of that rank",
    )
    assert steps == other_steps


def _refusals(file: str) -> list[str]:
    dist.init_process_group("gloo")
    said = []
    for made in (
        stream(file).shard(dist.get_rank(), 2),
        stream(file).prefetch(2),
        stream(file).apply(lambda items: items),
    ):
        with pytest.raises(ConfigError) as refused:
            next(iter(made))
        said.append(str(refused.value))
    loader = DataLoader(stream(file), batch_size=None, num_workers=1)
    assert_raises(ConfigError, "a worker of a DataLoader cannot; use num_workers=0", loader)
    return said


def test_where_ranks_cannot_agree_the_stream_is_refused_with_the_cure(file: str) -> None:
    for stated, ahead, applied in run_ranks(_refusals, 2, file):
        assert "epochs=1 on 2 ranks: at each step, ranks agree on the end" in stated
        assert (
            "call init_process_group(), and leave .shard() out or give it a mesh or a group, or end the stream"
            in stated
        )
        assert "remove .prefetch() and .apply()" in ahead == applied


def _in_groups(file: str) -> list[Any]:
    """Return the batches of a rank of a mesh, packed ones, and those of two of the ranks alone."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    alone = dist.new_group([1, 2])
    whole = [texts_of(batch) for batch in stream(file).shard(mesh["dp"])]
    packs = [batch["input_ids"].tolist() for batch in stream_of_packs(file).shard(mesh["dp"])]
    two = [texts_of(batch) for batch in stream(file, "drop").shard(alone)] if dist.get_rank() in (1, 2) else []
    return [whole, packs, two]


def test_ranks_of_a_mesh_or_a_group_agree_on_the_end(file: str) -> None:
    ranks = run_ranks(_in_groups, 4, file)
    assert ranks[0][:2] == ranks[1][:2]  # the same place in dp
    assert ranks[2][:2] == ranks[3][:2]
    first, second = ranks[0], ranks[2]
    assert len(first[0]) == len(second[0])
    assert len(first[1]) == len(second[1]) > 1
    kept = sorted(text for batch in [*first[0], *second[0]] for text in batch if text)
    assert kept == sorted(TEXTS[20:])
    assert len(ranks[1][2]) == len(ranks[2][2]) > 1


# len() of a stream is the count of its items on every rank, or an error that says why there is none.


def layouts(small: Path, epochs: int | None, name: str, lanes: int | None) -> pipeline.Stream:
    source = pipeline.ShardDataset(small, epochs=epochs).shuffle(
        seed=4, **({} if name == "sample" else {"lanes": lanes})
    )
    if name == "documents":
        return source.documents()
    return source.sample(7) if name == "sample" else source.pack(9, stride=4) if name == "stride" else source.pack(9)


@settings(max_examples=40)
@given(
    name=st.sampled_from(["pack", "stride", "documents", "sample"]),
    epochs=st.none() | st.integers(1, 3),
    epoch=st.none() | st.integers(0, 2),
    take=st.none() | st.integers(0, 60),
    batch=st.none() | st.integers(1, 5),
    last=st.sampled_from(["pad", "drop"]),
    take_batches=st.none() | st.integers(0, 9),
    world_size=st.integers(1, 5),
    lanes=st.none() | st.integers(1, 5),
    mapped=st.booleans(),
)
def test_len_is_the_count_of_items_of_every_pass_on_every_rank(
    small: Path,
    name: str,
    epochs: int | None,
    epoch: int | None,
    take: int | None,
    batch: int | None,
    last: str,
    take_batches: int | None,
    world_size: int,
    lanes: int | None,
    mapped: bool,
) -> None:
    for rank in range(world_size):
        stream = layouts(small, epochs, name, lanes).shard(rank, world_size)
        stream = stream.map(dict) if mapped and name != "documents" else stream  # whose rows are not stacked
        stream = stream if take is None else stream.take(take)
        stream = stream if batch is None else stream.batch(batch, last=last)
        stream = stream if batch is None or take_batches is None else stream.take(take_batches)
        if epoch is not None and (epochs in (None, 1) or epoch == 0):
            stream.set_epoch(epoch)
        assert stream  # also where there are no items
        if epochs is None and take is None and (batch is None or take_batches is None):
            with pytest.raises(TypeError, match="endless"):
                len(stream)
            continue
        count = len(stream)
        assert count == len(list(stream))
        if count and not mapped:
            loader = stream.loader()
            assert [len(ids(loader)) for _ in range(2)] == [count] * 2 == [len(loader)] * 2
            stream.load_state_dict(loader.state_dict())
            assert len(stream) == count


def drop_some(items: Iterator[Any]) -> Iterator[Any]:
    yield from islice(items, 0, None, 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d, t: pipeline.ShardDataset(d, epochs=1), r"before \.pack"),
        (lambda d, t: batched(d), "endless"),
        (lambda d, t: batched(d, 1).apply(drop_some), r"\.apply"),
        (lambda d, t: batched(d).apply(drop_some).take(5), r"\.apply"),
        (lambda d, t: pipeline.ShardDataset(d, epochs=1).filter(len).pack(8), "unknown"),
        (lambda d, t: pipeline.ShardDataset(d, epochs=1).pack(8, best_fit=True), "unknown"),
        (lambda d, t: pipeline.TextDataset(t, "bytes", epochs=1).pack(8), "unknown"),
        (lambda d, t: pipeline.TextDataset(t, "bytes").pack(8), "endless"),
    ],
)
def test_an_endless_or_unknown_len_is_an_error_that_says_why(
    small: Path, texts: Path, change: Any, reason: str
) -> None:
    stream = change(small, texts)
    assert bool(stream) is True
    with pytest.raises(TypeError, match=reason):
        len(stream)


def test_a_take_of_an_endless_sequential_stream_or_mix_has_a_len(texts: Path) -> None:
    stream = pipeline.TextDataset(texts, "bytes").shuffle(seed=3, lanes=4).pack(24)
    for rank in range(2):
        for some in (stream.batch(2).take(5), stream.take(11).batch(2, last="drop")):
            assert len(some.shard(rank, 2)) == len(list(some.shard(rank, 2)))
    mixed = pipeline.mix({"a": pipeline.ShardDataset.from_tokens(range(99))}, {"a": 1}).pack(8)
    assert len(mixed.take(7)) == len(list(mixed.take(7))) == 7


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_neither_warns_of_the_len_nor_ends_by_it(small: Path, workers: int) -> None:
    whole = ids(batched(small, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream = batched(small, 1)
        loader = DataLoader(stream, batch_size=None, num_workers=workers)
        assert len(loader) == len(whole)
        assert ids(loader) == whole
        stream.load_state_dict(stream.state_dict(batches=2))
        assert len(loader) == len(whole)
        assert ids(loader) == whole[2:]
        for epoch in (0, 1, 4):
            stream.set_epoch(epoch)
            assert len(loader) == len(stream) == len(ids(loader))
