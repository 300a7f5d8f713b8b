"""Functions of documents before packing: any length and a loss mask, in every layout, resumed exactly."""

from __future__ import annotations

from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from tests.helpers.shard_samples import make_documents, write_dataset
from tests.helpers.text_samples import make_texts, write_texts

TOKENS = np.arange(10, 410, dtype=np.uint16)


def source(**options: Any) -> pipeline.Stream:
    return pipeline.ShardDataset.from_tokens(TOKENS, lengths=[10] * 40, **options)


def doubled(ids: Any, mask: Any) -> Any:
    """Each document twice, of which the first is a prompt: no label counts there."""
    assert mask is None
    return np.concatenate([ids, ids]), np.repeat([False, True], len(ids))


def marked(ids: Any, mask: Any) -> Any:
    """An id before and after."""
    return np.concatenate([[1], ids, [2]]), np.concatenate(
        [[0], np.ones(len(ids)) if mask is None else mask, [1]]
    ).astype(int)


def masked_labels(rows: Any) -> list[tuple[int, int]]:
    return [(int(i), int(t)) for row in rows for i, t in zip(row["input_ids"], row["labels"], strict=True)]


def test_documents_are_replaced_before_they_are_packed() -> None:
    rows = list(source(epochs=1).map_documents(doubled).map_documents(marked).pack(22))
    assert len(rows) == 40
    for n, row in enumerate(rows):
        document = TOKENS[10 * n : 10 * n + 10].tolist()
        assert row["input_ids"].tolist() == [1, *document, *document, 2]
        assert row["labels"].tolist() == [-100] * 10 + [*document, 2, -100]
        assert row["valid_tokens"] == 11


@pytest.mark.parametrize("layout", ["pack", "boundaries", "best_fit", "documents", "stored"])
def test_labels_of_masked_tokens_are_left_out_in_every_layout(layout: str) -> None:
    stream: Any = source(epochs=1).map_documents(doubled)
    for labels in ("next", "same"):
        if layout == "documents":
            batches = stream.documents(labels=labels).batch(4)
        else:
            options = {layout: True} if layout in ("boundaries", "best_fit") else {}
            dtype = "stored" if layout == "stored" else "int64"
            batches = stream.pack(40, labels=labels, **options).batch(4, dtype=dtype)
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


def test_text_is_mapped_too_and_the_stream_resumes(tmp_path: Path) -> None:
    files = [write_texts(tmp_path / f"{n}.jsonl", make_texts(40, n)) for n in range(3)]

    def texts() -> pipeline.Stream:
        data = pipeline.TextDataset(files, "bytes").shuffle(seed=1, lanes=8)
        return data.map_documents(doubled).map_documents(marked)

    pipeline.assert_resumes(lambda: texts().pack(48).batch(4), steps=(2,))
    pipeline.assert_resumes(lambda: texts().pack(300, best_fit=True).batch(2), steps=(1,))


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
        (
            lambda ids, mask: ids.reshape(2, 5),
            r"1-D array of token ids, .* got ndarray of shape \(2, 5\) and dtype uint16",
        ),
        (lambda ids, mask: ids / 2, "dtype float64"),
        (lambda ids, mask: [70_000], "returned the id 70000, which uint16 cannot hold"),
        (lambda ids, mask: [-1, 3], "returned the id -1"),
        (lambda ids, mask: (ids, [1, 0]), r"each of its 10 ids, got shape \(2,\)"),
        (lambda ids, mask: (ids, [0.5] * 10), "dtype float64"),
    ],
)
def test_what_is_no_document_is_refused_with_the_function(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"map_documents function bad .*{message}"):
        next(iter(source().map_documents(function, name="bad").pack(8)))


def test_ids_beyond_the_vocabulary_are_refused_unless_they_are_stated() -> None:
    texts = pipeline.ShardDataset.from_texts(["abcdefgh"] * 20, "bytes", epochs=1)
    beyond = texts.vocab_size

    def fill_in(ids: Any, mask: Any) -> Any:
        return np.append(ids[1:], beyond)

    for same_length in (False, True):
        mapped = texts.map_documents(fill_in, name="fill_in", same_length=same_length)
        with pytest.raises(ConfigError, match=rf"fill_in returned the id {beyond}, .* has {beyond} ids.*vocab_size="):
            next(iter(mapped.pack(9)))
        stated = texts.map_documents(fill_in, same_length=same_length, vocab_size=beyond + 1)
        assert stated.vocab_size == beyond + 1
        assert sum(beyond in row["input_ids"] for row in stated.pack(9)) == 20
    again = texts.map_documents(fill_in).map_documents(lambda ids, mask: ids[:-1])
    assert next(iter(again.pack(8)))["input_ids"].max() < beyond
    with pytest.raises(ConfigError, match=r"vocab_size must be .*got 0"):
        texts.map_documents(fill_in, vocab_size=0)


def test_a_function_may_drop_a_document_but_not_change_it_in_place() -> None:
    def change(ids: Any, mask: Any) -> Any:
        ids[0] = 0
        return ids

    with pytest.raises(ValueError, match="read-only"):
        next(iter(source().map_documents(change).pack(8)))
    some = source(epochs=1).map_documents(lambda ids, mask: ids if ids[0] % 20 == 10 else [])
    assert sum(row["valid_tokens"] for row in some.pack(8)) == 199
    with pytest.raises(ConfigError, match=r"no sequence .*has a label.* 40 too short"):
        next(iter(source().map_documents(lambda ids, mask: []).pack(8)))


