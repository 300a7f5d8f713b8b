"""A position as users save it: plain JSON of some hundred bytes, refused by any other stream.

    version, shape          the format of the state, and the shape of its stream
    sequence_index ...      the position: also start_epoch, given and step; for a mix weights, for a sequential stream lanes
    rank_R: {STAGE: {...}}  replaces the position if a stage of the user may bind it to one rank

``torch.distributed.checkpoint`` makes an entry of each key of a nested dict. It loads only the keys that the state of a new
stream has, and stores a key that several ranks have once. So

- every state of one stream has the same keys;
- fields of varying length (``shape``, ``given``, ``weights``) are one string of JSON;
- each lane is a key, so that any rank finds it;
- a field of one rank has the rank in its key.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..errors import StateError
from ..notices import say_once
from .arguments import MAX_ROWS
from .lanes import NUMBERS, STATE_OF_SOURCE, Cursor, missing_lanes
from .layout import DocumentLayout
from .order.interleave import GROUP
from .order.mixture import exact_weights, weights_from_json, weights_to_json
from .position import MAX_NUMBER, Position, Topology
from .schedule import Schedule
from .stream_plan import StreamPlan

STATE_VERSION = 3
_VERSIONS = (2, 3)  # readable; in 2, start_epoch is None before set_epoch(), and counts epochs instead of passes
_CURES = {
    "data": (
        "; the shards or texts are different, or split or upsampled differently: load the state into a stream of the same data"
    ),
    "filters": "; if both filters keep the same documents, give them one name: .filter(..., name=...)",
    "weights": (
        "; give mix() the weights that the run began with: the state remembers changes by set_weights(), and more can follow "
        "load_state_dict()"
    ),
    "end": (
        "; the end of a mix decides the rows of its last group of buckets: load the state with the stopping_strategy that it was "
        "saved with, or without one if an earlier release saved it"
    ),
    "without": (
        "; give .without() the list that the state was saved with (a command: --without FILE), or load a state that was saved "
        "before .without()"
    ),
    "insert": "; give .insert() the same texts, places and global batch, or load a state that was saved before .insert()",
    "ranks": "; the ranks share a live source: go on with as many ranks as before",
    "global_batch": "; a sequential stream needs as many rows in a global batch (ranks x batch size) as before",
}

# Fields that a plain stream lacks. Its state loads, since an experiment may leave a run at any step; what then changes.
FORKS = {"without": "the listed documents are masked", "insert": "the texts are put in"}

# Fields that decide windows and lanes, with their values in a shape that lacks them. They are compared first.
_CAUSES: dict[str, Any] = {"data": None, "filters": [], "document_maps": [], "best_fit": False}
_EDIT_CURE = "it is damaged or was edited: load it as it was saved"
_FIELDS = ("sequence_index", "start_epoch", "given", "step")  # of each state
_FIELDS_OF_RANK = ("bound_to", "world_size")  # of a state that a stage of the user may bind to a rank
_SHARE = re.compile(r"[0-9]{1,4000}(/[0-9]{1,4000})?")  # as Python writes fractions
_MOST_SHOWN = 400  # characters of a value in an error
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = _MOST_SHOWN
_REPR.maxlist = _REPR.maxdict = 40


def to_state(position: Position, plan: StreamPlan, topology: Topology) -> dict[str, Any]:
    """Return a position and the shape of its stream as JSON. Later changes of the position do not change the result."""
    part: dict[str, Any] = {"sequence_index": position.sequence_index, "start_epoch": position.pass_number}
    part["given"] = _to_leaf({str(n): position.given.get(str(n), 0) for n in plan.settings.takes})
    part["step"] = _to_leaf(_step(position.rows_taken, plan, topology)) if position.rows_taken else None
    if position.skip:
        part["skip"] = position.skip
    if topology.workers > 1:
        part["workers"] = topology.workers
    if plan.sequential:
        part["lanes"] = {lane: list(cursor) for lane, cursor in plan.cursors(position).items()}
    if plan.sources.is_mix:
        part["weights"] = _to_leaf(position.weights or _stated_weights(plan))
    state: dict[str, Any] = {"version": STATE_VERSION, "shape": _to_leaf(plan.shape())}
    names = plan.settings.applied
    if not names:
        return state | part
    part |= {"bound_to": position.bound_to, "world_size": topology.world_size}
    return {**state, f"rank_{topology.rank}": {"+".join(names): part}}


def from_state(state: object, plan: StreamPlan, topology: Topology) -> Position:
    """Return the position that a state holds, for one rank or one worker of a loader.

    Raises ``StateError``, naming the field and both values, if the state has another version or shape, other stages, or
    belongs to another rank. It also raises if lanes are missing, except in a worker, which needs only some.
    """
    saved = parse_state(state, topology.rank)
    _refuse_other_shape(saved.shape, saved.sequence_index, plan, topology)
    if saved.workers != topology.workers:
        raise StateError(
            f"a loader of {saved.workers} workers saved this state, which has one worker's part of the position, but it is "
            f"loaded with {topology.workers}; load it with num_workers={saved.workers}, or save stream.state_dict(batches=n) "
            "instead, which any number of workers loads"
        )
    if saved.bound_to is not None and (saved.rank, saved.world_size) != (topology.rank, topology.world_size):
        raise StateError(
            f"stage {saved.bound_to} drops items, so this state belongs to rank {saved.rank} of "
            f"{saved.world_size}, but this is rank {topology.rank} of {topology.world_size}"
        )
    takes = [str(number) for number in plan.settings.takes]
    if sorted(saved.given) != sorted(takes) and (saved.given or saved.sequence_index > 0):
        raise StateError(
            f".take() that counts items of a stage was at places {sorted(saved.given)} when the state was saved, but is at "
            f"{takes} in this stream"
        )
    return Position(
        saved.sequence_index,
        saved.skip,
        _rows_taken(saved.step, plan, topology),
        _pass_number(saved, plan),
        saved.given,
        saved.bound_to,
        _weights(saved.weights, plan, topology) if plan.sources.is_mix else None,
        _lanes(saved.lanes, plan, topology) if plan.sequential else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """The checked fields of a state: each has its type, and each number is in range. ``rank`` is the rank that saved them."""

    version: int
    shape: dict[str, Any]
    rank: int | None
    sequence_index: int
    start_epoch: int | None
    given: dict[str, int]
    step: dict[str, int] | None
    skip: int
    workers: int
    world_size: int | None
    bound_to: str | None
    lanes: dict[str, list[Any]] | None
    weights: list[list[Any]] | None


def parse_state(state: object, rank: int) -> SavedState:
    """Return the fields of a state, or of the part of ``rank`` if ranks have parts. ``StateError`` names a wrong field."""
    if not isinstance(state, Mapping) or "version" not in state:
        names = ", ".join(map(_short, state)) if isinstance(state, Mapping) else ""
        description = f"a dict of {names}" if isinstance(state, Mapping) else f"of type {type(state).__name__}"
        raise StateError(
            f"this is no state of a stream, but {description}; load what stream.state_dict() returned, as checkpoint['data']"
        )
    if type(state["version"]) is not int or state["version"] not in _VERSIONS:
        versions = " and ".join(map(str, _VERSIONS))
        raise StateError(f"state version {_short(state['version'])}, but this release reads {versions}")
    saved_shape = _leaf("shape", state.get("shape"), dict)
    for name, most in (("epochs", MAX_ROWS), ("lanes", MAX_ROWS), ("ranks", MAX_ROWS), ("global_batch", MAX_NUMBER)):
        if saved_shape.get(name) is not None:
            _number(f"shape.{name}", saved_shape[name], least=1, most=most)
    part_rank, part = _part(state, rank)
    fields = _FIELDS if part is state else _FIELDS + _FIELDS_OF_RANK
    if missing := [name for name in fields if name not in part]:
        raise StateError(f"{missing[0]} is missing in the state; {_EDIT_CURE}")
    for name in ("start_epoch", "world_size"):
        if part.get(name) is not None:
            _number(name, part[name], " or None")
    if not isinstance(part.get("bound_to"), str | None):
        raise _edited("bound_to", part["bound_to"], "the name of a stage")
    given = _leaf("given", part["given"], dict)
    step = None if part["step"] is None else _leaf("step", part["step"], dict)
    lanes = part.get("lanes")
    if not isinstance(lanes, dict | None):
        raise _edited("lanes", lanes, "numbers by lane")
    for lane, cursor in (lanes or {}).items():
        if not isinstance(lane, str) or not isinstance(cursor, list):
            raise _edited(f"lane {lane if isinstance(lane, str) else _short(lane)}", cursor, "a list of numbers")
        for number in cursor:
            if not isinstance(number, str):  # of a live source
                _number(f"lane {lane}", number)
    return SavedState(
        version=state["version"],
        shape=saved_shape,
        rank=part_rank,
        sequence_index=_number("sequence_index", part["sequence_index"]),
        start_epoch=part["start_epoch"],
        given={name: _number(f"given of take {name}", count) for name, count in given.items()},
        step=None if step is None else {name: _number(f"step.{name}", number) for name, number in step.items()},
        skip=_number("skip", part.get("skip", 0)),
        workers=_number("workers", part.get("workers", 1), least=1),
        world_size=part.get("world_size"),
        bound_to=part.get("bound_to"),
        lanes=lanes,
        weights=_leaf("weights", part["weights"], list) if "weights" in part else None,
    )


def _part(state: Mapping[str, Any], rank: int) -> tuple[int, Mapping[str, Any]]:
    """Return the rank whose position this is, and the fields of the position.

    A state that several ranks saved together, as DCP does, has a position for each rank; the state of a single rank has one.
    """
    if "sequence_index" in state:
        return rank, state
    names = {key: key.removeprefix("rank_") for key in state if isinstance(key, str) and key.startswith("rank_")}
    saved = {
        int(name): state[key] for key, name in names.items() if name.isascii() and name.isdigit() and len(name) < 10
    }
    rank = rank if rank in saved else min(saved, default=rank)
    part = next(iter(saved[rank].values()), None) if isinstance(saved.get(rank), dict) else None
    if not isinstance(part, dict):
        names_of_keys = ", ".join(map(_short, state))
        raise StateError(f"this is no state of a stream: it holds {names_of_keys}, but no position")
    return rank, part


def _refuse_other_shape(saved: dict[str, Any], sequence_index: int, plan: StreamPlan, topology: Topology) -> None:
    """Raise ``StateError`` for the first field that differs, causes before effects. ``epochs`` may be larger than before."""
    current = plan.shape()
    for field in {**_CAUSES, **current, **saved}:
        before, now = (fields.get(field, _CAUSES.get(field)) for fields in (saved, current))
        if field == "epochs" and before is not None and (now is None or now > before):
            continue
        if field in FORKS and before is None:
            if not (topology.rank or topology.worker):
                say_once(f"this state was saved before .{field}(): {FORKS[field]} from row {sequence_index:,} on")
            continue
        size = GROUP * ((plan.settings.layout or DocumentLayout()).bucket or 1)
        if field == "end" and sequence_index <= min(filter(None, (before, now))) // size * size:
            continue  # before the last group
        if before != now:
            cure = _CURES.get(field, "")
            hashes = before if field == "data" and isinstance(before, dict) else {}
            for name, source in plan.sources.counted.items():
                cure = source.former.get(str(hashes.get(name)), cure)
            if field == "weights" and isinstance(before, dict) and isinstance(now, dict):  # two schedules
                part = next(part for part in {**now, **before} if before.get(part) != now.get(part))
                field, before, now = f"{part} of the schedule", before.get(part), now.get(part)
            raise StateError(
                f"{field} was {_short(before)} when the state was saved, but is {now!r} in this stream{cure}"
            )


def _pass_number(saved: SavedState, plan: StreamPlan) -> int:
    """Return the pass in which a state was saved; ``StateError`` if an earlier release cut that pass differently."""
    number, epochs = saved.start_epoch or 0, plan.settings.epochs
    if saved.version > 2 or saved.start_epoch is None or epochs is None:
        return number
    sequences = plan.sequences
    if sequences is not None:
        is_cut = sequences.labelled < sequences.pass_size or (number and epochs * sequences.tokens % sequences.stride)
        if is_cut:
            raise StateError(
                f"an earlier release saved this state in pass {number} (start_epoch) and cut its sequences differently; begin "
                f"that pass again, by set_epoch({number}) in place of load_state_dict()"
            )
    return number // epochs


def _step(rows_taken: int, plan: StreamPlan, topology: Topology) -> dict[str, int]:
    """Return a position inside a step: the number of rows that the rank has taken, and the values that decide which rows."""
    return {
        "taken": rows_taken,
        "rank": topology.rank,
        "world_size": topology.world_size,
        "batch_size": plan.step_rows,
    }


def _rows_taken(saved: dict[str, int] | None, plan: StreamPlan, topology: Topology) -> int:
    """Return how many rows of its step this rank had taken; ``StateError`` if it would now take other rows of the step."""
    if saved is None:
        return 0
    rows_taken = saved.get("taken", 0)
    if not 0 < rows_taken < (plan.step_rows):
        raise StateError(f"step of the state is {saved!r}: taken must be above 0 and below the batch size")
    current = _step(rows_taken, plan, topology)
    for field in current:
        if saved.get(field) != current[field]:
            raise StateError(
                f"the state was saved inside a step, which only the same ranks and batches can continue: {field} was "
                f"{saved.get(field)!r} when it was saved, but is {current[field]!r} in this stream; load it with the former "
                f"{field}, and save at the end of a step"
            )
    return rows_taken


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the states that all ranks saved after the same batch into one state that any number of ranks can load.

    In a sequential stream (``TextDataset``, ``filter``, ``best_fit``), each state holds the lanes of its rank; in any other
    stream all states are the same. Raises ``StateError`` for states of different positions or streams, if a lane is missing,
    or if a stage of ``apply`` binds a state to one rank.

    >>> import pipeline
    >>> stream = pipeline.ShardDataset.from_tokens(range(64)).pack(4).batch(2)
    >>> merge_states([stream.shard(rank, 2).state_dict(batches=1) for rank in range(2)])["sequence_index"]
    4
    """
    if not isinstance(states, Sequence) or isinstance(states, str | bytes):
        raise StateError(f"merge_states needs a list of the states of all ranks, got {_short(states)}")
    if not states:
        raise StateError("merge_states needs the states of all ranks, got none")
    saved = [parse_state(state, 0) for state in states]
    lanes: dict[str, Any] = {}
    for number, each in enumerate(saved):
        if each.bound_to is not None:
            raise StateError(
                f"stage {each.bound_to} drops items, so state {number} belongs to its rank and cannot be merged; load it there"
            )
        for field in "version shape sequence_index start_epoch given step skip workers weights".split():
            first, other = getattr(saved[0], field), getattr(each, field)
            if first != other:
                raise StateError(
                    f"{field} is {_short(first)} in state 0, but {_short(other)} in state {number}: merge "
                    "states that all ranks of one run saved after the same batch"
                )
        for lane, cursor in (each.lanes or {}).items():
            if lanes.setdefault(lane, cursor) != cursor:
                raise StateError(
                    f"lane {lane} is at {_short(lanes[lane])} in one state, but at {_short(cursor)} in state {number}: merge "
                    "states that all ranks of one run saved after the same batch"
                )
    merged = dict(_part(states[0], 0)[1]) | {"version": states[0]["version"], "shape": states[0]["shape"]}
    if any(each.lanes is not None for each in saved):
        count = saved[0].shape.get("lanes")
        if count is None:
            raise StateError(f"shape.lanes is missing in the state; {_EDIT_CURE}")
        if missing := list(islice((lane for lane in range(count) if str(lane) not in lanes), 9)):
            present = sum(lane.isdecimal() and len(lane) < 11 and int(lane) < count for lane in lanes)
            raise missing_lanes(missing, count, count - present)
        merged["lanes"] = lanes
    return merged


