"""Documents are assigned to training, validation and quotas by what is drawn for their content."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.builder.stages.split import beyond_quota, in_validation


def hashes(count: int) -> np.ndarray:
    return np.random.RandomState(0).randint(0, 1 << 63, count).astype(np.uint64) * np.uint64(2)


def test_validation_takes_its_share_whatever_the_order() -> None:
    drawn = hashes(20_000)
    chosen = in_validation(drawn, 0.05)
    assert 0.045 < chosen.mean() < 0.055
    order = np.random.RandomState(1).permutation(len(drawn))
    np.testing.assert_array_equal(in_validation(drawn[order], 0.05), chosen[order])


def test_a_larger_fraction_holds_all_of_a_smaller_one() -> None:
    drawn = hashes(5_000)
    assert not (in_validation(drawn, 0.01) & ~in_validation(drawn, 0.02)).any()


@pytest.mark.parametrize(("fraction", "share"), [(0.0, 0.0), (1 - 1e-16, 1.0)])
def test_the_ends_of_the_range_take_nothing_and_everything(fraction: float, share: float) -> None:
    drawn = np.array([0, 1, 1 << 63, (1 << 64) - 4096], dtype=np.uint64)
    assert in_validation(drawn, fraction).mean() == share


@given(
    documents=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=40),
    quota=st.integers(0, 200),
)
def test_documents_are_taken_in_the_order_of_their_hashes_until_one_does_not_fit(
    documents: list[tuple[int, int]], quota: int
) -> None:
    kinds, lengths = np.array(documents, np.int64).T
    drawn = np.array([5, 6, 1 << 48, 3 << 62], np.uint64)[kinds]  # many alike
    beyond = beyond_quota(drawn, lengths, quota)
    left = quota
    for at in sorted(range(len(documents)), key=lambda k: (int(drawn[k]), k)):
        left -= int(lengths[at])
        assert beyond[at] == (left < 0)
