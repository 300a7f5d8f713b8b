"""Documents are cut into shards of balanced sizes, in order, each of one source."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.shards.shard_plan import lay_out


@pytest.mark.parametrize("documents", [999, 1_000, 1_001, 1_499, 1_501])
def test_no_shard_is_a_runt(documents: int) -> None:
    lengths = np.full(documents, 7, dtype=np.int64)
    sizes = [shard.last - shard.first for shard in lay_out(lengths, "train", 700)]
    assert len(sizes) == round(documents * 7 / 700)
    assert max(sizes) - min(sizes) <= 1


def test_documents_larger_than_a_shard_get_one_each() -> None:
    shards = lay_out(np.array([1_000, 1_000, 1_000]), "val", 100)
    assert [(shard.first, shard.last) for shard in shards] == [(0, 1), (1, 2), (2, 3)]
    assert shards[0].name == "val-000000.tar"


@pytest.mark.parametrize(("documents", "shards"), [(10, 1), (3_000, 3), (100_000, 16)])
def test_a_small_dataset_is_cut_to_shuffle_well(documents: int, shards: int) -> None:
    assert len(lay_out(np.full(documents, 100), "train", None)) == shards


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 300), min_size=1, max_size=30)), max_size=8),
    st.integers(1, 2_000),
)
def test_shards_of_sources_hold_each_document_once(runs: list[tuple[str, list[int]]], tokens: int) -> None:
    lengths = np.array([length for _, held in runs for length in held], np.int64)
    names = [name for name, held in runs for _ in held]
    shards = lay_out(lengths, "train", tokens, [(name, len(held)) for name, held in runs])
    assert [k for shard in shards for k in range(shard.first, shard.last)] == list(range(len(lengths)))
    for shard in shards:
        assert shard.first < shard.last
        assert set(names[shard.first : shard.last]) == {shard.source}
