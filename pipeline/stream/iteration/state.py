"""A position as users save it: plain JSON of some hundred bytes, refused where it belongs to another stream.

    version, shape          what the state holds under
    sequence_index ...      the position: also start_epoch, given and step, of a mix weights, of a sequential stream lanes
    rank_R: {STAGE: {...}}  in place of it where a stage of the user may bind the position to one rank

``torch.distributed.checkpoint`` takes a nested dict apart into one entry for each key, loads only the keys that a fresh
stream's state has, and keeps equal keys of several ranks once. So every state of one stream has the same keys, what
varies in length (``shape``, ``given``, ``weights``) is one string of JSON, a lane is a key of its own, so that any rank
finds it, and what belongs to one rank has the rank in its key.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import StateError
from ..config import StreamConfig
from ..order.mixture import exact_weights, weights_from_json, weights_to_json
from ..position import MAX_NUMBER, Position, WorkerContext
from ..sequential.cursor import NUMBERS, STATE_OF_SOURCE, Cursor, beginning, missing_lanes
from .passes import tokens_lost
from .stages import names_of_applied, numbers_of_takes

STATE_VERSION = 2
_CURES = {
    "data": "; the shards or texts are other ones: load the state into a stream of those that it was saved with",
    "filters": "; filters that keep the same documents are one where both have one name: .filter(..., name=...)",
    "weights": (
        "; write the weights that the run began with, and change them by set_weights() after load_state_dict(): a state keeps "
        "what set_weights() made"
    ),
    "ranks": "; a live source is dealt to a number of ranks, and goes on with as many",
    "global_batch": "; a sequential stream goes on with any number of ranks whose batches have as many rows together",
}

# What windows and lanes follow from, and what each is in a shape that does not state it.
_CAUSES: dict[str, Any] = {"data": None, "filters": [], "document_maps": [], "best_fit": False}
_EDIT_CURE = "it is damaged or was edited: load it as it was saved"

log = logging.getLogger("pipeline")


def to_state(position: Position, config: StreamConfig, context: WorkerContext) -> dict[str, Any]:
    """Return a position as JSON that shares nothing with it, with the shape that it holds under."""
    part: dict[str, Any] = {"sequence_index": position.sequence_index, "start_epoch": position.start_epoch}
    part["given"] = _to_leaf({str(n): position.given.get(str(n), 0) for n in numbers_of_takes(config)})
    part["step"] = _to_leaf(_step(position.taken, config, context)) if position.taken else None
    if position.skip:
        part["skip"] = position.skip
    if context.workers > 1:
        part["workers"] = context.workers
    if config.sequential:
        count = config.make_lanes(context.world_size).count
        lanes = position.lanes or beginning(position.start_epoch or 0, count, len(config.data.live))
        part["lanes"] = {lane: list(cursor) for lane, cursor in lanes.items()}
    if config.mixed:
        part["weights"] = _to_leaf(position.weights or weights_to_json(config.weights))
    state: dict[str, Any] = {"version": STATE_VERSION, "shape": _to_leaf(config.shape(context.world_size))}
    names = names_of_applied(config)
    if not names:
        return state | part
    part |= {"bound_to": position.bound_to, "world_size": context.world_size}
    return {**state, f"rank_{context.rank}": {"+".join(names): part}}


def from_state(state: object, config: StreamConfig, context: WorkerContext) -> Position:
    """Return the position that a state holds, for one rank or one worker of a loader.

    Raises ``StateError`` naming the field and both values where the state was made under another version or shape, with
    other stages, or belongs to another rank; and naming the lanes that the rank needs and the
    state lacks, except in a worker, which needs only some of them.
    """
    if not isinstance(state, dict) or "version" not in state:
        description = (
            f"a dict of {', '.join(map(repr, state))}" if isinstance(state, dict) else f"of type {type(state).__name__}"
        )
        raise StateError(
            f"this is no state of a stream, but {description}; load what stream.state_dict() gave, as checkpoint['data']"
        )
    version = state["version"]
    if type(version) is not int or version != STATE_VERSION:
        raise StateError(f"state version {version!r}, but this release reads {STATE_VERSION}")
    _refuse_other_shape(shape_of(state), config, context)
    rank, part = part_of(state, context.rank)
    index, bound_to = _number("sequence_index", part.get("sequence_index")), part.get("bound_to")
    skip = _number("skip", part.get("skip", 0))
    workers = _number("workers", part.get("workers", 1), least=1)
    if workers != context.workers:
        raise StateError(
            f"a loader of {workers} workers saved this state, and its position lies in all of them, but it is loaded with "
            f"{context.workers}; load it with num_workers={workers}, or save stream.state_dict(batches=n) instead, which "
            "any number of workers loads"
        )
    start_epoch = part.get("start_epoch")
    if start_epoch is not None:
        _number("start_epoch", start_epoch, " or None")
    given = _given(part, config, index)
    if bound_to is not None and (rank, part.get("world_size")) != (context.rank, context.world_size):
        raise StateError(
            f"stage {bound_to} drops items, so this state belongs to rank {rank} of "
            f"{part.get('world_size')}, but this is rank {context.rank} of {context.world_size}"
        )
    lanes = _lanes(part, config, context) if config.sequential else None
    weights = _weights(part, config) if config.mixed and "weights" in part else None
    taken = _taken(part, config, context)
    position = Position(index, skip, taken, start_epoch, given, bound_to, weights, lanes)
    _warn_of_lost_tokens(shape_of(state).get("epochs"), config, position)
    return position


def shape_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a state says that the order depends on."""
    shape: dict[str, Any] = _from_leaf("shape", state.get("shape"), dict)
    return shape


