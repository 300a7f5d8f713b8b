"""Functions of documents before packing: any length and a loss mask, in every layout, resumed exactly."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.text_samples import make_texts, write_texts

TOKENS = np.arange(10, 410, dtype=np.uint16)


def source(**options: Any) -> pipeline.Stream:
    return pipeline.ShardDataset.from_tokens(TOKENS, lengths=[10] * 40, **options)


def doubled(ids: Any, mask: Any) -> Any:
    """Each document twice, of which the first is a prompt: no label counts there."""
    assert mask is None
    return np.concatenate([ids, ids]), np.repeat([False, True], len(ids))


def marked(ids: Any, mask: Any) -> Any:
    """An id before and behind."""
    return np.concatenate([[1], ids, [2]]), np.concatenate(
        [[0], np.ones(len(ids)) if mask is None else mask, [1]]
    ).astype(int)


def masked_labels(rows: Any) -> list[tuple[int, int]]:
    return [(int(i), int(t)) for row in rows for i, t in zip(row["input_ids"], row["labels"], strict=True)]


def test_documents_are_replaced_before_they_are_packed_and_masked_labels_count_nowhere() -> None:
    rows = list(source(epochs=1).map_documents(doubled).map_documents(marked).pack(22))
    assert len(rows) == 40
    for n, row in enumerate(rows):
        document = TOKENS[10 * n : 10 * n + 10].tolist()
        assert row["input_ids"].tolist() == [1, *document, *document, 2]
        assert row["labels"].tolist() == [-100] * 10 + [*document, 2, -100]
        assert row["valid_tokens"] == 11


@pytest.mark.parametrize("labels", ["next", "same"])
@pytest.mark.parametrize("layout", ["pack", "boundaries", "best_fit", "documents", "stored"])
def test_labels_of_masked_tokens_are_left_out_in_every_layout(layout: str, labels: str) -> None:
    stream: Any = source(epochs=1).map_documents(doubled)
    if layout == "documents":
        batches = stream.documents(labels=labels).batch(4)
    else:
        options = {"boundaries": {"boundaries": True}, "best_fit": {"best_fit": True}}.get(layout, {})
        batches = stream.pack(40, labels=labels, **options).batch(4, dtype="stored" if layout == "stored" else "int64")
    seen: list[int] = []
    for batch in batches:
        kept = batch["labels"].numpy().astype(np.int64).reshape(4, -1).copy()
        if layout == "stored":
            kept.reshape(-1)[batch["ignored"]] = -100
        first = 1 if labels == "same" else 0
        assert batch["valid_tokens"] == int((kept[:, first:] != -100).sum())
        seen += kept[kept != -100].tolist()
    # Of the second half of each document every token is a label once; packed, none but the last row's borders are lost.
    assert sorted(set(seen)) == TOKENS.tolist()
    assert len(seen) == len(set(seen))


def test_text_is_mapped_too_and_the_stream_resumes_on_other_ranks(tmp_path: Path) -> None:
    files = [write_texts(tmp_path / f"{n}.jsonl", make_texts(40, n)) for n in range(3)]

    def texts() -> pipeline.Stream:
        data = pipeline.TextDataset(files, "bytes").shuffle(1, lanes=8)
        return data.map_documents(doubled).map_documents(marked)

    pipeline.assert_resumes(lambda: texts().pack(48).batch(4), items=3, world_sizes=(2,))
    pipeline.assert_resumes(lambda: texts().pack(300, best_fit=True).batch(2), items=2, world_sizes=(2,))


def test_a_state_belongs_to_its_functions() -> None:
    stream = source().map_documents(doubled).pack(8)
    next(iter(stream))
    with pytest.raises(StateError, match=r"^document_maps was \['doubled#.*but is \['marked#"):
        source().map_documents(marked).pack(8).load_state_dict(stream.state_dict())
    named = source().map_documents(doubled, name="d").pack(8)
    source().map_documents(marked, name="d").pack(8).load_state_dict(named.state_dict())
    assert ".map_documents(doubled#" in repr(stream)
    with open(__file__, encoding="utf-8") as handle:
        message = r"map_documents .* reads .*\.map_documents\(\.\.\., name="
        with pytest.raises(ConfigError, match=message):
            source().map_documents(lambda ids, mask: handle and ids)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda ids, mask: ids.reshape(2, 5), r"1-D array of token ids, .* shape \(2, 5\)"),
        (lambda ids, mask: ids / 2, "dtype float64"),
        (lambda ids, mask: [70_000], "returned the id 70000, which uint16 cannot hold"),
        (lambda ids, mask: [-1, 3], "returned the id -1"),
        (lambda ids, mask: (ids, [1, 0]), r"each of its 10 ids, got shape \(2,\)"),
        (lambda ids, mask: (ids, [0.5] * 10), "dtype float64"),
    ],
)
def test_what_is_no_document_is_refused_naming_the_function_and_what_it_returned(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"map_documents function bad .*{message}"):
        next(iter(source().map_documents(function, name="bad").pack(8)))


def test_a_function_cannot_change_a_document_in_place_and_may_drop_all_of_it() -> None:
    def change(ids: Any, mask: Any) -> Any:
        ids[0] = 0
        return ids

    with pytest.raises(ValueError, match="read-only"):
        next(iter(source().map_documents(change).pack(8)))
    some = source(epochs=1).map_documents(lambda ids, mask: ids if ids[0] % 20 == 10 else [])
    assert sum(row["valid_tokens"] for row in some.pack(8)) == 199
    with pytest.raises(ConfigError, match="no document was kept of a whole epoch"):
        next(iter(source().map_documents(lambda ids, mask: []).pack(8)))


def test_streams_that_need_counts_in_advance_refuse_it_with_the_cure() -> None:
    mixed = pipeline.mix({"a": source()}, {"a": 1})
    with pytest.raises(ConfigError, match="build mapped shards"):
        mixed.map_documents(doubled)
    with pytest.raises(ConfigError, match=r"sample.* needs to know in advance"):
        source().map_documents(doubled).sample(8)
    with pytest.raises(ConfigError, match="bucket needs to know lengths in advance"):
        source().map_documents(doubled).documents(bucket=4)
    with pytest.raises(ConfigError, match=r"write it before \.map_documents"):
        source().map_documents(doubled).filter(len)
    with pytest.raises(ConfigError, match=r"\.map_documents\(\) comes before \.pack"):
        source().pack(8).map_documents(doubled)
    with pytest.raises(ConfigError, match="map_documents needs a function, got int"):
        source().map_documents(3)  # type: ignore[arg-type]
    assert len(list(islice(source().map_documents(doubled).pack(8), 99))) == 99
