"""A state is small plain JSON of one stream, and states and stages that do not fit a stream are refused."""

from __future__ import annotations

import json
import re
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline
from pipeline.errors import ConfigError, StateError
from pipeline.shards.manifest import Manifest
from tests.shard_samples import make_documents, write_dataset, write_manifest


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("resume") / "data"
    write_dataset(directory, [make_documents(n, seed=n) for n in (30, 1, 25, 40, 8)])
    return directory


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
    ],
)
def test_a_state_of_another_shape_is_refused_with_field_and_both_values(dataset: Path, change: Any, field: str) -> None:
    saved = pipeline.ShardDataset(dataset).shuffle().pack(8).batch(2).state_dict()
    other = change(dataset).batch(2)
    with pytest.raises(StateError, match=rf"{field} was .* when the state was saved, but is .* in this stream"):
        other.load_state_dict(saved)


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"version": 1, "sequence_index": 0},
        {"version": 2, "sequence_index": -1, "shape": "{}"},
        {"version": 2},
    ],
)
def test_what_is_no_state_is_refused(dataset: Path, state: Any) -> None:
    with pytest.raises(StateError):
        pipeline.ShardDataset(dataset).pack(8).load_state_dict(state)


def test_every_live_iterator_counts_not_only_the_latest(dataset: Path) -> None:
    stream = pipeline.ShardDataset(dataset).shuffle().pack(8).batch(2)
    state = stream.state_dict()
    first = iter(stream)
    next(first)
    second = iter(stream)
    for move in (lambda: stream.load_state_dict(state), lambda: stream.set_epoch(1)):
        with pytest.raises(StateError, match="live"):
            move()
    del first
    stream.load_state_dict(state)
    stream.set_epoch(1)
    del second


def test_an_iterator_made_before_the_place_was_set_never_goes_to_the_old_one(dataset: Path) -> None:
    stream = pipeline.ShardDataset(dataset).shuffle().pack(8).batch(2)
    list(islice(stream, 3))
    state = stream.state_dict()
    moves = {"load_state_dict": lambda: stream.load_state_dict(state), "set_epoch": lambda: stream.set_epoch(1)}
    for name, move in moves.items():
        early = iter(stream)
        move()
        place = stream.state_dict()["sequence_index"]
        with pytest.raises(StateError, match=rf"made before {name}; call iter\(\) again"):
            next(early)
        assert stream.state_dict()["sequence_index"] == place
        assert next(iter(stream))["input_ids"].shape == (2, 8)


def test_a_state_is_detached_small_plain_and_loads_weights_only(dataset: Path, tmp_path: Path) -> None:
    stream = pipeline.ShardDataset(dataset).shuffle().pack(8).batch(2)
    iterator = iter(stream)
    next(iterator)
    state = stream.state_dict()
    before = json.dumps(state)
    for _ in range(50):
        next(iterator)
    assert json.dumps(state) == before
    assert len(json.dumps(stream.state_dict())) < 2048
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == state


@pytest.mark.parametrize(
    "layout",
    [lambda s: s.pack(8), lambda s: s.documents(bucket=4), lambda s: s.sample(8), lambda s: s.pack(8, stride=3)],
)
def test_a_state_grows_by_the_digits_of_its_number_alone(dataset: Path, layout: Any) -> None:
    stream = layout(pipeline.ShardDataset(dataset).shuffle()).batch(2)
    early = stream.state_dict()
    stream.set_epoch(10**9)
    late = stream.state_dict()
    assert {**late, "sequence_index": 0, "start_epoch": None} == early
    assert len(json.dumps(late)) < 1024


def test_the_same_shards_in_another_order_are_other_data(dataset: Path, tmp_path: Path) -> None:
    other = shutil.copytree(dataset, tmp_path / "other")
    manifest = Manifest.read(other)
    write_manifest(other, {"train": manifest.split("train").shards[::-1]}, tokenizer=manifest.tokenizer)
    saved = pipeline.ShardDataset(dataset).shuffle().pack(8).state_dict()
    with pytest.raises(StateError, match="data was"):
        pipeline.ShardDataset(other).shuffle().pack(8).load_state_dict(saved)


@pytest.mark.parametrize(
    "make",
    [
        lambda s: s.pack(0),
        lambda s: s.pack(8, stride=9),
        lambda s: s.pack(8).pack(8),
        lambda s: s.pack(8).shuffle(),
        lambda s: s.pack(8).batch(0),
        lambda s: s.pack(8).batch(2).batch(2),
        lambda s: s.pack(8).batch(2, last="keep"),
        lambda s: s.pack(8).shard(2, 2),
        lambda s: s.pack(8, labels="previous"),
        lambda s: s.shuffle(seed=True),
    ],
)
def test_a_stage_that_cannot_work_is_refused_when_it_is_made(dataset: Path, make: Any) -> None:
    with pytest.raises(ConfigError):
        make(pipeline.ShardDataset(dataset))


def test_a_state_that_is_bound_to_a_stage_but_has_no_rank_is_refused(dataset: Path) -> None:
    stream = pipeline.ShardDataset(dataset).pack(8)
    state = stream.state_dict()
    for cut in (
        {"bound_to": "0.Twice"},
        {"bound_to": "0.Twice", "world_size": 1},
        {"bound_to": "0.Twice", "world_size": "1"},
    ):
        with pytest.raises(StateError, match=r"0\.Twice binds this state to a rank, but it lacks the rank"):
            stream.load_state_dict({**state, **cut})


ABSURD = [-1, 10**30, 1 << 54, True, 1.5, "0", float("nan"), [1], {}]