def part_of(state: Mapping[str, Any], rank: int) -> tuple[int, Mapping[str, Any]]:
    """Return the position's part of a state, and the rank that it belongs to.

    A state that several ranks saved together, as DCP does, holds a part for each; one that a single rank saved holds that
    rank's part.
    """
    if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
        raise StateError(f"a state must be a dict, as stream.state_dict() returns it, got {state!r}")
    if "sequence_index" in state:
        return rank, state
    saved = {int(key[5:]): value for key, value in state.items() if key.startswith("rank_") and key[5:].isdecimal()}
    rank = rank if rank in saved else min(saved, default=rank)
    part = next(iter(saved[rank].values()), None) if isinstance(saved.get(rank), dict) else None
    if not isinstance(part, dict):
        raise StateError(f"this is no state of a stream: it holds {', '.join(map(repr, state))}, but no position")
    return rank, part


def _refuse_other_shape(saved: dict[str, Any], config: StreamConfig, context: WorkerContext) -> None:
    """Raise ``StateError`` for the first field that differs, what others follow from first; ``epochs`` may be raised."""
    current = config.shape(context.world_size)
    for field in {**_CAUSES, **current, **saved}:
        before, now = (shape.get(field, _CAUSES.get(field)) for shape in (saved, current))
        if field == "epochs" and before is not None and (now is None or now > before):
            continue
        if before != now:
            raise StateError(
                f"{field} was {before!r} when the state was saved, but is {now!r} in this stream{_CURES.get(field, '')}"
            )


def _warn_of_lost_tokens(epochs: int | None, config: StreamConfig, position: Position) -> None:
    """Warn where ``epochs`` was raised after the sequence that ended the stream was handed out."""
    if epochs is None or epochs == config.epochs or not (lost := tokens_lost(config, epochs, position)):
        return
    log.warning(
        "epochs was raised from %d to %s after the last sequence, cut at the last token, was handed out: the %d tokens "
        "behind the cut are lost",
        epochs, config.epochs, lost,
    )  # fmt: skip


def _step(taken: int, config: StreamConfig, context: WorkerContext) -> dict[str, int]:
    """Return a position inside a step: its rows that the rank has taken, and what says which rows these are."""
    return {
        "taken": taken,
        "rank": context.rank,
        "world_size": context.world_size,
        "batch_size": config.batch_size or 1,
    }