def _to_leaf(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _leaf(field: str, leaf: Any, kind: type) -> Any:
    try:
        value = json.loads(leaf)
    except (TypeError, ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise StateError(f"this is no state of a stream: {field} is {_short(leaf)}")
    return value


def _number(field: str, value: Any, other: str = "", least: int = 0, most: int = MAX_NUMBER) -> int:
    """Return a number of a state; ``StateError`` names ``field`` and the value if it is no integer or out of range."""
    if type(value) is not int or not least <= value <= most:
        raise _edited(field, value, f"an integer from {least} to {most}{other}")
    return value


def _edited(field: str, value: object, expected: str) -> StateError:
    return StateError(f"{field} of a state must be {expected}, got {_short(value)}; {_EDIT_CURE}")


def _short(value: object) -> str:
    """Return a value of a state as short text. An edit may have made the value long or deep."""
    try:
        text = _REPR.repr(value)
    except ValueError:  # an integer of more than 4,300 digits
        text = "a number beyond all others"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _stated_weights(plan: StreamPlan) -> list[list[Any]]:
    """Return the weights in a mix's state before ``set_weights``: none if a schedule states them, which the shape holds."""
    return [] if isinstance(plan.settings.weights, Schedule) else weights_to_json(plan.settings.weights)


def _weights(schedule: list[list[Any]] | None, plan: StreamPlan, topology: Topology) -> list[list[Any]] | None:
    """Return the changed weights in a state; None if unchanged. ``StateError`` if they are not weights of this mix's sources."""
    if schedule == _stated_weights(plan):
        return schedule or None
    if schedule is None:
        raise StateError(f"weights are missing in the state of a mix; {_EDIT_CURE}")
    names = list(plan.sources.by_name)
    try:
        starts = [_number("weights", start) for start, *_ in schedule]
        written = [share for _, shares, *_ in schedule for share in shares.values()]
        sound = all(isinstance(share, str) and _SHARE.fullmatch(share) for share in written)
        if sound:
            changes, served = weights_from_json(schedule)
            exact = tuple((start, exact_weights(shares, names)) for start, shares in changes)
            sound = starts == sorted(starts) and weights_to_json(exact, served) == schedule
            rows, lanes = [sum(_number("weights", count) for count in lane) for lane in served], 0
            if starts[0] or served:
                lanes = plan.lane_count
                sound &= {*map(len, served)} == {len(names)} and {*rows} == {plan.row_of_change(starts[0])}
            sound &= len(served) == lanes
    except (TypeError, ValueError, AttributeError, ZeroDivisionError, IndexError):  # ConfigError is a ValueError
        sound = False
    if not sound:
        raise _edited("weights", schedule, f"shares of {', '.join(names)}")
    return schedule


def _lanes(cursors: dict[str, Cursor] | None, plan: StreamPlan, topology: Topology) -> dict[str, Cursor]:
    lanes = plan.lanes
    if cursors is None:
        raise StateError(f"lanes are missing in the state of a sequential stream; {_EDIT_CURE}")
    names, size = {*map(str, range(lanes.count))}, NUMBERS * len(plan.sources.live)
    for lane, cursor in cursors.items():
        if lane not in names:
            raise _edited("lanes", lane, f"'0' to '{lanes.count - 1}' in this stream")
        if len(cursor) != size:
            raise _edited(f"lane {lane}", cursor, f"{size} numbers")
        for index, number in enumerate(cursor):
            source, field = divmod(index, NUMBERS)
            if not (plan.sources.live[source] and field == STATE_OF_SOURCE and isinstance(number, str)):
                _number(f"lane {lane}", number)
    missing = [lane for lane in lanes.local(topology.rank, topology.world_size) if str(lane) not in cursors]
    if missing and topology.workers == 1:
        raise missing_lanes(missing, lanes.count)
    return cursors