@pytest.mark.parametrize("value", ABSURD)
@pytest.mark.parametrize("field", ["sequence_index", "start_epoch", "skip", "workers"])
def test_a_number_that_no_position_holds_is_refused_when_it_is_loaded_naming_field_and_value(
    dataset: Path, field: str, value: Any
) -> None:
    stream = pipeline.ShardDataset(dataset).shuffle(lanes=2).pack(8).batch(2)
    with pytest.raises(StateError, match=rf"^{field} of a state must be an integer .*, got {re.escape(repr(value))}; "):
        stream.load_state_dict({**stream.state_dict(), field: value})


@pytest.mark.parametrize("value", ABSURD)
@pytest.mark.parametrize("place", range(4))
def test_a_cursor_that_no_lane_has_is_refused_naming_lane_and_value(dataset: Path, place: int, value: Any) -> None:
    stream = pipeline.ShardDataset(dataset).filter(len, name="all").shuffle(lanes=2).pack(8).batch(2)
    state = stream.state_dict()
    state["lanes"]["1"][place] = value
    with pytest.raises(StateError, match=rf"^lane 1 of a state must be an integer .*, got {re.escape(repr(value))}; "):
        stream.load_state_dict(state)


@pytest.mark.parametrize(
    ("lanes", "words"),
    [
        ({"2": [0, 0, 0, 0]}, r"lanes of a state are '0' to '1' .* got '2'"),
        ({"-1": [0, 0, 0, 0]}, r"lanes of a state are '0' to '1' .* got '-1'"),
        ({"1": [0, 0, 0]}, r"lane 1 of a state must be 4 numbers, got \[0, 0, 0\]"),
        ({"1": 7}, r"lane 1 of a state must be 4 numbers, got 7"),
    ],
)
def test_lanes_that_the_stream_has_not_are_refused(dataset: Path, lanes: dict[str, Any], words: str) -> None:
    stream = pipeline.ShardDataset(dataset).filter(len, name="all").shuffle(lanes=2).pack(8).batch(2)
    state = stream.state_dict()
    state["lanes"] |= lanes
    with pytest.raises(StateError, match=words):
        stream.load_state_dict(state)


@pytest.mark.parametrize(
    "weights",
    [
        [],
        [[5, {"a": "1/2", "b": "1/2"}]],
        [[0, {"a": "1/2", "b": "1/2"}], [10**30, {"a": "1/2", "b": "1/2"}]],
        [[0, {"a": "1"}]],
        [[0, {"a": "-1", "b": "2"}]],
        [[0, {"a": "x", "b": "1"}]],
        [[0, {"a": "nan", "b": "1"}]],
        [[0, {"a": 3, "b": 1}]],
        [[True, {"a": "1/2", "b": "1/2"}]],
        [0],
        [[0, None]],
    ],
)
def test_weights_that_are_no_shares_of_the_sources_are_refused(weights: Any) -> None:
    sources = {name: pipeline.ShardDataset.from_tokens(range(64)) for name in "ab"}
    stream = pipeline.mix(sources, weights={"a": 1, "b": 1}).pack(4)
    with pytest.raises(StateError, match=r"^weights of a state must be"):
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


@pytest.mark.parametrize("version", [True, 1.0, "1", None])
def test_a_version_is_an_integer(dataset: Path, version: Any) -> None:
    stream = pipeline.ShardDataset(dataset).pack(8)
    with pytest.raises(StateError, match=r"^state version"):
        stream.load_state_dict({**stream.state_dict(), "version": version})


def test_an_epoch_beyond_what_a_state_holds_is_refused_when_it_is_set(dataset: Path) -> None:
    stream = pipeline.ShardDataset(dataset).shuffle().pack(8)
    with pytest.raises(ConfigError, match=r"epoch must be at most \d+, got 10{30}"):
        stream.set_epoch(10**30)
    assert stream.state_dict()["sequence_index"] == 0


def test_other_data_is_named_before_all_that_follows_from_it(dataset: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "other", [make_documents(9, seed=3)])
    saved = pipeline.ShardDataset(dataset).shuffle(seed=1).pack(8).state_dict()
    with pytest.raises(StateError, match=r"^data was"):
        pipeline.ShardDataset(tmp_path / "other").shuffle(seed=2).pack(9).load_state_dict(saved)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.filter(len, name="long").shuffle().pack(8), r"filters was \[\] .* but is \['long'\]"),
        (lambda s: s.map_documents(list, name="m").shuffle().pack(8), r"document_maps was \[\] .* but is \['m'\]"),
        (lambda s: s.shuffle().pack(8, best_fit=True), "best_fit was False .* but is True"),
    ],
)
def test_what_made_a_stream_another_one_is_named_before_its_window(dataset: Path, change: Any, words: str) -> None:
    plain, changed = pipeline.ShardDataset(dataset).shuffle().pack(8), change(pipeline.ShardDataset(dataset))
    with pytest.raises(StateError, match=words):
        changed.load_state_dict(plain.state_dict())
    field = words.partition(" ")[0]
    with pytest.raises(StateError, match=rf"^{field} was .* when the state was saved"):
        plain.load_state_dict(changed.state_dict())


def test_epochs_may_not_be_lowered_on_resume(dataset: Path) -> None:
    for saved, now in ((2, 1), (None, 2)):
        state = pipeline.ShardDataset(dataset, epochs=saved).pack(8).state_dict()
        with pytest.raises(StateError, match=rf"epochs was {saved} when the state was saved, but is {now}"):
            pipeline.ShardDataset(dataset, epochs=now).pack(8).load_state_dict(state)
