"""A sequence length that grows: rows of the longest length, cut into shorter ones, in one order with one position."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.errors import ConfigError
from tests.stream.test_context_parallel import counted

EOS = 7  # no token of the data
LONGEST = 24
LENGTHS = [3, 4, 6, 8, 12, 24]


def data(sizes: list[int], epochs: int | None = 1) -> Any:
    tokens = np.arange(8, 8 + sum(sizes), dtype=np.uint16)
    return pipeline.ShardDataset.from_tokens(tokens, lengths=sizes, eos_id=EOS, epochs=epochs)


stages = st.lists(
    st.tuples(st.sampled_from(LENGTHS), st.integers(0, 3), st.sampled_from([(1, 4), (2, 2), (4, 1), (2, 1), (1, 1)])),
    min_size=1,
    max_size=5,
)


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=20).filter(lambda s: sum(s) > 2), plan=stages)
def test_every_token_is_an_input_once_over_any_plan_of_lengths(
    sizes: list[int], plan: list[tuple[int, int, tuple[int, int]]]
) -> None:
    rows = data(sizes).shuffle(seed=3, lanes=5).pack(LONGEST)
    count = len(rows)
    read: list[int] = []
    pairs: list[tuple[int, int]] = []
    state = None
    for number, (length, steps, (ranks, size)) in enumerate(plan, 1):
        saved = state
        for rank in range(ranks):
            stream = rows.batch(size, cut=length).shard(rank, ranks)
            if state is not None:
                stream.load_state_dict(state)
                if stream.state_dict()["sequence_index"] >= count:  # the pass is read
                    return check(read, pairs, sizes)
            for batch in islice(stream, steps if number < len(plan) else None):
                assert batch["input_ids"].shape == (size * LONGEST // length, length)
                ids, labels = batch["input_ids"].reshape(-1).tolist(), batch["labels"].reshape(-1).tolist()
                read += [token for token in ids if token != EOS]
                pairs += [(token, label) for token, label in zip(ids, labels, strict=True) if label != -100]
            saved = json.loads(json.dumps(stream.state_dict()))
        state = saved
    check(read, pairs, sizes)


def check(read: list[int], pairs: list[tuple[int, int]], sizes: list[int]) -> None:
    """Assert that every token was read once but a last one without a label, and that labels are those of the longest rows."""
    whole = list(data(sizes).shuffle(seed=3, lanes=5).pack(LONGEST))
    expected = [int(token) for sample in whole for token in sample["input_ids"] if token != EOS]
    assert sorted(read) == sorted(expected)
    assert len(set(read)) == len(read) >= sum(sizes) - 1
    rows = ((sample["input_ids"].tolist(), sample["labels"].tolist()) for sample in whole)
    labelled = [pair for row in rows for pair in zip(*row, strict=True) if pair[1] != -100]
    assert sorted(pairs) == sorted(labelled)


@settings(max_examples=40)
@given(
    length=st.sampled_from(LENGTHS),
    boundaries=st.booleans(),
    same=st.booleans(),
    stored=st.booleans(),
    masked=st.booleans(),
)
def test_a_row_that_is_cut_is_a_batch_of_the_shorter_length(
    length: int, boundaries: bool, same: bool, stored: bool, masked: bool
) -> None:
    documents = data([5, 30, 1, 44, 17, 2])
    if masked:
        documents = documents.map_documents(lambda ids, mask: (ids, ids % 3 > 0), same_length=True)
    options: dict[str, Any] = {"boundaries": boundaries, "labels": "same" if same else "next", "document_ids": True}
    dtype = "stored" if stored else "int64"
    # Without shuffling and in one lane, rows of any length follow one another in one order.
    long = list(documents.pack(LONGEST, **options).batch(1, cut=length, dtype=dtype))
    short = list(documents.pack(length, **options).batch(LONGEST // length, dtype=dtype))
    for cut, expected in zip(long, short, strict=False):
        assert cut["input_ids"].tolist() == expected["input_ids"].tolist()
        assert counted(cut).tolist() == counted(expected).tolist()
        for key in ("valid_tokens", "position_ids", "document_ids", "cu_seqlens", "max_seqlen"):
            assert np.array_equal(cut.get(key, 0), expected.get(key, 0)), key
    assert len(long) - len(short) in (0, 1)


def test_each_row_that_is_cut_names_its_source() -> None:
    other = pipeline.ShardDataset.from_tokens(np.arange(500, 900, dtype=np.uint16), lengths=[80] * 5, eos_id=EOS)
    indexed = pipeline.mix({"a": data([40] * 9, None), "b": other}, weights={"a": 1, "b": 1})
    for mix in (indexed, indexed.filter(len, name="all")):
        rows = mix.shuffle(seed=1).pack(LONGEST, source=True)
        for whole, cut in zip(islice(rows.batch(4), 9), rows.batch(4, cut=8), strict=False):
            assert cut["input_ids"].tolist() == whole["input_ids"].reshape(12, 8).tolist()
            assert cut["source"].tolist() == whole["source"].repeat_interleave(3).tolist()
            assert cut["source"].tolist() == [int(row[0] >= 500) for row in cut["input_ids"]]


def test_peers_share_the_rows_that_are_cut_or_slices_of_each() -> None:
    rows = data([100, 60, 90]).shuffle(seed=2).pack(LONGEST, boundaries=True)
    whole = next(iter(rows.batch(2, cut=6)))["input_ids"]
    parts = [next(iter(rows.batch(2, cut=6).shard(0, 1, context=(peer, 2), slices="rows"))) for peer in range(2)]
    joined = torch.cat([part["input_ids"].reshape(2, 2, 6) for part in parts], 1).reshape(8, 6)
    assert joined.tolist() == whole.tolist()
    assert all(part["cu_seqlens"][-1] == 24 for part in parts)
    same = data([100, 60, 90]).pack(LONGEST, labels="same").batch(2, cut=6).shard(0, 1, context=(0, 2), slices="rows")
    assert next(iter(same.loader(keys="hf"))).keys() == {"input_ids", "labels"}
    halves = [next(iter(rows.batch(2, cut=6).shard(0, 1, context=(peer, 2), slices="contiguous"))) for peer in range(2)]
    assert torch.cat([half["input_ids"] for half in halves], 1).tolist() == whole.tolist()


@pytest.mark.parametrize(
    ("make", "cure"),
    [
        (lambda: data([90]).pack(24).batch(1, cut=7), "cut=7 .*rows of 24 tokens.*give .pack.. a multiple of 7"),
        (lambda: data([90]).pack(24).batch(1, cut=0), "cut must be .*got 0"),
        (lambda: data([90]).documents().batch(1, cut=8), "cut=8 .*use .pack"),
        (lambda: data([90]).pack(24, best_fit=True).batch(1, cut=8), "remove best_fit=True"),
        (lambda: data([90]).pack(24, shift="divisors").batch(1, cut=8), "set shift=1"),
        (lambda: data([90]).pack(24).map(dict).batch(1, cut=8), "after .batch"),
        (
            lambda: data([90]).pack(24).batch(1, cut=8).shard(context=(0, 2), slices="rows"),
            "2 context .*cannot share 3 rows",
        ),
        (lambda: data([90]).pack(24).batch(1).shard(context=(0, 2), slices="rows"), "by .batch.size, cut=...., before"),
        (lambda: data([90]).pack(24).shard(context=(0, 2)).batch(1, cut=6), "seq_len=6.*multiple of 4"),
    ],
)
def test_rows_that_cannot_be_cut_are_refused_with_the_cure(make: Any, cure: str) -> None:
    with pytest.raises(ConfigError, match=cure):
        make()
