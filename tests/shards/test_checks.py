from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.errors import ConfigError

TOKENS = np.arange(3000, dtype=np.uint16)


def source(**options: Any) -> pipeline.Stream:
    return pipeline.ShardDataset.from_tokens(TOKENS, lengths=[30] * 100, **options).shuffle(seed=2, lanes=5)


def ragged() -> pipeline.Stream:
    return pipeline.ShardDataset.from_tokens(TOKENS[:2485], lengths=range(1, 71)).shuffle(seed=2, lanes=6)


def some(document: Any) -> bool:
    return int(document[0]) % 3 > 0


class Forgetful:
    """Groups items in twos and says that it remembers, but not what."""

    remembers = ("count",)

    def __init__(self) -> None:
        self.count = 0
        self.odd = 0

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self.odd ^= 1
            if self.odd:
                yield item


@pytest.mark.parametrize(
    "make",
    [
        lambda: source().pack(16),
        lambda: source(epochs=2).pack(500, boundaries=True).batch(3),
        lambda: source().pack(16, stride=5).batch(2).prefetch(2),
        lambda: source(epochs=1).documents(20).batch(4),
        lambda: ragged().documents().batch(3),
        lambda: ragged().documents(bucket=6),
        lambda: ragged().filter(some).documents().batch(3),
        lambda: ragged().filter(some).pack(12, shift="divisors").batch(3),
        lambda: ragged().pack(12, shift="divisors", best_fit=True),
        lambda: pipeline.ShardDataset.from_tokens(TOKENS, lengths=[1000] * 3).sample(12, boundaries=True).batch(2),
        lambda: source().pack(16).batch(2).to("cpu"),
        lambda: source().pack(16).map(dict).batch(2).take(5),
    ],
)
def test_streams_of_every_shape_resume(make: Any) -> None:
    pipeline.assert_resumes(make)


def test_a_stage_that_forgets_is_found_out_with_the_place() -> None:
    with pytest.raises(AssertionError, match=r"(?s)^resumed after .* steps, step \d, 'input_ids': .* instead of "):
        pipeline.assert_resumes(lambda: source().pack(16).apply(Forgetful()))


def test_a_stream_that_differs_from_call_to_call_is_found_out() -> None:
    calls = iter(range(100))

    def make() -> pipeline.Stream:
        call = next(calls)
        return source().pack(16).map(lambda sample: {**sample, "call": call})

    with pytest.raises(AssertionError, match="'call': 2 instead of 0"):
        pipeline.assert_resumes(make)


class Lost:
    """Counts the items that it gave, and does not count them after a resume."""

    remembers = ("count",)
    count = 0

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        resumed = self.count > 0
        for item in items:
            self.count += not resumed
            yield {**item, "count": self.count} if not resumed else item


def test_a_missing_key_is_found_out_at_the_given_steps_and_no_others() -> None:
    def make() -> pipeline.Stream:
        return source().pack(16).apply(Lost())

    pipeline.assert_resumes(make, steps=[0], items=1)
    with pytest.raises(AssertionError, match=r"^resumed after 3 steps, step 3, 'count': 'nothing' instead of 4$"):
        pipeline.assert_resumes(make, steps=[3])


def test_a_stream_without_items_shows_nothing() -> None:
    with pytest.raises(ConfigError, match="gives no item"):
        pipeline.assert_resumes(lambda: source().pack(16).take(0))