def test_an_empty_document_has_a_mask_of_no_values() -> None:
    data = pipeline.ShardDataset.from_tokens([5, 6, 7], lengths=[1, 0, 2], epochs=1)
    for masks in (lambda ids: [id > 5 for id in ids.tolist()], lambda ids: ids > 5):
        (row,) = data.map_documents(lambda ids, mask, masks=masks: (ids, masks(ids)), name="above").pack(4)
        assert row["labels"].tolist() == [6, 7, -100, -100]


def to_first(ids: Any, mask: Any) -> Any:
    """Each token becomes the first of its document; no label counts in the first half."""
    return np.full(len(ids), ids[0] if len(ids) else 0), np.arange(len(ids)) >= len(ids) // 2


def expected(base: Any, labels: Any) -> tuple[Any, Any]:
    """Return what `to_first` makes of ids and labels of documents of ten tokens."""
    ids, told = base.numpy().copy(), labels.numpy().copy()
    first = (told - 10) // 10 * 10 + 10
    counted = (told != -100) & ((told - 10) % 10 >= 5)
    return (ids - 10) // 10 * 10 + 10, np.where(counted, first, -100)


LAYOUTS: dict[str, Any] = {
    "pack": lambda stream: stream.pack(16),
    "overlapping": lambda stream: stream.pack(16, stride=7, shift=3),
    "long": lambda stream: stream.pack(150, boundaries=True),
    "sample": lambda stream: stream.sample(16),
    "documents": lambda stream: stream.documents(),
    "buckets": lambda stream: stream.documents(8, bucket=4),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_functions_that_keep_lengths_leave_order_and_counts(layout: str) -> None:
    order = source().shuffle(seed=3) if layout == "sample" else source().shuffle(seed=3, lanes=4)

    def mapped() -> Any:
        return LAYOUTS[layout](order.map_documents(to_first, same_length=True)).batch(4)

    plain, changed = LAYOUTS[layout](order).batch(4).take(30), mapped().take(30)
    assert len(changed) == len(plain) == 30
    for one, other in zip(plain, changed, strict=True):
        ids, labels = expected(one["input_ids"], one["labels"])
        assert other["input_ids"].tolist() == ids.tolist()
        assert other["labels"].tolist() == labels.tolist()
        assert other["valid_tokens"] == int((labels != -100).sum())
        assert all(np.array_equal(one[key], other[key]) for key in one.keys() - {"input_ids", "labels", "valid_tokens"})
    pipeline.assert_resumes(mapped, steps=(2,))


def test_a_bounded_stream_of_mapped_documents_ends_where_it_did(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [make_documents(60, seed=n, longest=40) for n in range(2)])

    def rows(change: bool, **options: Any) -> list[Any]:
        stream: Any = pipeline.ShardDataset(tmp_path / "data", epochs=2).shuffle(seed=1)
        stream = stream.map_documents(lambda ids, mask: ids[::-1], same_length=True) if change else stream
        stream = stream.pack(32, boundaries=True).batch(4, dtype="stored")
        return list(DataLoader(stream, batch_size=None, **options) if options else stream)

    plain, changed = rows(False), rows(True)
    for one, other in zip(plain, changed, strict=True):
        assert one["cu_seqlens"].tolist() == other["cu_seqlens"].tolist()
        assert one["valid_tokens"] == other["valid_tokens"]
        cuts, before, after = (
            each.reshape(-1).tolist() for each in (one["cu_seqlens"], one["input_ids"], other["input_ids"])
        )
        for begin, end in pairwise(cuts):
            if begin % 32 and end % 32:  # a whole document
                assert after[begin:end] == before[begin:end][::-1]
    for one, other in zip(changed, rows(True, num_workers=2), strict=True):
        assert one["input_ids"].tolist() == other["input_ids"].tolist()


def test_a_mix_takes_functions_that_keep_lengths() -> None:
    mixed = pipeline.mix({"a": source(), "b": source()}, {"a": 1, "b": 3}).shuffle(seed=1)
    changed = mixed.map_documents(to_first, same_length=True).pack(16)
    for one, other in zip(islice(mixed.pack(16), 40), changed, strict=False):
        ids, labels = expected(one["input_ids"], one["labels"])
        assert (other["input_ids"].tolist(), other["labels"].tolist()) == (ids.tolist(), labels.tolist())


def test_a_function_that_breaks_its_promise_to_keep_lengths_is_named() -> None:
    for stream in (source(), source().filter(len)):
        with pytest.raises(ConfigError, match=r"double returned 20 ids .* of 10; .* same_length=True"):
            next(iter(stream.map_documents(doubled, name="double", same_length=True).pack(8)))
    stream = source().map_documents(to_first, same_length=True).pack(8)
    next(iter(stream))
    with pytest.raises(StateError, match="document_maps"):
        source().pack(8).load_state_dict(stream.state_dict())
    assert "same_length=True" in repr(stream)


def test_streams_that_need_counts_in_advance_refuse_it_with_the_cure() -> None:
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
