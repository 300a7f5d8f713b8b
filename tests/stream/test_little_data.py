"""A row or a batch that is larger than the data is told once, with both numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import pipeline
from pipeline import Stream


def data(tokens: int, epochs: int | None = None) -> Stream:
    return pipeline.ShardDataset.from_tokens(range(tokens), lengths=[tokens // 2] * 2, epochs=epochs)


def mixed(tokens: int) -> Stream:
    return pipeline.mix({"web": data(4000), "wiki": data(tokens)}, {"web": 3, "wiki": 1})


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        (
            lambda: data(420).pack(20).batch(48),
            "the data holds 420 tokens, .* takes 960: .* 2.3 times",
        ),
        (lambda: data(420).shuffle().pack(20).batch(48).shard(0, 2), "the data holds 420 tokens, .* takes 1,920"),
        (lambda: data(422).pack(1000), "the data holds 422 tokens, .* a row has 1,000 tokens"),
        (
            lambda: data(420, 1).pack(20).batch(48),
            "the data holds 420 tokens, .* has 960 tokens: .* padding",
        ),
        (lambda: data(424).filter(lambda ids: True).pack(20).batch(48), "the data holds 424 tokens, .* takes 960"),
        (
            lambda: mixed(100).pack(20).batch(24),
            "source 'wiki' holds 100 tokens, .* takes 120: .* 1.2 times",
        ),
        (lambda: data(420).pack(20).batch(21), None),
        (lambda: data(420, 1).pack(20).batch(32), None),
        (lambda: data(4).documents().batch(1), None),
        (lambda: mixed(120).pack(20).batch(24), None),
    ],
)
def test_a_batch_beyond_the_data_is_told_once_with_both_numbers(
    stream: Callable[[], Stream], told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    made = stream()
    for _ in range(2):
        next(iter(made))
    if told is None:
        assert caplog.messages == []
    else:
        assert [bool(re.search(told, message)) for message in caplog.messages] == [True]


def test_texts_are_told_by_their_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be " * 9)
    next(iter(pipeline.TextDataset(tmp_path / "a.txt", "bytes").pack(64).batch(16)))
    assert "the data holds at most about 168 tokens, but a batch of all ranks takes 1,024" in caplog.text
