from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
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


def every_other(items: Iterator[Any]) -> Iterator[Any]:
    """A stage that is in the wrong half after a resume."""
    yield from islice(items, 0, None, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: source().pack(16),
        lambda: source(epochs=2).pack(500, boundaries=True).batch(3),
        lambda: source().pack(16, stride=5).batch(2).prefetch(2),
        lambda: source().pack(16, shift="divisors"),
        lambda: source(epochs=1).documents(20).batch(4),
        lambda: ragged().documents().batch(3),
        lambda: ragged().documents(bucket=6),
        lambda: pipeline.ShardDataset.from_tokens(TOKENS, lengths=[30] * 100).documents(bucket=3),
        lambda: ragged().filter(some).documents().batch(3),
        lambda: ragged().filter(some).pack(12, shift="divisors").batch(3),
        lambda: ragged().filter(some).pack(12, shift="divisors", best_fit=True).batch(2),
        lambda: pipeline.ShardDataset.from_tokens(TOKENS, lengths=[1000] * 3).sample(12, boundaries=True).batch(2),
        lambda: pipeline.ShardDataset.from_tokens(TOKENS, epochs=1).shuffle(seed=3).sample(50, shift="divisors"),
        lambda: source().pack(16).batch(2).to("cpu"),
        lambda: source().pack(16).map(dict).batch(2).take(5),
    ],
)
def test_streams_of_every_shape_resume(make: Any) -> None:
    pipeline.assert_resumes(make, steps=(0, 3, 7))


@pytest.mark.parametrize("boundaries", [False, True])
def test_a_document_of_many_sequences_goes_on_after_a_resume_inside(boundaries: bool) -> None:
    def make() -> pipeline.Stream:
        data = pipeline.ShardDataset.from_tokens(np.arange(1, 301), lengths=[3, 200, 0, 90, 7], epochs=2)
        return data.pack(16, boundaries=boundaries).batch(1)

    assert [int(id) for batch in make() for id in batch["input_ids"][0] if id] == [*range(1, 301)] * 2
    pipeline.assert_resumes(make, items=40, steps=(0, 6, 12, 18, 19, 37))


def test_a_stage_that_forgets_is_found_out_with_the_place() -> None:
    with pytest.raises(AssertionError, match=r"(?s)^resumed after .* steps, step \d, 'input_ids': .* instead of "):
        pipeline.assert_resumes(lambda: source().pack(16).apply(every_other))


def test_a_stream_that_differs_from_call_to_call_is_found_out() -> None:
    calls = iter(range(100))

    def make() -> pipeline.Stream:
        call = next(calls)
        return source().pack(16).map(lambda sample: {**sample, "call": call})

    with pytest.raises(AssertionError, match="'call': 2 instead of 0"):
        pipeline.assert_resumes(make)


def counted_first(items: Iterator[Any]) -> Iterator[Any]:
    """A stage that counts its first three items, also after a resume."""
    for number, item in enumerate(items, 1):
        yield {**item, "count": number} if number < 4 else item


def test_a_missing_key_is_found_out_at_the_given_steps_and_no_others() -> None:
    def make() -> pipeline.Stream:
        return source().pack(16).apply(counted_first)

    pipeline.assert_resumes(make, steps=[0], items=1)
    with pytest.raises(AssertionError, match=r"^resumed after 3 steps.* step 3, 'count': 1 .*'nothing'$"):
        pipeline.assert_resumes(make, steps=[3])


def test_a_stream_without_items_shows_nothing() -> None:
    with pytest.raises(ConfigError, match="gives no item"):
        pipeline.assert_resumes(lambda: source().pack(16).take(0))
