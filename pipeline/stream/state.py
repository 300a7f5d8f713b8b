"""A position as users save it: plain JSON of some hundred bytes, and what refuses it under another shape."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import StateError
from .cursors import Cursor, beginning, missing_lanes
from .epochs import tokens_lost
from .mixing import MixedData
from .order.mixture import weights_to_json
from .plan import Plan
from .position import Position
from .steps import remembering
from .worker_context import WorkerContext

STATE_VERSION = 1
_CURES = {"filters": "; filters that keep the same documents are one where both have one name: .filter(..., name=...)"}

log = logging.getLogger("pipeline")


def to_state(position: Position, plan: Plan, context: WorkerContext) -> dict[str, Any]:
    """Return a position as JSON that shares nothing with it, with the shape that it holds under."""
    state: dict[str, Any] = {
        "version": STATE_VERSION,
        "sequence_index": position.sequence_index,
        "start_epoch": position.start_epoch,
        "shape": plan.shape(),
    }
    if position.stages:
        state["stages"] = copy.deepcopy(position.stages)
    if position.bound_to is not None:
        state |= {"bound_to": position.bound_to, "rank": context.rank, "world_size": context.world_size}
    if position.taken:
        state["step"] = _step(position.taken, plan, context)
    if position.skip:
        state["skip"] = position.skip
    if context.workers > 1:
        state["workers"] = context.workers
    if plan.by_cursors:
        lanes = position.lanes or beginning(0, plan.order_shape()[1])
        state["lanes"] = {lane: list(cursor) for lane, cursor in lanes.items()}
    if isinstance(plan.data, MixedData):
        state["weights"] = copy.deepcopy(position.weights) or weights_to_json(plan.weights)
    return state


def from_state(state: Any, plan: Plan, context: WorkerContext) -> Position:
    """Return the position that a state holds, for one rank or one worker of a loader.

    Raises ``StateError`` naming the field and both values where the state was made under another version or shape, with
    other stages that remember, or belongs to another rank; and naming the lanes that it lacks for the rank, but in a
    worker, which needs some of them.
    """
    if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
        found = state.get("version") if isinstance(state, dict) else type(state).__name__
        raise StateError(f"state version {found!r}, but this release reads {STATE_VERSION}")
    index = state.get("sequence_index")
    if not isinstance(index, int) or index < 0 or not isinstance(state.get("shape"), dict):
        raise StateError(f"this is no state of a stream: sequence_index is {index!r}, shape {state.get('shape')!r}")
    _refuse_other_shape(state["shape"], plan)
    workers = state.get("workers", 1)
    if workers != context.workers:
        raise StateError(
            f"a loader of {workers} workers saved this state, and its position lies in all of them, but it is loaded with "
            f"{context.workers}; load it with num_workers={workers}, or save stream.state_dict(batches=n) instead, which "
            "any number of workers loads"
        )
    start_epoch = state.get("start_epoch")
    if start_epoch is not None and (not isinstance(start_epoch, int) or start_epoch < 0):
        raise StateError(f"start_epoch must be an epoch from 0 on, or None, got {start_epoch!r}")
    stages, bound_to = state.get("stages", {}), state.get("bound_to")
    names = sorted(remembering(plan))
    if sorted(stages) != names and (stages or index > 0):
        raise StateError(
            f"stages that remember were {sorted(stages)} when the state was saved, but are {names} in this stream"
        )
    if bound_to is not None:
        theirs, rank_and_size = (state.get("rank"), state.get("world_size")), (context.rank, context.world_size)
        if not all(isinstance(number, int) for number in theirs):
            raise StateError(
                f"stage {bound_to} binds this state to a rank, but its rank is {theirs[0]!r} and its world_size "
                f"{theirs[1]!r}: it is cut or was edited; load it as it was saved"
            )
        if theirs != rank_and_size:
            raise StateError(
                f"stage {bound_to} remembers or drops items, so this state belongs to rank {theirs[0]} of {theirs[1]}, "
                f"but this is rank {rank_and_size[0]} of {rank_and_size[1]}"
            )
    lanes = _lanes(state, plan, context) if plan.by_cursors else None
    taken = _taken(state, plan, context)
    position = Position(index, state.get("skip", 0), stages, bound_to, state.get("weights"), lanes, start_epoch, taken)
    _warn_of_lost_tokens(state["shape"].get("epochs"), plan, position)
    return position


def _refuse_other_shape(saved: dict[str, Any], plan: Plan) -> None:
    """Raise ``StateError`` for the first field that differs, the data before all; ``epochs`` may be raised."""
    ours = plan.shape()
    for field in {"data": None, **ours, **saved}:
        theirs, now = saved.get(field), ours.get(field)
        if field == "epochs" and theirs is not None and (now is None or now > theirs):
            continue
        if theirs != now:
            raise StateError(
                f"{field} was {theirs!r} when the state was saved, but is {now!r} in this stream{_CURES.get(field, '')}"
            )


def _warn_of_lost_tokens(epochs: int | None, plan: Plan, position: Position) -> None:
    """Warn where ``epochs`` was raised after the sequence that ended the stream was handed out."""
    if epochs is None or epochs == plan.epochs or not (lost := tokens_lost(plan, epochs, position)):
        return
    log.warning(
        "epochs was raised from %d to %s after the last sequence, cut at the last token, was handed out: the %d tokens "
        "behind the cut are lost",
        epochs, plan.epochs, lost,
    )  # fmt: skip


def _step(taken: int, plan: Plan, context: WorkerContext) -> dict[str, int]:
    """Return a position inside a step: its rows that the rank has taken, and what says which rows these are."""
    return {
        "taken": taken,
        "rank": context.rank,
        "world_size": context.world_size,
        "batch_size": plan.batch_size or 1,
    }


def _taken(state: dict[str, Any], plan: Plan, context: WorkerContext) -> int:
    """Return how many rows of its step a state was saved behind; raises where this rank takes others of the step."""
    saved = state.get("step")
    if saved is None:
        return 0
    taken = saved.get("taken") if isinstance(saved, dict) else None
    if not isinstance(taken, int) or not 0 < taken < (plan.batch_size or 1):
        raise StateError(f"step of the state is {saved!r}: taken must be above 0 and below the batch size")
    ours = _step(taken, plan, context)
    for field in ours:
        if saved.get(field) != ours[field]:
            raise StateError(
                f"the state was saved inside a step, which goes on under the same ranks and batches only: {field} was "
                f"{saved.get(field)!r} when it was saved, but is {ours[field]!r} in this stream; load it there and save "
                "at the end of a step"
            )
    return taken


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the one state that any number of ranks can load, from those that all ranks saved after the same batch.

    The states of a cursor stream (``TextDataset``, ``filter``, ``best_fit``) each hold their own rank's lanes; any other
    stream's are all the same. Raises ``StateError`` for states of different places or shapes, where a lane is missing,
    and where a stage makes the state one rank's own.

    >>> merge_states([{"version": 1, "sequence_index": 4, "shape": {}}] * 2)["sequence_index"]
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


def _lanes(state: dict[str, Any], plan: Plan, context: WorkerContext) -> dict[str, Cursor]:
    lanes, count = state.get("lanes"), plan.order_shape()[1]
    if not isinstance(lanes, dict) or not all(_is_cursor(cursor) for cursor in lanes.values()):
        raise StateError(f"this is no state of a cursor stream: lanes is {str(lanes)[:100]}")
    missing = [lane for lane in range(context.rank, count, context.world_size) if str(lane) not in lanes]
    if missing and context.workers == 1:
        raise missing_lanes(missing, count)
    return lanes


def _is_cursor(cursor: Any) -> bool:
    return isinstance(cursor, list) and len(cursor) == 5 and all(isinstance(n, int) and n >= 0 for n in cursor)
