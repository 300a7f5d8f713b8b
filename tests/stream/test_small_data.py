"""Whatever little data holds, documents of no and of one token among them, a stream gives rows or says why it cannot."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import pipeline
from pipeline import Stream
from pipeline.errors import ConfigError
from pipeline.notices import say_once

STEPS = 3
MOST_DOCUMENTS = 40_000  # that a filter is asked of, until there are so many batches or an error

Lengths = list[int]
LAYOUTS: dict[str, Any] = {
    "pack": lambda stream: stream.pack(4),
    "strides": lambda stream: stream.pack(4, stride=1, boundaries=True),
    "far labels": lambda stream: stream.pack(4, shift=3),
    "best fit": lambda stream: stream.pack(4, best_fit=True),
    "best fit of one": lambda stream: stream.pack(1, best_fit=True),
    "documents": lambda stream: stream.documents(),
    "samples": lambda stream: stream.sample(4),
}


class Patience:
    """A filter that keeps all documents, and fails when it was asked of too many."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, document: Any) -> bool:
        self.asked += 1
        assert self.asked < MOST_DOCUMENTS, "the stream reads on without a row"
        return True


def source(kind: str, lengths: Lengths, epochs: int | None = None) -> Any:
    """Return documents of so many tokens: of an array, or texts without an end-of-text id."""
    if kind == "tokens":
        return pipeline.ShardDataset.from_tokens(np.arange(sum(lengths)), lengths=lengths, epochs=epochs)
    if kind == "texts":
        return pipeline.TextDataset([{"text": "a" * n} for n in lengths], "bytes", eos=False, epochs=epochs)

    def records() -> Iterator[dict[str, str]]:
        return iter([{"text": "a" * n} for n in lengths])

    return pipeline.TextDataset(records, "bytes", eos=False, epochs=epochs)


small = st.lists(st.integers(0, 3), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["tokens", "texts", "live"]),
    small,
    st.none() | small,
    st.sampled_from(sorted(LAYOUTS)),
    st.sampled_from([None, 1, 2]),
    st.booleans(),
    st.booleans(),
)
def test_little_data_gives_rows_or_an_error(
    kind: str, lengths: Lengths, others: Lengths | None, layout: str, epochs: int | None, filtered: bool, shuffled: bool
) -> None:
    def batches() -> int:
        """Return how many of the first batches there are."""
        if others is None:
            stream = source(kind, lengths, epochs)
        else:
            mixed = kind if kind == "tokens" else "texts"
            stream = pipeline.mix({"a": source(kind, lengths), "b": source(mixed, others)}, {"a": 0.5, "b": 0.5})
        stream = stream.filter(Patience(), name="patient") if filtered or layout.startswith("best") else stream
        return len(list(islice(LAYOUTS[layout](stream.shuffle(seed=0) if shuffled else stream).batch(2), STEPS)))

    try:
        count = batches()
    except ConfigError as error:
        event(f"{layout}: {str(error)[:30]}")
        has_tokens = 0 not in (sum(lengths), sum(others or [1]))
        assert not (has_tokens and epochs is None and layout in ("pack", "strides", "far labels", "documents"))
        return
    event(f"{layout}: {'rows' if count == STEPS else 'an end'}")
    assert count >= (STEPS if epochs is None else 1)


@pytest.mark.parametrize("lanes", [2, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_a_document_of_many_lanes_is_read_again_and_again(lanes: int, seed: int) -> None:
    data = pipeline.TextDataset([{"text": "a" * 12}], "bytes")
    stream = data.shuffle(seed=seed, lanes=lanes).documents().batch(2)
    assert all(batch["valid_tokens"] == 24 for batch in islice(stream, 30))


def test_a_rank_that_had_rows_calls_no_document_too_short() -> None:
    stream = pipeline.TextDataset([{"text": "a" * 12}], "bytes").shuffle(seed=0, lanes=16).documents().batch(1)
    rows = iter(stream.shard(0, 16))
    assert next(rows)["valid_tokens"] == 12
    with pytest.raises(ConfigError, match="no document was kept of 8 epochs") as caught:
        list(rows)
    assert "too short" not in str(caught.value)


def test_the_source_whose_documents_have_no_label_is_named() -> None:
    good = pipeline.ShardDataset.from_texts(["to be or not to be"] * 20, "bytes")
    empty = pipeline.ShardDataset.from_texts([""], "bytes")
    mixed = pipeline.mix({"good": good, "empty": empty}, {"good": 0.99, "empty": 0.01})
    with pytest.raises(ConfigError, match=r"8 epochs of source 'empty' .*remove the source"):
        list(islice(mixed.shuffle(seed=0).pack(64, best_fit=True).batch(4), 500))


@pytest.mark.parametrize("layout", ["documents", "boundaries", "masked"])
def test_a_batch_without_a_label_is_logged(layout: str, caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    data = pipeline.ShardDataset.from_tokens(range(8), lengths=[1] * 4 + [4], epochs=1)
    if layout == "boundaries":
        stream = data.pack(4, boundaries=True)
    elif layout == "masked":
        stream = data.map_documents(lambda ids, mask: (ids, ids > 9), same_length=True).pack(4)
    else:
        stream = data.documents()
    with caplog.at_level(logging.WARNING, logger="pipeline"):
        batch = next(iter(stream.batch(1)))
    assert batch["valid_tokens"] == 0
    assert "a batch has no label (valid_tokens is 0)" in caplog.text


@pytest.mark.parametrize(("tokens", "epochs", "shift"), [(1, 1, 1), (3, 2, 7)])
def test_data_without_a_label_is_refused_with_its_size(tokens: int, epochs: int, shift: int) -> None:
    data = pipeline.ShardDataset.from_tokens(range(tokens), lengths=[tokens], epochs=epochs)
    said = f"'memory' holds {tokens} tokens, epochs={epochs}, and labels are {shift} tokens ahead; give more input"
    with pytest.raises(ConfigError, match=said):
        len(data.pack(4, shift=shift))


# A row or a batch that is larger than the data is told once, with both numbers.


def data(tokens: int, epochs: int | None = None) -> Stream:
    return pipeline.ShardDataset.from_tokens(range(tokens), lengths=[tokens // 2] * 2, epochs=epochs)


def mixed(tokens: int) -> Stream:
    return pipeline.mix({"web": data(4000), "wiki": data(tokens)}, {"web": 3, "wiki": 1})


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        (
            lambda: data(420).pack(20).batch(48),
            "the data holds 420 tokens, .* takes 960, 2.29 times",
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
            "source 'wiki' holds 100 tokens, .* takes 120, 1.20 times",
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
