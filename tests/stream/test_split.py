"""Documents are assigned to training, validation and quotas by what is drawn for their content."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.builder.stages.split import Survivors, beyond_quotas, in_validation, quota_bounds
from pipeline.errors import ConfigError


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


def stays(
    sources: np.ndarray,
    names: dict[str, int],
    quotas: dict[str, int],
    hashes: np.ndarray,
    lengths: np.ndarray,
    parts: int = 1,
) -> np.ndarray:
    """Return which documents stay, those of some parts at a time."""
    columns = sources, np.zeros_like(hashes), hashes, lengths
    batches = [Survivors(*some) for some in zip(*(np.array_split(column, parts) for column in columns), strict=True)]
    bounds = quota_bounds(lambda: batches, names, quotas)
    seen = np.cumsum([0, *(len(batch.sources) for batch in batches)]).tolist()
    return ~np.concatenate([beyond_quotas(batch, first, bounds) for batch, first in zip(batches, seen, strict=False)])


def test_a_source_stays_within_its_quota_and_a_larger_quota_holds_the_smaller() -> None:
    drawn, lengths = hashes(1_000), np.full(1_000, 10)
    sources = np.arange(1_000) % 2
    small, large = (stays(sources, {"web": 0, "wiki": 1}, {"web": n}, drawn, lengths) for n in (1_005, 3_000))
    assert lengths[small & (sources == 0)].sum() == 1_000
    assert small[sources == 1].all()
    assert not (small & ~large).any()


@given(
    documents=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=40),
    quota=st.integers(0, 200),
    parts=st.integers(1, 5),
)
def test_documents_are_taken_in_the_order_of_their_hashes_until_one_does_not_fit(
    documents: list[tuple[int, int, int]], quota: int, parts: int
) -> None:
    sources, kinds, lengths = np.array(documents, np.int64).T
    drawn = np.array([5, 6, 1 << 48, 3 << 62], np.uint64)[kinds]  # two in one bin, and many alike
    found = stays(sources, {"web": 0, "wiki": 1}, {"web": quota}, drawn, lengths, parts)
    left, open_ = quota, True
    for at in sorted(range(len(documents)), key=lambda k: (int(drawn[k]), k)):
        if sources[at] == 0:
            open_ = open_ and lengths[at] <= left
            left -= int(lengths[at])
        assert found[at] == (sources[at] == 1 or open_)


def test_a_quota_without_a_name_holds_for_every_source_without_its_own() -> None:
    drawn, lengths, sources = hashes(100), np.ones(100, int), np.arange(100) % 2
    found = stays(sources, {"a": 0, "b": 1}, {"": 10, "b": 20}, drawn, lengths)
    assert (found[sources == 0].sum(), found[sources == 1].sum()) == (10, 20)


def test_a_quota_for_a_source_that_is_not_there_offers_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'wiki'"):
        stays(np.zeros(1, int), {"wiki": 0}, {"wikki": 1}, hashes(1), np.ones(1, int))