def _taken(part: Mapping[str, Any], config: StreamConfig, context: WorkerContext) -> int:
    """Return how many rows of its step this rank had taken; raises where it takes other rows of the step now."""
    if part.get("step") is None:
        return 0
    saved = _from_leaf("step", part["step"], dict)
    taken = saved.get("taken") if isinstance(saved, dict) else None
    if type(taken) is not int or not 0 < taken < (config.batch_size or 1):
        raise StateError(f"step of the state is {saved!r}: taken must be above 0 and below the batch size")
    current = _step(taken, config, context)
    for field in current:
        if saved.get(field) != current[field]:
            raise StateError(
                f"the state was saved inside a step, which goes on under the same ranks and batches only: {field} was "
                f"{saved.get(field)!r} when it was saved, but is {current[field]!r} in this stream; load it there and save "
                "at the end of a step"
            )
    return taken


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the one state that any number of ranks can load, from those that all ranks saved after the same batch.

    The states of a sequential stream (``TextDataset``, ``filter``, ``best_fit``) hold their own rank's lanes each; those
    of any other stream are all the same. Raises ``StateError`` for states of different positions or streams, where a lane
    is missing, and where a stage of ``apply`` binds the state to one rank.

    >>> merge_states([{"version": 2, "sequence_index": 4, "shape": "{}"}] * 2)["sequence_index"]
    4
    """
    if not isinstance(states, Sequence) or isinstance(states, str | bytes):
        raise StateError(f"merge_states needs a list of the states of all ranks, got {states!r}")
    if not states:
        raise StateError("merge_states needs the states of all ranks, got none")
    parts = [dict(part_of(state, 0)[1]) for state in states]
    for number, part in enumerate(parts):
        if part.get("bound_to") is not None:
            raise StateError(f"stage {part['bound_to']} makes state {number} its rank's own; it cannot be merged")
        if not isinstance(part.get("lanes", {}), dict):
            raise StateError(f"this is no state of a stream: lanes of state {number} are {part['lanes']!r}")
        part |= {"version": states[number].get("version"), "shape": states[number].get("shape")}
    lanes: dict[str, Any] = {}
    for number, part in enumerate(parts):
        for field in {**parts[0], **part}:
            if field not in ("lanes", "world_size") and part.get(field) != parts[0].get(field):
                raise StateError(
                    f"{field} is {parts[0].get(field)!r} in state 0, but {part.get(field)!r} in state {number}: merge "
                    "states that all ranks of one run saved after the same batch"
                )
        for lane, cursor in part.get("lanes", {}).items():
            if lanes.setdefault(lane, cursor) != cursor:
                raise StateError(f"lane {lane} stands at {lanes[lane]} in one state, but at {cursor} in state {number}")
    merged = parts[0]
    if lanes:
        count = shape_of(merged)["lanes"]
        if missing := [lane for lane in range(count) if str(lane) not in lanes]:
            raise missing_lanes(missing, count)
        merged["lanes"] = lanes
    return merged


def _to_leaf(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _from_leaf(field: str, leaf: Any, kind: type) -> Any:
    try:
        value = json.loads(leaf)
    except (TypeError, ValueError):
        value = None
    if not isinstance(value, kind):
        raise StateError(f"this is no state of a stream: {field} is {str(leaf)[:100]!r}")
    return value


def _number(field: str, value: object, other: str = "", least: int = 0) -> int:
    """Return a number of a state; ``StateError`` names ``field`` and value of what is none that a position can hold."""
    if type(value) is not int or not least <= value <= MAX_NUMBER:
        raise StateError(
            f"{field} of a state must be an integer from {least} to {MAX_NUMBER}{other}, got {value!r}; {_EDIT_CURE}"
        )
    return value


def _given(part: Mapping[str, Any], config: StreamConfig, index: int) -> dict[str, int]:
    """Return how many items each ``take`` after a stage has given; raises where the state is of other stages."""
    takes = [str(number) for number in numbers_of_takes(config)]
    given: dict[str, int] = _from_leaf("given", part.get("given"), dict)
    if sorted(given) != sorted(takes) and (given or index > 0):
        raise StateError(
            f".take() that counts items of a stage was at places {sorted(given)} when the state was saved, but is at {takes} "
            "in this stream"
        )
    return {number: _number(f"given of take {number}", count) for number, count in given.items()}


def _weights(part: Mapping[str, Any], config: StreamConfig) -> list[list[Any]]:
    """Return the weights of a mix that a state holds; raises where they are no schedule of its sources."""
    schedule: list[list[Any]] = _from_leaf("weights", part["weights"], list)
    names = list(config.weights[0][1])
    try:
        starts = [_number("weights", start) for start, _ in schedule]
        exact = tuple((start, exact_weights(shares, names)) for start, shares in weights_from_json(schedule))
        sound = starts[:1] == [0] and starts == sorted(starts) and weights_to_json(exact) == schedule
    except (TypeError, ValueError, AttributeError, ZeroDivisionError):  # ConfigError is a ValueError
        sound = False
    if not sound:
        raise StateError(f"weights of a state must be shares of {', '.join(names)}, got {schedule!r}; {_EDIT_CURE}")
    return schedule


def _lanes(part: Mapping[str, Any], config: StreamConfig, context: WorkerContext) -> dict[str, Cursor]:
    cursors, lanes = part.get("lanes"), config.make_lanes(context.world_size)
    if not isinstance(cursors, dict):
        raise StateError(f"this is no state of a sequential stream: lanes is {str(cursors)[:100]}")
    names, size = {*map(str, range(lanes.count))}, NUMBERS * len(config.data.live)
    for lane, cursor in cursors.items():
        if lane not in names:
            raise StateError(
                f"lanes of a state are '0' to '{lanes.count - 1}' in this stream, got {lane!r}; {_EDIT_CURE}"
            )
        if not isinstance(cursor, list) or len(cursor) != size:
            raise StateError(f"lane {lane} of a state must be {size} numbers, got {cursor!r}; {_EDIT_CURE}")
        for index, number in enumerate(cursor):
            source, field = divmod(index, NUMBERS)
            if not (config.data.live[source] and field == STATE_OF_SOURCE and isinstance(number, str)):
                _number(f"lane {lane}", number)
    missing = [lane for lane in lanes.own(context.rank, context.world_size) if str(lane) not in cursors]
    if missing and context.workers == 1:
        raise missing_lanes(missing, lanes.count)
    return cursors
