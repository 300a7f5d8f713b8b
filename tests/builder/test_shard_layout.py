from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.builder.stages.write import lay_out


@given(st.lists(st.integers(0, 500), max_size=200), st.integers(1, 2_000))
def test_shards_hold_each_document_once_in_order_and_none_is_empty(lengths: list[int], tokens: int) -> None:
    shards = lay_out(np.array(lengths, dtype=np.int64), "train", tokens)
    held = [k for shard in shards for k in range(shard.first, shard.last)]
    assert held == list(range(len(lengths)))
    assert all(shard.first < shard.last for shard in shards)
    assert [shard.number for shard in shards] == list(range(len(shards)))


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


def test_nothing_is_no_shard() -> None:
    assert lay_out(np.zeros(0, np.int64), "train", None) == []
