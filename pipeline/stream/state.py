"""A place as users save it: plain JSON of some hundred bytes, and what refuses it under another shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import StateError
from .cursors import Cursor, beginning, missing_lanes
from .loop import remembering
from .mixing import MixedData
from .order.mixture import weights_to_json
from .place import Mark
from .plan import Plan

STATE_VERSION = 1


def to_state(mark: Mark, plan: Plan) -> dict[str, Any]:
    """Return a mark as JSON, with the shape that it holds under; ``plan`` states its rank and world size."""
    state: dict[str, Any] = {"version": STATE_VERSION, "i": mark.i, "shape": plan.shape()}
    if mark.stages:
        state["stages"] = {name: dict(fields) for name, fields in mark.stages.items()}
    if mark.bound_to is not None:
        rank, world_size = plan.topology()
        state |= {"bound_to": mark.bound_to, "rank": rank, "world_size": world_size}
    if mark.skip:
        state["skip"] = mark.skip
    if plan.by_cursors:
        state["lanes"] = mark.lanes or beginning(0, plan.order_shape()[1])
    if isinstance(plan.data, MixedData):
        state["weights"] = mark.weights or weights_to_json(plan.weights)
    return state


def from_state(state: Any, plan: Plan, worker: bool = False) -> Mark:
    """Return the mark that a state holds; ``plan`` states its rank and world size.

    Raises ``StateError`` naming the field and both values where the state was made under another version or shape, with
    other stages that remember, or belongs to another rank; and naming the lanes that it lacks for ``plan``'s rank, but in
    a ``worker``, which needs some of them.
    """
    if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
        found = state.get("version") if isinstance(state, dict) else type(state).__name__
        raise StateError(f"state version {found!r}, but this release reads {STATE_VERSION}")
    if not isinstance(state.get("i"), int) or state["i"] < 0 or not isinstance(state.get("shape"), dict):
        raise StateError(f"this is no state of a stream: i is {state.get('i')!r}, shape {state.get('shape')!r}")
    ours, saved = plan.shape(), state["shape"]
    for field in {**ours, **saved}:
        if saved.get(field) != ours.get(field):
            raise StateError(
                f"{field} was {saved.get(field)!r} when the state was saved, but is {ours.get(field)!r} in this stream"
            )
    stages, bound_to = state.get("stages", {}), state.get("bound_to")
    names = sorted(remembering(plan))
    if sorted(stages) != names and (stages or state["i"] > 0):
        raise StateError(
            f"stages that remember were {sorted(stages)} when the state was saved, but are {names} in this stream"
        )
    if bound_to is not None:
        theirs, rank_and_size = (state["rank"], state["world_size"]), plan.topology()
        if theirs != rank_and_size:
            raise StateError(
                f"stage {bound_to} remembers or drops items, so this state belongs to rank {theirs[0]} of {theirs[1]}, "
                f"but this is rank {rank_and_size[0]} of {rank_and_size[1]}"
            )
    lanes = _lanes(state, plan, worker) if plan.by_cursors else None
    return Mark(state["i"], state.get("skip", 0), stages, bound_to, state.get("weights"), lanes)


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the one state that any number of ranks can load, from those that all ranks saved after the same batch.

    The states of a cursor stream (``TextDataset``, ``filter``, ``best_fit``) each hold their own rank's lanes; any other
    stream's are all the same. Raises ``StateError`` for states of different places or shapes, where a lane is missing,
    and where a stage makes the state one rank's own.

    >>> merge_states([{"version": 1, "i": 4, "shape": {}}, {"version": 1, "i": 4, "shape": {}}])["i"]
    4
    """
    if not states:
        raise StateError("merge_states needs the states of all ranks, got none")
    merged = dict(states[0])
    merged["lanes"] = lanes = dict(merged.get("lanes", {}))
    for number, state in enumerate(states):
        if "bound_to" in state:
            raise StateError(f"stage {state['bound_to']} makes state {number} its rank's own; it cannot be merged")
        for field in {**merged, **state}:
            if field != "lanes" and state.get(field) != merged.get(field):
                raise StateError(
                    f"{field} is {merged.get(field)!r} in state 0, but {state.get(field)!r} in state {number}: merge "
                    "states that all ranks of one run saved after the same batch"
                )
        for lane, cursor in state.get("lanes", {}).items():
            if lanes.setdefault(lane, cursor) != cursor:
                raise StateError(f"lane {lane} stands at {lanes[lane]} in one state, but at {cursor} in state {number}")
    if not lanes:
        del merged["lanes"]
    elif missing := [lane for lane in range(merged["shape"]["lanes"]) if str(lane) not in lanes]:
        raise missing_lanes(missing, merged["shape"]["lanes"])
    return merged


def _lanes(state: dict[str, Any], plan: Plan, worker: bool) -> dict[str, Cursor]:
    lanes, count = state.get("lanes"), plan.order_shape()[1]
    if not isinstance(lanes, dict) or not all(_is_cursor(cursor) for cursor in lanes.values()):
        raise StateError(f"this is no state of a cursor stream: lanes is {str(lanes)[:100]}")
    rank, world_size = plan.topology()
    missing = [lane for lane in range(rank, count, world_size) if str(lane) not in lanes]
    if missing and not worker:
        raise missing_lanes(missing, count)
    return lanes


def _is_cursor(cursor: Any) -> bool:
    return isinstance(cursor, list) and len(cursor) == 5 and all(isinstance(n, int) and n >= 0 for n in cursor)
