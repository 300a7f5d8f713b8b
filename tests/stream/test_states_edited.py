"""Whatever is done to a state, it is refused by a StateError, or holds what the edit says."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.errors import StateError
from tests.stream.streams import KINDS, batched, odd

LEAVES = ("shape", "given", "step", "weights")  # JSON inside the state


def inside_a_step(small: Path, texts: Path) -> pipeline.Stream:
    return pipeline.ShardDataset(small, epochs=2).shuffle(seed=1).pack(16).map(dict).batch(3).apply(odd).take(4)


MAKE: dict[str, Callable[[Path, Path], pipeline.Stream]] = {
    "shards": lambda small, texts: batched(small, 2),
    "take after a stage": inside_a_step,
    **{name: KINDS[name] for name in ("mix, take", "text", "filter")},
}


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


JUNK = st.one_of(
    st.sampled_from([None, True, False, -1, 0, 1, 2**31, 2**53, 2**63, 2**64, 10**5000, 0.5, math.inf, math.nan]),
    st.sampled_from(["", "0", "1", "-1", "[" * 100_000, "Infinity", "1e999999999", "9" * 5000, "\ud800", "²"]),
    st.sampled_from([[], {}, [[]], {"": 1}, {1: 2}]),
    st.builds(deep, st.sampled_from([10, 900, 100_000])),
    st.integers(-(2**70), 2**70),
    st.text(max_size=4),
)


def opened(state: dict[str, Any]) -> Any:
    """A state whose leaves of JSON are values."""

    def value_of(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return opened(value)
        return json.loads(value) if key in LEAVES and isinstance(value, str) else value

    return {key: value_of(key, value) for key, value in state.items()}


def closed(state: dict[str, Any]) -> Any:
    found = {}
    for key, value in state.items():
        if key in LEAVES and isinstance(value, dict | list):
            try:
                value = json.dumps(value)
            except (RecursionError, ValueError):
                value = "[" * 100_000
        elif isinstance(value, dict):
            value = closed(value)
        found[key] = value
    return found


def places(value: Any, levels: int = 6) -> Iterator[tuple[Any, Any]]:
    """Every place of a value: what holds it, and its key there."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        if levels:
            yield from places(value[key], levels - 1)


@st.composite
def edits(draw: st.DrawFn) -> Callable[[dict[str, Any]], Any]:
    kind = draw(st.sampled_from(["replace", "replace", "cut", "add", "rename"]))
    where, junk, again = draw(st.integers(0, 10_000)), draw(JUNK), draw(st.booleans())
    other = draw(st.integers(0, 10_000))

    def edit(state: dict[str, Any]) -> Any:
        state = opened(json.loads(json.dumps(state)))
        for place in (where, other)[: 1 + again]:
            found = list(places(state))
            holder, key = found[place % len(found)]
            if kind == "cut":
                del holder[key]
            elif kind == "add" and isinstance(holder, dict):
                holder[str(key) + "0"] = copy.copy(junk)  # a place inside it may be the next that is edited
            elif kind == "rename" and isinstance(holder, dict):
                holder[str(key) + "x"] = holder.pop(key)
            else:
                holder[key] = copy.copy(junk)
                break
            if not state:
                break
        return closed(state)

    return edit


@pytest.fixture(scope="module")
def states(small: Path, texts: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for name, make in MAKE.items():
        stream = make(small, texts)
        iterator = iter(stream)
        next(iterator)
        found[name] = stream.state_dict()
    return found


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(name=st.sampled_from(list(MAKE)), edit=edits())
def test_an_edited_state_is_refused_or_holds_what_the_edit_says(
    small: Path, texts: Path, states: dict[str, dict[str, Any]], name: str, edit: Callable[[dict[str, Any]], Any]
) -> None:
    edited = edit(states[name])
    stream = MAKE[name](small, texts)
    try:
        stream.load_state_dict(edited)
    except StateError:
        return
    after = opened(stream.state_dict())
    assert holds(after, opened(edited)), (after, edited)


def holds(after: Any, edited: Any) -> bool:
    """Say whether a state holds what an edited one says; keys that no state has say nothing."""
    if not isinstance(after, dict):
        return bool(after == edited)
    if len(after) == len(edited) == 1 and after.keys() != edited.keys():  # the name of a stage binds nobody
        return holds(*(next(iter(state.values())) for state in (after, edited)))
    return all(
        key in ("shape", "start_epoch") or holds(value, edited.get(key))
        for key, value in after.items()
        if value is not None
    )


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(name=st.sampled_from(list(MAKE)), edit=edits(), number=st.integers(1, 2))
def test_edited_states_are_merged_or_refused(
    states: dict[str, dict[str, Any]], name: str, edit: Callable[[dict[str, Any]], Any], number: int
) -> None:
    edited = edit(states[name])
    for merged in ([edited] * number, [states[name], edited], [edited, states[name]]):
        try:
            pipeline.merge_states(merged)
        except StateError:
            continue


@pytest.mark.parametrize("field", ["sequence_index", "start_epoch", "given", "step", "weights"])
def test_a_state_of_a_mix_without_one_of_its_fields_is_refused(
    small: Path, texts: Path, states: dict[str, dict[str, Any]], field: str
) -> None:
    state = {**states["mix, take"]}
    del state[field]
    with pytest.raises(
        StateError, match=field if field != "sequence_index" else "it holds 'version', 'shape', .*, but no position"
    ):
        MAKE["mix, take"](small, texts).load_state_dict(state)


@pytest.mark.parametrize("leaf", ["[" * 100_000, "3", "{", 3, None])
@pytest.mark.parametrize("field", ["shape", "given", "weights"])
def test_a_state_whose_json_is_broken_or_of_another_kind_is_refused(
    small: Path, texts: Path, states: dict[str, dict[str, Any]], field: str, leaf: Any
) -> None:
    stream = MAKE["mix, take"](small, texts)
    with pytest.raises(StateError, match=f"no state of a stream: {field} is"):
        stream.load_state_dict(states["mix, take"] | {field: leaf})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"lanes": 2**63}, f"shape.lanes of a state must be an integer from 1 to {2**31 - 1}, got {2**63};"),
        ({"epochs": 0}, f"shape.epochs of a state must be an integer from 1 to {2**31 - 1}, got 0;"),
        ({"ranks": 2**31}, f"shape.ranks of a state must be an integer from 1 to {2**31 - 1}, got {2**31};"),
        ({"global_batch": 2**53 + 1}, f"shape.global_batch of a state must be an integer from 1 to {2**53}, got"),
        ({"lanes": "4"}, "shape.lanes of a state must be an integer .* got '4'"),
        ({"lanes": None}, "shape.lanes is missing"),
        ({"lanes": 2**31 - 1}, r"lacks lanes"),
    ],
)
def test_states_of_absurd_lanes_are_not_merged(
    states: dict[str, dict[str, Any]], changed: dict[str, Any], words: str
) -> None:
    state = states["filter"]
    shape = {key: value for key, value in (json.loads(state["shape"]) | changed).items() if value is not None}
    with pytest.raises(StateError, match=words):
        pipeline.merge_states([state | {"shape": json.dumps(shape)}] * 2)
