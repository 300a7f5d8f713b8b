"""A state is small plain JSON of one stream; what does not fit a stream is refused, naming field and value."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline
from pipeline.errors import ConfigError, StateError
from pipeline.shards.manifest import Manifest
from tests.helpers.shard_samples import make_documents, write_dataset, write_manifest

Change = Callable[[Any], Any]


def batches(dataset: Path, **options: Any) -> pipeline.Stream:
    return pipeline.ShardDataset(dataset).shuffle(**options).pack(8).batch(2)


def lanes(dataset: Path) -> pipeline.Stream:
    return pipeline.ShardDataset(dataset).filter(len, name="all").shuffle(lanes=2).pack(8).batch(2)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda d: pipeline.ShardDataset(d).shuffle(seed=1).pack(8), "seed"),
        (lambda d: pipeline.ShardDataset(d).shuffle(lanes=2).pack(8), "lanes"),
        (lambda d: pipeline.ShardDataset(d).shuffle(window=2).pack(8), "window"),
        (lambda d: pipeline.ShardDataset(d).shuffle().pack(9), "seq_len"),
        (lambda d: pipeline.ShardDataset(d).shuffle().pack(8, stride=4), "stride"),
        (lambda d: pipeline.ShardDataset(d, epochs=1).shuffle().pack(8), "epochs"),
        (lambda d: pipeline.ShardDataset(d).shuffle().documents(), "kind"),
        (lambda d: pipeline.ShardDataset(d).shuffle().sample(8), "kind"),
        # What other fields follow from is named before them.
        (lambda d: pipeline.ShardDataset(d).filter(len, name="long").shuffle().pack(8), "filters"),
        (lambda d: pipeline.ShardDataset(d).map_documents(list, name="m").shuffle().pack(8), "document_maps"),
        (lambda d: pipeline.ShardDataset(d).shuffle().pack(8, best_fit=True), "best_fit"),
    ],
)
def test_a_state_of_another_shape_is_refused_with_both_values(dataset: Path, change: Change, field: str) -> None:
    one, other = batches(dataset), change(dataset).batch(2)
    for saved, loaded in ((one, other), (other, one)):
        if field == "epochs" and saved is other:
            continue  # may be raised
        with pytest.raises(StateError, match=rf"^{field} was .* but is "):
            loaded.load_state_dict(saved.state_dict())


@pytest.mark.parametrize(
    ("one", "other", "field"),
    [
        (lambda data: data.documents(bucket=8), lambda data: data.documents(), "bucket"),
        (lambda data: data.sample(16), lambda data: data.sample(8), "seq_len"),
        (lambda data: data.sample(16), lambda data: data.shuffle(seed=3).sample(16), "seed"),
    ],
)
def test_a_state_of_other_documents_or_samples_is_refused(
    dataset: Path, one: Change, other: Change, field: str
) -> None:
    data = pipeline.ShardDataset(dataset)
    for saved, loaded in ((one, other), (other, one)):
        with pytest.raises(StateError, match=f"^{field} was"):
            loaded(data).load_state_dict(saved(data).state_dict())


def test_other_data_and_another_order_of_shards_are_named_first(dataset: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "other", [make_documents(9, seed=3)])
    turned = shutil.copytree(dataset, tmp_path / "turned")
    manifest = Manifest.read(turned)
    write_manifest(turned, {"train": manifest.split("train").shards[::-1]}, tokenizer=manifest.tokenizer)
    for other in ("other", "turned"):
        with pytest.raises(StateError, match=r"^data was .* load the state into .*stream of the same"):
            batches(tmp_path / other, seed=2).load_state_dict(batches(dataset, seed=1).state_dict())


def test_epochs_may_not_be_lowered_on_resume(dataset: Path) -> None:
    for saved, now in ((2, 1), (None, 2)):
        state = pipeline.ShardDataset(dataset, epochs=saved).pack(8).state_dict()
        with pytest.raises(StateError, match=rf"epochs was {saved} .* but is {now}"):
            pipeline.ShardDataset(dataset, epochs=now).pack(8).load_state_dict(state)


@pytest.mark.parametrize(("raised", "seq_len", "stride", "lanes"), [(3, 16, 16, 6), (None, 16, 7, 6), (3, 16, 16, 1)])
def test_epochs_may_be_raised_on_resume(
    dataset: Path, raised: int | None, seq_len: int, stride: int, lanes: int
) -> None:
    def make(epochs: int | None) -> pipeline.Stream:
        source = pipeline.ShardDataset(dataset, epochs=epochs)
        return source.shuffle(seed=5, lanes=lanes).pack(seq_len, stride=stride).batch(1)

    bounded = list(make(2))
    count = len(bounded)
    whole = list(islice(make(raised), count + 12))
    starts = [n for n, item in enumerate(bounded) if int(item["valid_tokens"]) < seq_len]
    # The sequence that begins last holds the fewest tokens.
    last = min(starts, key=lambda n: int(bounded[n]["valid_tokens"]))
    for stop in (0, last, last + 1, count):
        stream = make(2)
        list(islice(stream, stop))
        state = json.loads(json.dumps(stream.state_dict()))
        resumed = make(raised)
        resumed.load_state_dict(state)
        following = list(islice(resumed, len(whole) - stop))
        assert all(torch.equal(a["labels"], b["labels"]) for a, b in zip(whole[stop:], following, strict=True))


def test_every_live_iterator_counts_not_only_the_latest(dataset: Path) -> None:
    stream = batches(dataset)
    state = stream.state_dict()
    first = iter(stream)
    next(first)
    second = iter(stream)
    for name, move in (
        ("load_state_dict", lambda: stream.load_state_dict(state)),
        ("set_epoch", lambda: stream.set_epoch(1)),
        ("skip", lambda: stream.skip(1)),
    ):
        with pytest.raises(StateError, match=f"a live iterator of this stream would ignore {name}; end or drop it"):
            move()
    del first
    stream.load_state_dict(state)
    stream.set_epoch(1)
    del second


def test_an_iterator_made_before_a_move_never_goes_to_the_old_position(dataset: Path) -> None:
    stream = batches(dataset)
    list(islice(stream, 3))
    state = stream.state_dict()
    moves = {"load_state_dict": lambda: stream.load_state_dict(state), "set_epoch": lambda: stream.set_epoch(1)}
    for name, move in moves.items():
        early = iter(stream)
        move()
        position = stream.state_dict()["sequence_index"]
        with pytest.raises(StateError, match=rf"made before {name}; call iter\(\) again"):
            next(early)
        assert stream.state_dict()["sequence_index"] == position
        assert next(iter(stream))["input_ids"].shape == (2, 8)


def test_the_first_item_after_a_load_raises_its_error_when_it_is_asked_for(dataset: Path) -> None:
    stream = batches(dataset).map(lambda batch: batch["none"])
    stream.load_state_dict(stream.state_dict(batches=1))
    iterator = iter(stream)
    with pytest.raises(KeyError, match="none"):
        next(iterator)
    assert stream.state_dict()["sequence_index"] == 2


def test_a_state_is_detached_small_plain_and_loads_weights_only(dataset: Path, tmp_path: Path) -> None:
    stream = batches(dataset)
    iterator = iter(stream)
    next(iterator)
    state = stream.state_dict()
    before = json.dumps(state)
    list(islice(iterator, 50))
    assert json.dumps(state) == before
    assert len(json.dumps(stream.state_dict())) < 2048
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == state


@pytest.mark.parametrize("layout", [lambda s: s.pack(8), lambda s: s.documents(bucket=4), lambda s: s.sample(8)])
def test_a_state_grows_by_the_digits_of_its_number_alone(dataset: Path, layout: Change) -> None:
    stream = layout(pipeline.ShardDataset(dataset).shuffle()).batch(2)
    early = stream.state_dict()
    stream.set_epoch(10**9)
    late = stream.state_dict()
    assert {**late, "sequence_index": 0, "start_epoch": 0} == early
    assert len(json.dumps(late)) < 1024
    with pytest.raises(ConfigError, match=r"epoch must be .*at most \d+, got 10{30}"):
        stream.set_epoch(10**30)
    assert stream.state_dict() == late
    assert next(iter(stream))["input_ids"].shape[0] == 2  # at once, so late


def test_what_is_no_state_is_refused(dataset: Path) -> None:
    stream = batches(dataset)
    state = stream.state_dict()
    for wrong in (None, {}, {"version": 2}, {**state, "shape": "{}"}, {**state, "shape": None}):
        with pytest.raises(StateError):
            stream.load_state_dict(wrong)  # type: ignore[arg-type]
    for version in (1, True, 1.0, "1", None):
        with pytest.raises(StateError, match=rf"^state version {version!r}, but this release reads 2 and 3$"):
            stream.load_state_dict({**state, "version": version})
    with pytest.raises(StateError, match=r"a dict of 'step', 'data'; load .* checkpoint\['data'\]"):
        stream.load_state_dict({"step": 1, "data": state})
    with pytest.raises(StateError, match=r"0\.Twice .*rank 0 of None"):
        stream.load_state_dict({**state, "bound_to": "0.Twice"})
    for data in (True, [1], "x", None):
        shape = json.dumps({**json.loads(state["shape"]), "data": data})
        with pytest.raises(StateError, match=r"^data was .* when the state was saved, but is "):
            stream.load_state_dict({**state, "shape": shape})


def test_numbers_that_no_position_has_are_refused(dataset: Path) -> None:
    stream, sequential = batches(dataset, lanes=2), lanes(dataset)
    for value in (-1, 10**30, 1 << 54, True, 1.5, "0", float("nan"), [1], {}):
        words = rf"of a state must be an integer .*, got {re.escape(repr(value))}; "
        for field in ("sequence_index", "start_epoch", "skip", "workers"):
            with pytest.raises(StateError, match=f"^{field} {words}"):
                stream.load_state_dict({**stream.state_dict(), field: value})
        for number in range(4):
            state = sequential.state_dict()
            state["lanes"]["1"][number] = value
            with pytest.raises(StateError, match=f"^lane 1 {words}"):
                sequential.load_state_dict(state)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"2": [0, 0, 0, 0]}, r"lanes of a state must be '0' to '1' .* got '2'"),
        ({"-1": [0, 0, 0, 0]}, r"lanes of a state must be '0' to '1' .* got '-1'"),
        ({"1": [0, 0, 0]}, r"lane 1 of a state must be 4 numbers, got \[0, 0, 0\]"),
        ({"1": 7}, r"lane 1 of a state must be a list of numbers, got 7"),
        ({1: [0, 0, 0, 0]}, r"lane 1 of a state must be a list of numbers, got \[0, 0, 0, 0\]"),
    ],
)
def test_lanes_that_the_stream_has_not_are_refused(dataset: Path, changed: dict[str, Any], words: str) -> None:
    stream = lanes(dataset)
    state = stream.state_dict()
    state["lanes"] |= changed
    with pytest.raises(StateError, match=words):
        stream.load_state_dict(state)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("bound_to", 3, "bound_to of a state must be the name of a stage, got 3; it is damaged or was edited"),
        ("lanes", [1], r"lanes of a state must be numbers by lane, got \[1\]; "),
        ("lanes", None, "lanes are missing in the state of a sequential stream; it is damaged or was edited"),
        pytest.param("skip", 10**5000, "from 0 to 9007199254740992, got a number beyond all others; ", id="long"),
        ("start_epoch", -1, "from 0 to 9007199254740992 or None, got -1; "),
        ("workers", 2, "a loader of 2 workers saved this state, .* loaded with 1; load it with num_workers=2, or"),
        ("workers", 0, "from 1 to 9007199254740992, got 0; "),
        ("step", '{"taken": 2}', r"step of the state is \{'taken': 2\}: taken must be above 0 and below"),
        ("step", '{"taken": 1, "rank": 4}', "rank was 4 when it was saved, but is 0 in this stream; load it with the"),
        ("given", "[" * 900, r"given is '\[{197}\.{3}\[{198}'$"),
        ("version", ["x" * 99] * 9, r"state version .{400}\.\.\., but"),
    ],
)
def test_a_field_that_no_stream_saves_is_refused_by_name(dataset: Path, field: str, value: Any, words: str) -> None:
    stream = lanes(dataset)
    with pytest.raises(StateError, match=words):
        stream.load_state_dict({**stream.state_dict(), field: value})


@pytest.mark.parametrize(
    "weights",
    [
        [],
        [[5, {"a": "1/2", "b": "1/2"}]],
        [[0, {"a": "1/2", "b": "1/2"}], [10**30, {"a": "1/2", "b": "1/2"}]],
        [[0, {"a": "1"}]],
        [[0, {"a": "-1", "b": "2"}]],
        [[0, {"a": "x", "b": "1"}]],
        [[0, {"a": 3, "b": 1}]],
        [[True, {"a": "1/2", "b": "1/2"}]],
        [0],
        [[0, None]],
    ],
)
def test_weights_that_are_no_shares_of_the_sources_are_refused(weights: Any) -> None:
    sources = {name: pipeline.ShardDataset.from_tokens(range(64)) for name in "ab"}
    stream = pipeline.mix(sources, weights={"a": 1, "b": 1}).pack(4)
    with pytest.raises(StateError, match=r"^weights of a state must be .*(shares of a, b|from 0 to \d+), got "):
        stream.load_state_dict({**stream.state_dict(), "weights": json.dumps(weights)})


def test_counts_of_take_after_a_stage_fit_these_stages(dataset: Path) -> None:
    stream = pipeline.ShardDataset(dataset).pack(8).apply(iter).take(5)
    (key,) = (key for key in stream.state_dict() if key.startswith("rank_"))
    for given, words in (
        ({"1": 10**30}, "given of take 1 of a state must be an integer .*, got 10{30}"),
        ({"2": 1}, r"at places \['2'\] when the state was saved, but is at \['1'\]"),
    ):
        state = stream.state_dict()
        next(iter(state[key].values()))["given"] = json.dumps(given)
        with pytest.raises(StateError, match=words):
            stream.load_state_dict(state)


def test_stats_are_a_dict_of_json(dataset: Path) -> None:
    sources = {name: pipeline.ShardDataset(dataset) for name in ("a", "b")}
    stream = pipeline.mix(sources, {"a": 3, "b": 1}).pack(8).batch(2)
    list(islice(stream, 600))
    stats = stream.stats()
    assert json.loads(json.dumps(stats)) == stats
    assert (stats["items"], stats["sources"]["a"]["asked"]) == (600, 0.75)
