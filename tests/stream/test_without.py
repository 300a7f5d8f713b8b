"""``.without``: listed documents are masked wherever a stream shows them, and no other token differs from the plain stream's."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.helpers.shard_samples import EOS, index_extents, write_dataset

SIZES = {"small": [70, 0, 50], "large": [700, 400]}  # documents of each shard; the large one is split by extents
PLACES = {
    name: {(shard, at): sum(sizes[:shard]) + at for shard, size in enumerate(sizes) for at in range(size)}
    for name, sizes in SIZES.items()
}
FIRST_TOKENS = {"small": 2, "large": 2000}  # document n is one to seven tokens n + this
ROWS = 6  # of a global batch
SOURCES = ("small", "large", "rest", "val", "small rest", "subset", "upsampled", "mix", "mix, change")
LAYOUTS = ("pack", "boundaries", "stride", "ids", "same", "best_fit", "sample", "documents", "bucket", "cut", "peers")
CHANGES = ("none", "filter", "longer", "same length", "filter, longer")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("without")
    for name, sizes in SIZES.items():
        ends = np.cumsum(sizes).tolist()
        spans = [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        shards = [[np.full(1 + n % 7, n + FIRST_TOKENS[name], "<u2") for n in span] for span in spans]
        tables = [{"id": [f"{name}-{n}" for n in span], "column:score": [n % 5 / 2 for n in span]} for span in spans]
        write_dataset(folder / name, shards, tables=tables)
        index_extents(folder / name, 10 if name == "large" else 300)
    (folder / "texts.jsonl").write_text(
        "\n".join(json.dumps({"id": f"text-{n}", "ids": [n + 3] * (1 + n % 7)}) for n in range(200))
    )
    return folder


@cache
def source(folder: Path, kind: str) -> Any:
    if kind == "texts":
        return pipeline.TextDataset(folder / "texts.jsonl", "bytes", tokens_key="ids", eos=False)
    small, large = (pipeline.ShardDataset(folder / name) for name in SIZES)
    if kind.startswith("mix"):
        first = {"a": 0.7, "b": 0.3}
        changes = [(0, first), (40, {"a": 0.2, "b": 0.8})] if "change" in kind else first
        return pipeline.mix({"a": small, "b": large.split(val=0.4)[0]}, changes)
    parts: dict[str, Any] = {"small": lambda: small, "large": lambda: large, "rest": lambda: large.split(val=0.3)[0]}
    parts |= {"val": lambda: large.split(val=0.3)[1], "small rest": lambda: small.split(val=0.3)[0].split(val=0.2)[0]}
    parts |= {"subset": lambda: large.subset(0.5), "upsampled": lambda: small.upsample("score", [0, 1, 3])}
    return parts[kind]()


def kept(record: Any) -> bool:
    return (record.line if hasattr(record, "line") else int(record.sum())) % 3 != 1


def same(ids: Any, mask: Any) -> tuple[Any, Any]:
    return ids, ids % 2


def longer(ids: Any, mask: Any) -> tuple[Any, Any]:
    return np.append(ids, ids[:1]), np.arange(len(ids) + 1) != 1


def stream(data: Any, layout: str, change: str, seed: int | None, rank: int, ranks: int) -> pipeline.Stream:
    """Return the batches of a rank; their tokens say which documents they are of."""
    if seed is not None:
        # Under seed 2, a source has several windows; else filters take its documents from memory.
        shuffle = {} if layout == "sample" else {"lanes": 2 * ROWS, "window": 4 if seed == 2 else None}
        data = data.shuffle(seed=seed, **shuffle)
    if "filter" in change:
        data = data.filter(kept)
    if "longer" in change:
        data = data.map_documents(longer)
    if change == "same length":
        data = data.map_documents(same, same_length=True)
    boundaries = layout in ("boundaries", "same", "best_fit")
    labels = "same" if layout == "same" else "next"
    if layout == "sample":
        rows = data.sample(8, boundaries=True)
    elif layout in ("documents", "bucket"):
        rows = data.documents(max_length=5, bucket=ROWS if layout == "bucket" else None)
    else:
        stride, best_fit = 5 if layout == "stride" else None, layout == "best_fit"
        ids = layout == "ids"
        rows = data.pack(8, stride=stride, best_fit=best_fit, boundaries=boundaries, labels=labels, document_ids=ids)
    rows = rows.batch(ROWS // ranks, cut=4 if layout == "cut" else None)
    return rows.shard(rank, ranks, context=(1, 2) if layout == "peers" else None)


def masked(batch: dict[str, Any], tokens: set[int], eos_id: int = EOS, unshifted: bool = False) -> dict[str, Any]:
    """Return a batch with ``tokens`` masked: all that the definition says of `without`. No model counts a first label itself."""
    listed = torch.tensor(sorted(tokens))
    ids, labels = batch["input_ids"], batch["labels"]
    labels = torch.where(torch.isin(labels, listed), -100, labels)
    ids = torch.where(torch.isin(ids, listed), eos_id, ids)
    return batch | {"input_ids": ids, "labels": labels, "valid_tokens": int((labels[:, unshifted:] != -100).sum())}


def as_lists(batch: dict[str, Any]) -> dict[str, Any]:
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in batch.items()}


def read(batches: Iterator[Any], count: int) -> list[dict[str, Any]]:
    return list(islice(batches, count))


def listed(seed: int, share: float, own: list[str]) -> tuple[list[str], dict[str, set[int]]]:
    """Return names of a ``share`` of the documents, and the documents of each dataset in ``own`` that they name."""
    draw, names, named = random.Random(seed), list[str](), {name: set[int]() for name in own}
    for name in own:
        for (shard, at), number in PLACES[name].items():
            if draw.random() < share:
                kind = draw.choice(["id", "key", "place"])
                written = {"id": f"{name}-{number}", "key": f"{number:012d}", "place": f"train-{shard:06d}.tar:{at}"}
                names.append(written[kind])
                for other in own if kind != "id" else [name]:  # both datasets of a mix have such a key, or such a place
                    key = number if number < len(PLACES[other]) else None
                    found = {"id": number, "key": key, "place": PLACES[other].get((shard, at))}[kind]
                    named[other] |= set() if found is None else {found}
    return names, named


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 99),
    st.sampled_from([0.01, 0.2, 0.6]),
    st.sampled_from(SOURCES),
    st.sampled_from(LAYOUTS),
    st.sampled_from(CHANGES),
    st.sampled_from([None, 1, 2]),
    st.tuples(*[st.sampled_from([1, 2, 3])] * 2),
    st.tuples(*[st.integers(0, 5)] * 2),
    st.booleans(),
)
@example(3, 0.6, "large", "pack", "filter", 2, (1, 1), (0, 5), False)
def test_every_other_token_is_the_plain_streams_over_forks_and_topologies(
    folder: Path,
    list_seed: int,
    share: float,
    kind: str,
    layout: str,
    change: str,
    seed: int | None,
    ranks: tuple[int, int],
    steps: tuple[int, int],
    early: bool,
) -> None:
    is_sequential = layout == "best_fit" or change not in ("none", "same length")
    if is_sequential and (layout in ("sample", "bucket") or seed is None):
        change, layout, seed, is_sequential = "none", "pack", 1, False
    own = ["small"] if kind in ("small", "small rest", "upsampled") else [*SIZES] if "mix" in kind else ["large"]
    names, named = listed(list_seed, share, own)
    if not names:
        return
    tokens = {n + FIRST_TOKENS[name] for name in own for n in named[name]}

    def both(rank: int, count: int) -> tuple[pipeline.Stream, pipeline.Stream]:
        data = source(folder, kind)
        plain = stream(data, layout, change, seed, rank, count)
        if early:
            return plain, stream(data.without(names, reason="a test"), layout, change, seed, rank, count)
        return plain, plain.without(names, reason="a test")

    first, second = ranks
    runs = [both(rank, first)[0] for rank in range(first)]
    for run in runs:
        read(iter(run), steps[0])
    state = pipeline.merge_states([run.state_dict() for run in runs])
    changed_states, plain_states = [], []
    for rank in range(second):
        plain, changed = both(rank, second)
        for each in (plain, changed):
            each.load_state_dict(state)
        expected = [
            as_lists(masked(batch, tokens, unshifted=layout == "same")) for batch in read(iter(plain), steps[1])
        ]
        assert [as_lists(batch) for batch in read(iter(changed), steps[1])] == expected
        changed_states.append(changed.state_dict())
        plain_states.append(plain.state_dict())
    for rank in range(first):
        plain, changed = both(rank, first)
        plain.load_state_dict(pipeline.merge_states(plain_states))
        changed.load_state_dict(pipeline.merge_states(changed_states))
        expected = [as_lists(masked(batch, tokens, unshifted=layout == "same")) for batch in read(iter(plain), 3)]
        assert [as_lists(batch) for batch in read(iter(changed), 3)] == expected


@pytest.mark.parametrize("change", ["none", "filter, longer"])
@pytest.mark.parametrize("layout", ["pack", "best_fit", "documents"])
def test_texts_are_masked_by_their_ids_after_filters_and_maps(folder: Path, layout: str, change: str) -> None:
    names, tokens = [f"text-{n}" for n in range(0, 200, 9)], {n + 3 for n in range(0, 200, 9)}
    plain = stream(source(folder, "texts"), layout, change, 1, 0, 1)
    eos_id = plain.tokenizer.eos_id
    state = plain.state_dict()
    for expected, got in islice(zip(plain, plain.without(names, reason="a test"), strict=True), 20):
        assert as_lists(got) == as_lists(masked(expected, tokens, eos_id))
    changed = plain.without(names, reason="a test")
    changed.load_state_dict(state)
    origins = [span["origin"] for row in changed.trace(2) for span in row["documents"]]
    assert {origin["id"]: origin.get("withheld") for origin in origins} == {
        origin["id"]: "a test" if origin["id"] in names else None for origin in origins
    }
    assert {span["origin"]["withheld"] for span in changed.seen(names, steps=9)} == {"a test"}


@pytest.mark.parametrize("change", ["none", "filter"])
def test_workers_and_pickles_mask_what_one_process_masks(folder: Path, change: str) -> None:
    changed = stream(source(folder, "small rest"), "pack", change, 1, 0, 1).without(
        ["small-7", "small-8"], reason="a test"
    )
    expected = [as_lists(batch) for batch in islice(changed, 8)]
    for method in ("fork", "forkserver"):
        loader = DataLoader(changed.take(8), batch_size=None, num_workers=2, multiprocessing_context=method)
        assert [as_lists(batch) for batch in loader] == expected
    assert any(-100 in labels for batch in expected for labels in batch["labels"])


def test_trace_and_seen_say_of_a_withheld_document_why_and_that_it_is_end_of_text_ids(folder: Path) -> None:
    for kind, layout in (("small", "pack"), ("small rest", "documents"), ("upsampled", "pack"), ("mix", "best_fit")):
        plain = stream(source(folder, kind), layout, "none", 1, 0, 1)
        first, second, *_ = {span["origin"]["id"]: 0 for row in plain.trace(2) for span in row["documents"]}
        changed = plain.without([first], reason="a test").without([second], reason="another")
        for name, reason in ((first, "a test"), (second, "another")):
            spans = changed.seen(name, steps=40)
            assert {span["origin"]["withheld"] for span in spans} == {reason}
            stripped = [
                {**span, "origin": {k: v for k, v in span["origin"].items() if k != "withheld"}} for span in spans
            ]
            assert stripped == plain.seen(name, steps=40) != []
            [row] = [row for row in changed.trace(spans[0]["step"], with_ids=True) if row["row"] == spans[0]["row"]]
            assert {id for span in row["documents"] if span["origin"]["id"] == name for id in span["ids"]} == {EOS}


def test_a_state_of_the_plain_stream_loads_once_said_and_one_of_the_changed_stream_only_with_its_list(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def changed(*names: str) -> pipeline.Stream:
        plain = stream(source(folder, "mix"), "pack", "none", 77, 0, 1)
        return plain.without(names, reason="a test") if names else plain

    run = changed()
    read(iter(run), 7)
    with caplog.at_level(logging.WARNING, "pipeline"):
        for _ in range(2):
            changed("small-3").load_state_dict(run.state_dict())
    said = [record.message for record in caplog.records if "without" in record.message]
    assert said == ["this state was saved before .without(): the listed documents are masked from row 42 on"]
    state = changed("small-3", f"{9:012d}").state_dict()
    for equal in (("small-3", "000000000009"), ("train-000000.tar:9", "small-3", "small-9")):
        changed(*equal).load_state_dict(state)
    for other in ((), ("small-3",), ("small-3", "small-9")):
        with pytest.raises(StateError, match=r"^without was .* but is .*give \.without\(\) the list"):
            changed(*other).load_state_dict(state)


def test_a_list_is_python_or_a_file_of_lines_or_of_json_and_thousands_of_names_are_one_reading(
    folder: Path, tmp_path: Path
) -> None:
    def hidden(documents: Any) -> int:
        data = pipeline.ShardDataset(folder / "large", epochs=1).without(documents, reason="a test")
        return sum(int((row["input_ids"] == EOS).all()) for row in data.documents())

    wanted = [f"{n:012d}" for n in range(5, 1100, 2)] + ["large-0", "train-000001.tar:0"]
    (tmp_path / "list.txt").write_text("\ufeff" + "\r\n".join(wanted) + "\r\n\r\n", encoding="utf-8")
    records = [{"key": name} if name[0] == "0" else {"id": name, "kind": "short"} for name in wanted]
    (tmp_path / "rejected.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    assert {hidden(wanted), hidden(tmp_path / "list.txt"), hidden(str(tmp_path / "rejected.jsonl"))} == {550}
    (tmp_path / "spaced.jsonl").write_text('{"id": "large-0 "}\n')  # an id is named as it is
    (tmp_path / "bad.jsonl").write_text('{"id": "large-0"}\n{"text": "no name"}\n')
    for documents, message in (
        ([*wanted, *(f"none-{n}" for n in range(9))], r"no document 'none-0', .*, \.\.\. \(9 of 559 names\) in Shard"),
        (tmp_path / "bad.jsonl", "line 2: no JSON object with a key or an id"),
        (tmp_path / "none.txt", "cannot be read as a list of documents"),
        ("a\0b", "cannot be read as a list of documents"),
        (tmp_path / "spaced.jsonl", "no document 'large-0 '"),
        ([f"train-000000.tar:{'9' * 5000}"], "no document 'train-000000.tar:99"),
        (b"large-0", "must be a list of keys or ids, or a file"),
        ([], "names no document"),
        ([None], "named by its key, its id or SHARD:NUMBER, got None"),
        (7, "must be a list of keys or ids, or a file"),
    ):
        with pytest.raises(ConfigError, match=message):
            hidden(documents)
    array = pipeline.ShardDataset.from_tokens(range(2, 10), lengths=[1] * 8)
    for numbers in ([1, 3], np.array([1, 3]), torch.tensor([1, 3]), [np.int64(1), "3"]):
        assert next(iter(array.without(numbers, reason="a test").pack(8)))["input_ids"].tolist() == [
            2,
            0,
            4,
            0,
            6,
            7,
            8,
            9,
        ]
    with pytest.raises(ConfigError, match=r"\.without\(\) needs documents"):
        pipeline.ShardDataset.from_tokens(range(9)).without([0], reason="a test")
    with pytest.raises(ConfigError, match="reason must say why"):
        pipeline.ShardDataset(folder / "large").without(["large-0"], reason=" ")


def test_a_dataset_without_documents_is_split_mixed_and_upsampled_as_it_was(folder: Path) -> None:
    names, tokens = [f"small-{n}" for n in range(0, 120, 5)], {n + 2 for n in range(0, 120, 5)}
    plain = pipeline.ShardDataset(folder / "small")
    changed = plain.without(names, reason="a test")
    for one, other in (
        (plain.split(val=0.4)[0].split(val=0.3)[1], changed.split(val=0.4)[0].split(val=0.3)[1]),
        (plain.subset(1 / 2), changed.subset(1 / 2)),
        (plain.split(val=0.4)[1], plain.split(val=0.4)[1].without(names, reason="a test")),
        (plain.upsample("score", [1, 2]), changed.upsample("score", [1, 2])),
        (pipeline.mix({"a": plain}, {"a": 1}), pipeline.mix({"a": changed}, {"a": 1})),
    ):
        pairs = zip(one.shuffle().pack(8).batch(3), other.shuffle().pack(8).batch(3), strict=True)
        for expected, got in islice(pairs, 40):
            assert as_lists(got) == as_lists(masked(expected, tokens))


@pytest.mark.parametrize("kind", ["small", "large"])
def test_documents_of_the_other_part_of_a_split_are_not_masked_and_the_log_says_if_none_is(
    folder: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    train, val = source(folder, kind).split(val=0.3)
    of_val, of_train = (
        [row["documents"][0]["origin"]["id"] for row in part.documents().trace(0)] for part in (val, train)
    )
    state = train.without(of_train, reason="a test").pack(8).state_dict()
    train.without([*of_val, *of_train], reason="a test").pack(8).load_state_dict(state)
    assert caplog.messages == []
    train.pack(8).load_state_dict(train.without(of_val, reason="a test").pack(8).state_dict())
    assert [message.partition(":")[0] for message in caplog.messages] == [".without() masks nothing"]


def test_losses_are_equal_up_to_the_step_that_seen_names_and_not_after(folder: Path) -> None:
    plain = stream(source(folder, "small"), "pack", "none", 5, 0, 1)
    spans = plain.trace(9)[0]["documents"]
    name = spans[1]["origin"]["id"]  # its first token is a label of this row, and of no row before
    changed = plain.without([name], reason="a test")
    step = changed.seen(name, steps=40)[0]["step"]
    assert 3 < step < 10

    def losses(batches: pipeline.Stream) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Embedding(128, 8), torch.nn.Linear(8, 128))
        optimizer, found = torch.optim.SGD(model.parameters(), lr=1.0), list[float]()
        for batch in islice(batches, step + 4):
            loss = torch.nn.functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found

    one, other = losses(plain), losses(changed)
    assert one[:step] == other[:step]
    assert all(a != b for a, b in zip(one[step:], other[step:], strict=True))
