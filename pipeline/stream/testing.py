"""The check of exact resume, which users can run on streams with stages of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import islice, zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ConfigError
from .loader.state import is_bound, merge_states, part_of, shape_of
from .stream import Stream


def assert_resumes(make_stream: Callable[[], Stream], items: int = 8, world_sizes: Sequence[int] = (2, 3)) -> None:
    """Assert that a stream resumes exactly after each of its first ``items`` items, on one rank and on ``world_sizes`` ranks.

    ``make_stream`` makes the same new stream at each call. Every state goes through JSON, is loaded into a new stream, and
    is saved again without a step. All items that follow are compared, byte for byte, with the uninterrupted run, also
    after a second resume. With several ranks, rows of ``input_ids`` of each global step are compared, unless a stage
    binds the state to its rank; a sequential stream is compared on those ``world_sizes`` that divide its batch, with
    batches as much smaller, and the states of the ranks are merged again.

    Raises ``AssertionError`` naming the position and what differs, and ``ConfigError`` for a stream without items.

    >>> import pipeline
    >>> tokens = range(1000)
    >>> assert_resumes(lambda: pipeline.ShardDataset.from_tokens(tokens).shuffle(lanes=3).pack(16).batch(2))
    """
    stream = make_stream()
    whole = list(islice(stream, items))
    if not whole:
        raise ConfigError("the stream gives no item, so nothing can be shown of it; give it data")
    elastic = not is_bound(stream.state_dict())
    for stop in range(len(whole) + 1):
        state = _state_after(make_stream(), stop)
        resumed = make_stream()
        resumed.load_state_dict(state)
        _equal(f"the state after {stop} items, loaded and saved without a step", resumed.state_dict(), state)
        _equal(f"items after {stop}", list(islice(resumed, len(whole) - stop)), whole[stop:])
        if stop < len(whole) - 1:
            middle = (len(whole) - stop) // 2
            again = make_stream()
            again.load_state_dict(state)
            list(islice(again, middle))
            third = make_stream()
            third.load_state_dict(json.loads(json.dumps(again.state_dict())))
            rest = list(islice(third, len(whole) - stop - middle))
            _equal(f"items after {stop}, resumed, and {middle} more, resumed again", rest, whole[stop + middle :])
        if "lanes" in part_of(state, 0)[1]:
            shape = shape_of(state)
            if elastic and shape["epochs"] is None:
                for world_size in world_sizes:
                    if shape["global_batch"] % world_size == 0 and shape["lanes"] % shape["global_batch"] == 0:
                        _assert_elastic_lanes(make_stream, state, whole[stop:], world_size)
        elif elastic and all(isinstance(item, dict) and "input_ids" in item for item in whole):
            for world_size in world_sizes:
                _assert_elastic(make_stream, state, _rows(whole[stop:]), world_size)


def _assert_elastic(make_stream: Callable[[], Stream], state: dict[str, Any], rows: list[Any], world_size: int) -> None:
    """Assert that ``world_size`` ranks continue from ``state`` with the same rows in every global step."""
    start = part_of(state, 0)[1]["sequence_index"]
    ranks: list[list[list[Any]]] = []
    for rank in range(world_size):
        stream = make_stream().shard(rank, world_size)
        stream.load_state_dict(state)
        items: list[list[Any]] = []
        for item in stream:
            items.append(_rows([item]))
            if len(items) * len(items[0]) * world_size >= len(rows):
                break
        ranks.append(items)
    done = 0
    for number, step in enumerate(zip_longest(*ranks, fillvalue=())):
        found = [row for each in step for row in each]
        expected = rows[done : done + len(found)]
        where = f"step {number} of {world_size} ranks after sequence index {start}"
        for row, one in enumerate(expected):
            match = next((k for k, other in enumerate(found) if _is_equal(other, one)), None)
            if match is None:
                raise AssertionError(f"{where}: row {done + row} of one rank is missing: {one}")
            found.pop(match)
        done += len(expected)
    if done < len(rows):
        raise AssertionError(f"{world_size} ranks end {len(rows) - done} rows before one rank does")


def _is_equal(found: NDArray[Any], expected: NDArray[Any]) -> bool:
    return found.dtype == expected.dtype and np.array_equal(found, expected)


def _assert_elastic_lanes(
    make_stream: Callable[[], Stream], state: dict[str, Any], items: list[Any], world_size: int
) -> None:
    """Assert that ranks share the rows of each batch from ``state`` on, and one rank goes on from their merged states."""
    start, rows = part_of(state, 0)[1]["sequence_index"], shape_of(state)["global_batch"]
    share = rows // world_size
    found, states = [], []
    for rank in range(world_size):
        stream = make_stream()
        stream = stream._with(batch_size=share).shard(rank, world_size)
        stream.load_state_dict(state)
        batches = []
        for item in islice(stream, max(1, len(items))):
            batches.append(_rows([item]))
            if len(batches) == 1:
                states.append(json.loads(json.dumps(stream.state_dict())))
        found.append(batches[: len(items)])
    where = f"after sequence index {start}, on {world_size} ranks"
    ranks = [[row for batch in step for row in batch] for step in zip(*found, strict=True)]
    _equal(f"rows {where}", ranks, [_rows([item]) for item in items])
    if len(states) == world_size:
        stream = make_stream()
        stream.load_state_dict(merge_states(states))
        rest = items[1:]
        _equal(f"items after the merged states of {world_size} ranks", list(islice(stream, len(rest))), rest)


def _rows(items: list[Any]) -> list[Any]:
    """Return the rows of ``input_ids`` of samples or batches, in order, without what depends on their neighbours.

    They are flat where a shift was drawn for each step, and have no padding where a mask tells it.
    """
    rows: list[Any] = []
    for item in items:
        ids = np.asarray(item["input_ids"])
        ids = ids.reshape(*ids.shape[:-2], -1) if "shift" in item else ids
        if "attention_mask" in item:
            masks = np.atleast_2d(np.asarray(item["attention_mask"])).astype(bool)
            rows += [row[mask] for row, mask in zip(np.atleast_2d(ids), masks, strict=True)]
        else:
            rows += list(ids) if ids.ndim > 1 else [ids]
    return rows


def _state_after(stream: Stream, items: int) -> dict[str, Any]:
    taken = len(list(islice(stream, items))) if items else 0
    if taken < items:
        raise AssertionError(f"a new stream gave {taken} items where the first gave {items}")
    state: dict[str, Any] = json.loads(json.dumps(stream.state_dict()))
    return state


def _equal(where: str, found: Any, expected: Any) -> None:
    """Raise ``AssertionError`` where two items differ, naming the way to the difference."""
    if isinstance(expected, dict):
        if not isinstance(found, dict) or found.keys() != expected.keys():
            raise AssertionError(f"{where}: keys {sorted(found)} instead of {sorted(expected)}")
        for key, value in expected.items():
            _equal(f"{where}, {key!r}", found[key], value)
    elif isinstance(expected, list | tuple):
        if len(found) != len(expected):
            raise AssertionError(f"{where}: {len(found)} instead of {len(expected)}")
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            _equal(f"{where}, number {number}", one, other)
    elif isinstance(expected, torch.Tensor | np.ndarray):
        one, other = np.asarray(found), np.asarray(expected)
        if one.dtype != other.dtype or not np.array_equal(one, other):
            raise AssertionError(f"{where}: {one} instead of {other}")
    elif found != expected:
        raise AssertionError(f"{where}: {found!r} instead of {expected!r}")
