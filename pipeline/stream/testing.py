"""The check of exact resume, which users can run on streams with their own stages."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import islice, zip_longest
from typing import Any

import numpy as np

from ..errors import ConfigError
from .stream import Stream


def assert_resumes(make_stream: Callable[[], Stream], items: int = 8, steps: Sequence[int] = ()) -> None:
    """Assert that a stream resumes exactly after each of ``steps`` (default: after each of its first ``items`` items).

    ``make_stream`` makes the same new stream at each call. Every state goes through JSON and is loaded into a new stream. The
    following items, up to item ``items``, must equal the uninterrupted run byte for byte, also after a second resume halfway.
    Raises ``AssertionError`` naming the step and the key that differs, and ``ConfigError`` for a stream without items.

    >>> import pipeline
    >>> assert_resumes(lambda: pipeline.ShardDataset.from_tokens(range(999)).shuffle(lanes=3).pack(16).batch(2))
    """
    items = max([items, *(step + 1 for step in steps)])
    whole = list(islice(make_stream(), items))
    if not whole:
        raise ConfigError("the stream gives no item, so there is nothing to check; give it data")

    def run(state: Any, first: int, end: int, where: str) -> Any:
        stream = make_stream()
        if state is not None:
            stream.load_state_dict(state)
            _assert_equal(f"{where}, the state that is saved at once", stream.state_dict(), state)
        actual = islice(stream, end - first) if end > first else ()
        _assert_equal(f"{where}, step", [*actual], whole[first:end], first)
        return json.loads(json.dumps(stream.state_dict()))

    for step in steps or range(len(whole) + 1):
        state, middle = run(None, 0, step, "without a resume"), (step + len(whole)) // 2
        run(state, step, items, f"resumed after {step} steps")
        again = run(state, step, middle, f"resumed after {step} steps")
        run(again, middle, items, f"resumed after {step} and {middle} steps")


def _assert_equal(where: str, actual: Any, expected: Any, first: int = 0) -> None:
    """Compare item by item; an error names the path to the difference. Items of a list are numbered from ``first`` on."""
    equal = type(actual) is type(expected)
    if equal and isinstance(expected, dict):
        for key in {**expected, **actual}:
            _assert_equal(f"{where}, {key!r}", actual.get(key, "nothing"), expected.get(key, "nothing"))
    elif equal and isinstance(expected, list | tuple):
        for number, pair in enumerate(zip_longest(actual, expected, fillvalue="nothing"), first):
            _assert_equal(f"{where} {number}", *pair)
    elif (
        not equal
        or getattr(actual, "dtype", 0) != getattr(expected, "dtype", 0)
        or not np.array_equal(actual, expected)
    ):
        raise AssertionError(f"{where}: {actual!r} instead of {expected!r}")
