"""Filters and best-fit packing of shards: nothing cut that fits, nothing lost or doubled, resumed from coordinates."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.errors import ConfigError
from pipeline.stream.windows.best_fit import best_fit_decreasing
from tests.helpers.shard_samples import EOS, make_documents, write_dataset
from tests.stream.sequential_oracle import plain_best_fit

SHARDS = [make_documents(n, seed=n, longest=90) for n in (130, 1, 75, 240)]
DOCUMENTS = [tuple(document.tolist()) for shard in SHARDS for document in shard]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("best_fit") / "data"
    write_dataset(directory, SHARDS)
    return directory


def make(dataset: Path, **options: Any) -> pipeline.Stream:
    return pipeline.ShardDataset(dataset, **options).shuffle(seed=1, lanes=6)


def is_long(document: Any) -> bool:
    return len(document) > 20


def ends_odd(document: Any) -> bool:
    return bool(document[-2] % 2)


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(40, 200))
def test_bins_are_those_of_the_plain_definition(sizes: list[int], capacity: int) -> None:
    items, cuts = best_fit_decreasing(np.array(sizes, np.int64), capacity)
    found = [items[begin:end].tolist() for begin, end in pairwise(cuts.tolist())]
    assert found == plain_best_fit(sizes, capacity)
    assert all(sum(sizes[item] for item in items) <= capacity for items in found)


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_ids_of_any_width_are_packed(dtype: str) -> None:
    tokens = np.arange(1, 101).astype(dtype)
    stream = pipeline.ShardDataset.from_tokens(tokens, lengths=[30, 50, 20], epochs=1).pack(50, best_fit=True)
    assert [row["input_ids"].tolist() for row in stream] == [[*range(1, 31), *range(81, 101)], list(range(31, 81))]


def pieces(batch: dict[str, Any]) -> list[tuple[int, ...]]:
    """Return what lies between boundaries, row by row, without padding."""
    flat, cuts = batch["input_ids"].reshape(-1).tolist(), batch["cu_seqlens"].tolist()
    return [tuple(flat[begin:end]) for begin, end in pairwise(cuts)]


@pytest.mark.parametrize("lanes", [4, 12])
def test_no_document_that_fits_is_cut_and_each_comes_once_an_epoch(dataset: Path, lanes: int) -> None:
    stream = pipeline.ShardDataset(dataset, epochs=1).shuffle(seed=2, lanes=lanes)
    batches = list(stream.pack(100, best_fit=True, boundaries=True).batch(4))
    found = Counter(piece for batch in batches for piece in pieces(batch) if set(piece) != {EOS} or len(piece) == 1)
    expected = Counter(DOCUMENTS)
    # Padding of one token reads as an empty document, and an empty document as padding of one.
    del found[(EOS,)], expected[(EOS,)]
    assert found == expected


def test_long_documents_are_cut_in_full_sequences_with_true_labels(tmp_path: Path) -> None:
    long = np.append(np.arange(1, 251), EOS).astype("<u2")
    write_dataset(tmp_path / "data", [[long, np.array([7, 8, EOS], "<u2")]])
    rows = list(pipeline.ShardDataset(tmp_path / "data", epochs=1).pack(100, best_fit=True))
    assert [row["input_ids"].tolist()[:3] for row in rows] == [[1, 2, 3], [101, 102, 103], [201, 202, 203]]
    assert rows[0]["labels"].tolist() == list(range(2, 102))
    assert rows[1]["labels"].tolist() == list(range(102, 202))
    # The rest of it (51 tokens) and the short one share a sequence, then padding.
    assert rows[2]["input_ids"].tolist() == [*range(201, 251), EOS, 7, 8, EOS, *[EOS] * 46]
    assert rows[2]["labels"].tolist() == [*range(202, 251), EOS, 7, 8, EOS, *[-100] * 47]
    ahead = list(pipeline.ShardDataset(tmp_path / "data", epochs=1).pack(100, best_fit=True, shift=3))
    assert ahead[0]["labels"].tolist() == list(range(4, 104))


def test_best_fit_pads_less_than_three_percent(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    lengths = np.minimum(generator.lognormal(5.5, 1, size=4000).astype(int) + 1, 6000)
    documents = [np.append(generator.integers(1, 60_000, size=n), EOS).astype("<u2") for n in lengths]
    write_dataset(tmp_path / "data", [documents[:2000], documents[2000:]])
    stream = pipeline.ShardDataset(tmp_path / "data").shuffle(seed=0, lanes=2).pack(1024, best_fit=True)
    rows = [row["valid_tokens"] for row in islice(stream, 500)]
    assert sum(rows) > 0.97 * 500 * 1024


def test_filtered_epochs_hold_what_the_predicate_keeps(dataset: Path) -> None:
    stream = make(dataset, epochs=2).filter(is_long).documents()
    found = Counter(tuple(item["input_ids"].tolist()) for item in stream)
    assert found == Counter(document for document in DOCUMENTS for _ in range(2) if len(document) > 20)
    stats = stream.stats()
    assert stats["documents"] == 2 * len(DOCUMENTS)
    assert stats["rejected"] == 2 * sum(len(document) <= 20 for document in DOCUMENTS)


def test_without_shuffle_a_filter_leaves_the_order_of_the_files(dataset: Path) -> None:
    stream = pipeline.ShardDataset(dataset, epochs=1).filter(is_long)
    found = [tuple(item["input_ids"].tolist()) for item in stream.documents()]
    assert found == [document for document in DOCUMENTS if len(document) > 20]
    tokens = [token for document in found for token in document]
    rows = [token for row in stream.pack(32) for token in row["input_ids"].tolist()]
    assert rows == tokens[:-1] or rows[: len(tokens)] == tokens  # a last token alone has no label


def test_a_predicate_cannot_change_the_document(dataset: Path) -> None:
    def change(document: Any) -> bool:
        assert document.ndim == 1
        document[0] = 0
        return True

    with pytest.raises(ValueError, match="read-only"):
        next(iter(make(dataset).filter(change).pack(32)))


def test_filtered_and_best_fit_streams_resume_exactly(dataset: Path) -> None:
    pipeline.assert_resumes(lambda: make(dataset).filter(is_long).filter(ends_odd).documents().batch(2), items=4)
    pipeline.assert_resumes(lambda: make(dataset).pack(100, best_fit=True, boundaries=True).batch(3), steps=(1, 5))
    pipeline.assert_resumes(lambda: make(dataset, epochs=1).pack(300, best_fit=True).batch(6), steps=(4, 98))
    pipeline.assert_resumes(lambda: make(dataset, epochs=1).filter(is_long).pack(900).batch(6), steps=(2, 98))


def test_what_best_fit_and_filters_cannot_go_with_is_refused(dataset: Path) -> None:
    with pytest.raises(ConfigError, match="remove stride=10"):
        make(dataset).pack(64, stride=10, best_fit=True)
    with pytest.raises(ConfigError, match="bare dataset"):
        pipeline.mix({"a": pipeline.ShardDataset(dataset).filter(is_long)}, weights={"a": 1})
    with pytest.raises(ConfigError, match=r"sample.* needs to know in advance"):
        make(dataset).filter(is_long).sample(8)
    with pytest.raises(ConfigError, match="bucket needs to know lengths in advance"):
        make(dataset).filter(is_long).documents(bucket=8)
    with pytest.raises(ConfigError, match="filter needs a function, got int"):
        make(dataset).filter(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"\.filter\(\) comes before"):
        make(dataset).pack(8).filter(is_long)
