"""A place as users save it: plain JSON of some hundred bytes, and what refuses it under another shape."""

from __future__ import annotations

from typing import Any

from ..errors import StateError
from .loop import remembering
from .mixing import MixedData, weights_to_json
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
    if isinstance(plan.data, MixedData):
        state["weights"] = mark.weights or weights_to_json(plan.weights)
    return state


def from_state(state: Any, plan: Plan) -> Mark:
    """Return the mark that a state holds; ``plan`` states its rank and world size.

    Raises ``StateError`` naming the field and both values where the state was made under another version or shape, with
    other stages that remember, or belongs to another rank.
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
    return Mark(state["i"], state.get("skip", 0), stages, bound_to, state.get("weights"))
