from __future__ import annotations

import itertools
import re
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.errors import ConfigError
from pipeline.stream.batch.batch_keys import KEYS
from pipeline.stream.batch.collate import IGNORE, DocumentCollator
from pipeline.stream.batch.rows import DocumentRows
from tests.helpers.shard_samples import make_documents, write_dataset, write_named
from tests.stream.order_oracle import Options, Stream
from tests.stream.order_samples import global_rows, numbered, written


def expected_rows(oracle: Stream, seq_len: int, shift: int, epochs: int) -> list[list[tuple[int, int]]]:
    """Every sequence as (token, number of its document in the stream) pairs, labels' tokens included, by loops."""
    documents = [document for epoch in range(epochs) for document in oracle.epoch_documents(epoch)]
    pairs = [(token, number) for number, document in enumerate(documents) for token in document]
    begins = [oracle.stream_sequence(i) * seq_len for i in range(oracle.count() or 0)]
    return [pairs[begin : begin + seq_len + shift] for begin in begins]


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(2, 12), st.sampled_from([None, 0, 1]), st.sampled_from([None, 1, 3, 5]))
def test_every_row_has_a_label(data: st.DataObject, seq_len: int, seed: int | None, lanes: int | None) -> None:
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(lambda sizes: sum(sizes) > 1))
    epochs, shift = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2, 3, 7, "divisors"]))
    labels = "next" if shift != 1 else data.draw(st.sampled_from(["next", "same"]))
    stride, kind = data.draw(st.integers(1, seq_len)), data.draw(st.sampled_from(["pack", "filter", "best_fit"]))
    stream = pipeline.ShardDataset.from_tokens(np.arange(sum(lengths)), lengths=lengths, epochs=epochs)
    if seed is not None:
        stream = stream.shuffle(seed=seed, lanes=lanes)
    if kind == "filter":
        stream = stream.filter(lambda ids: len(ids) != 3)
    if kind == "best_fit":
        stream = stream.pack(seq_len, shift=shift, labels=labels, best_fit=True)
    else:
        stream = stream.pack(seq_len, stride=stride, shift=shift, labels=labels)
    lag = shift if isinstance(shift, int) else max(d for d in range(1, seq_len) if seq_len % d == 0)
    if kind != "filter" and sum(lengths) * epochs <= lag:
        with pytest.raises(ConfigError, match=r"too short for a label|has a label"):
            list(stream)
        return
    # Documents that share a row may have a label together.
    may_lack = kind == "filter" or (kind == "best_fit" and max(lengths) <= lag)
    try:
        counts = [row["valid_tokens"] for row in stream]
    except ConfigError as error:  # what the filter keeps is too little for a label
        if may_lack and re.search("label|no document was kept", str(error)):
            return
        raise
    assert all(counts)
    assert kind != "pack" or len(stream) == len(counts)


def test_each_key_of_a_batch_is_declared_and_has_a_type(tmp_path: Path) -> None:
    named = write_named(tmp_path / "named", [(name, make_documents(9)) for name in ("a", "b")])
    data = pipeline.ShardDataset.from_tokens(np.arange(40, dtype=np.uint16), lengths=[7, 13, 20], epochs=1)
    streams = [
        data.pack(8, boundaries=True, pad_to_multiple_of=4).batch(2, dtype="stored"),
        data.pack(8, shift="divisors").batch(2),
        data.documents().batch(2),
        pipeline.mix({"all": data}, {"all": 1}, stopping_strategy="first_exhausted").pack(8, source=True).batch(2),
        pipeline.ShardDataset(named, epochs=1).pack(8, boundaries=True, source=True, document_ids=True).batch(2),
    ]
    given = {key for stream in streams for batch in stream for key in batch}
    typed = pipeline.PackedBatch.__annotations__ | pipeline.DocumentBatch.__annotations__
    assert given == KEYS.keys() == typed.keys()


def test_a_row_without_a_label_leaves_the_other_rows_where_they_are() -> None:
    def rows(epochs: int | None, count: int) -> list[int]:
        stream = pipeline.ShardDataset.from_tokens(range(9), epochs=epochs).shuffle(lanes=3).pack(4, stride=2, shift=2)
        return [row["input_ids"][0].item() for row in islice(stream, count)]

    assert (rows(None, 5), rows(1, 9)) == ([0, 4, 8, 2, 6], [0, 4, 6, 2])  # of token 8, no label exists


@settings(max_examples=50)
@given(
    sizes=st.lists(st.lists(st.integers(0, 14), max_size=8), min_size=1, max_size=4).filter(
        lambda s: sum(map(sum, s)) > 2  # labels at the largest shift
    ),
    seq_len=st.integers(1, 9),
    shift=st.integers(1, 4),
    same=st.booleans(),
    batch=st.integers(1, 4),
    workers_share=st.booleans(),
    extent_bytes=st.sampled_from([None, 8]),
)
def test_boundaries_positions_and_masks_agree_with_the_documents(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[list[int]],
    seq_len: int,
    shift: int,
    same: bool,
    batch: int,
    workers_share: bool,
    extent_bytes: int | None,
) -> None:
    shift = 1 if same else shift
    folder = tmp_path_factory.mktemp("boundaries") / "data"
    directory, source = written(
        folder, numbered(sizes), extent_bytes=extent_bytes
    )  # of 8 bytes: rows in several windows
    window, lanes = 1, 3
    stream = pipeline.ShardDataset(directory, epochs=2).shuffle(seed=3, window=window, lanes=lanes)
    stream = stream.pack(seq_len, shift=shift, boundaries=True, labels="same" if same else "next").batch(batch)
    ranks = 2 if workers_share else 1  # two ranks do not divide three lanes
    shares = [[(b, row) for b in stream.shard(r, ranks) for row in range(batch)] for r in range(ranks)]
    options = Options(seq_len=seq_len, shift=shift, seed=3, window=window, lanes=lanes, epochs=2)
    flat = global_rows(shares, batch, lanes, end=Stream(source, options).count())
    expected = expected_rows(Stream(source, options), seq_len, shift, 2)
    for number, (b, row) in enumerate(flat):
        tokens = expected[number] if number < len(expected) else []
        inputs = tokens[:seq_len]
        starts = [p for p in range(seq_len) if p == 0 or (0 < p < len(inputs) and inputs[p][1] != inputs[p - 1][1])]
        starts += [len(inputs)] if 0 < len(inputs) < seq_len else []
        assert b["input_ids"][row].tolist() == [t for t, _ in inputs] + [0] * (seq_len - len(inputs))
        cuts = [c - row * seq_len for c in b["cu_seqlens"].tolist() if row * seq_len <= c < (row + 1) * seq_len]
        assert cuts == starts
        begin = [max(s for s in starts if s <= p) for p in range(seq_len)]
        assert b["position_ids"][row].tolist() == [p - s for p, s in enumerate(begin)]
        for p in range(seq_len):
            if same:
                counts = p < len(inputs) and (p == 0 or inputs[p][1] == inputs[p - 1][1])
                label = inputs[p][0] if counts else IGNORE
            else:
                counts = p + shift < len(tokens) and tokens[p + shift][1] == tokens[p][1]
                label = tokens[p + shift][0] if counts else IGNORE
            assert b["labels"][row, p] == label
    for b, _ in flat:
        cuts = b["cu_seqlens"]
        assert cuts.dtype == torch.int32
        assert cuts[0] == 0
        assert cuts[-1] == b["input_ids"].numel()
        assert int(cuts.diff().max()) == b["max_seqlen"]
        assert int((b["labels"][:, same:] != IGNORE).sum()) == b["valid_tokens"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("batches") / "data"
    shards = [
        [np.arange(1 + 100 * s + 10 * d, 8 + 100 * s + 10 * d + d, dtype="<u2") for d in range(6)] for s in range(3)
    ]
    write_dataset(directory, [*shards, []])
    return directory


def test_labels_are_the_tokens_shift_ahead_or_the_inputs(dataset: Path) -> None:
    for shift in (1, 3):
        plain = next(iter(pipeline.ShardDataset(dataset).pack(8, shift=shift).batch(2)))
        whole = next(iter(pipeline.ShardDataset(dataset).pack(16 + shift).batch(1)))["input_ids"][0]
        assert plain["input_ids"].flatten().tolist() == whole[:16].tolist()
        assert plain["labels"].flatten().tolist() == whole[shift : 16 + shift].tolist()
        assert plain["valid_tokens"] == 16
    same = next(iter(pipeline.ShardDataset(dataset).pack(8, labels="same").batch(2)))
    assert torch.equal(same["input_ids"], same["labels"])
    assert same["valid_tokens"] == 14
    rows = [s["input_ids"].tolist() for s in islice(pipeline.ShardDataset(dataset).pack(8, stride=3), 5)]
    assert all(a[3:] == b[:5] for a, b in pairwise(rows))


@settings(max_examples=30)
@given(
    seq_len=st.integers(1, 20),
    shift=st.integers(1, 5) | st.just("same"),
    boundaries=st.booleans(),
    batch=st.integers(1, 5),
    epochs=st.integers(1, 3),
)
def test_stored_width_holds_the_same_ids_and_lists_what_to_mask(
    dataset: Path, seq_len: int, shift: Any, boundaries: bool, batch: int, epochs: int
) -> None:
    source = pipeline.ShardDataset(dataset, epochs=epochs).shuffle(lanes=2, window=1)
    options = {"labels": "same"} if shift == "same" else {"shift": shift}
    packed = source.pack(seq_len, boundaries=boundaries, **options)
    for wide, narrow in zip(packed.batch(batch), packed.batch(batch, dtype="stored"), strict=True):
        assert narrow["input_ids"].dtype == torch.uint16
        labels = narrow["labels"].to(torch.int64)
        if "ignored" in narrow:
            labels.view(-1)[narrow["ignored"]] = IGNORE
        assert torch.equal(labels, wide["labels"])
        assert torch.equal(narrow["input_ids"].to(torch.int64), wide["input_ids"])
        assert narrow["valid_tokens"] == wide["valid_tokens"]


@pytest.mark.parametrize("options", [{}, {"shift": 3}, {"labels": "same"}, {"best_fit": True}])
def test_labels_of_padding_are_end_of_text_in_stored_width(options: dict[str, Any]) -> None:
    tokens = np.full(50, 7, np.uint16)
    data = pipeline.ShardDataset.from_tokens(tokens, lengths=[9, 7, 34], eos_id=5, epochs=1)
    padded = 0
    for batch in data.pack(16, **options).batch(3, dtype="stored"):
        ignored = batch.get("ignored", torch.zeros(0, dtype=torch.int64))
        assert set(batch["labels"].view(torch.int16).reshape(-1)[ignored].tolist()) <= {5}
        padded += len(ignored)
    assert padded


def test_a_rank_without_rows_gets_a_batch_that_counts_nothing(dataset: Path) -> None:
    total = sum(1 for _ in pipeline.ShardDataset(dataset, epochs=1).pack(8))
    world_size = total + 2
    batches = [
        next(iter(pipeline.ShardDataset(dataset, epochs=1).pack(8).shard(r, world_size).batch(1)))
        for r in range(world_size)
    ]
    without = [b for b in batches if not b["valid_tokens"]]
    assert len(without) == 2
    assert sum(b["valid_tokens"] for b in batches) == sum(
        b["valid_tokens"] for b in pipeline.ShardDataset(dataset, epochs=1).pack(8).batch(1)
    )
    assert all((b["labels"] == IGNORE).all() and (b["input_ids"] == 0).all() for b in without)


def test_documents_are_whole_padded_and_masked(dataset: Path) -> None:
    documents = [s["input_ids"].tolist() for s in pipeline.ShardDataset(dataset, epochs=1).documents()]
    assert documents == [
        list(range(1 + 100 * s + 10 * d, 8 + 100 * s + 10 * d + d)) for s in range(3) for d in range(6)
    ]
    batch = next(iter(pipeline.ShardDataset(dataset).documents(9, pad_to_multiple_of=4).batch(4)))
    assert batch["input_ids"].shape == (4, 12)
    for row, document in enumerate(documents[:4]):
        cut = document[:9]
        assert batch["input_ids"][row].tolist() == cut + [0] * (12 - len(cut))
        assert batch["labels"][row].tolist() == cut[1:] + [IGNORE] * (13 - len(cut))
        assert batch["attention_mask"][row].tolist() == [1] * len(cut) + [0] * (12 - len(cut))
    assert batch["valid_tokens"] == int((batch["labels"] != IGNORE).sum())


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 9), max_size=6),
    missing=st.integers(0, 2),
    multiple=st.integers(1, 5),
    most=st.none() | st.integers(1, 8),
    same=st.booleans(),
    dtype=st.sampled_from(["<u2", "<u4", "|u1", "<i8"]),
)
def test_rows_of_documents_are_padded_by_the_definition(
    lengths: list[int], missing: int, multiple: int, most: int | None, same: bool, dtype: str
) -> None:
    read = [np.arange(1 + 10 * n, 1 + 10 * n + count).astype(dtype) for n, count in enumerate(lengths)]
    collate = DocumentCollator(
        size=len(lengths) + missing, max_length=most, pad_to_multiple_of=multiple, eos_id=77, same_labels=same
    )
    batch = collate(DocumentRows(read), 0)
    documents = [d[:most].tolist() for d in read] + [[]] * missing
    width = max(1, -(-max(map(len, documents), default=0) // multiple)) * multiple
    shifted = documents if same else [d[1:] for d in documents]
    assert batch["input_ids"].tolist() == [d + [77] * (width - len(d)) for d in documents]
    assert batch["labels"].tolist() == [d + [IGNORE] * (width - len(d)) for d in shifted]
    assert batch["attention_mask"].tolist() == [[1] * len(d) + [0] * (width - len(d)) for d in documents]
    assert batch["valid_tokens"] == sum(max(0, len(d) - 1) for d in documents)


def test_batches_are_fresh_and_writing_into_them_changes_nothing(dataset: Path) -> None:
    stream = pipeline.ShardDataset(dataset).shuffle().pack(8).batch(2)
    first = next(iter(stream))
    copy = first["input_ids"].clone()
    first["input_ids"].zero_()
    assert torch.equal(next(iter(stream))["input_ids"], copy)


def test_samples_of_other_shapes_keys_or_kinds_are_refused_not_dropped(dataset: Path) -> None:
    source = pipeline.ShardDataset(dataset).pack(8)
    for change, message in (
        (lambda n: {"x": np.zeros(2 + n % 2)}, r"'x' has \(2,\) and \(3,\)"),
        (lambda n: {"x": 1, **({"y": 3} if n % 2 else {})}, "only some have 'y'"),
        (lambda n: {"x": 1, **({} if n % 2 else {"y": 3})}, "only some have 'y'"),
        (lambda n: None, "gave a NoneType"),
        (lambda n: {"x": np.array("a")}, "'x' is an array of <U1, which torch does not have"),
    ):
        count = itertools.count()
        with pytest.raises(ConfigError, match=message):
            next(iter(source.map(lambda sample, change=change, count=count: change(next(count))).batch(2)))


@pytest.mark.parametrize("options", [{}, {"shift": 3}, {"labels": "same"}, {"shift": "divisors"}])
@pytest.mark.parametrize("last", ["pad", "drop"])
def test_mapped_samples_make_the_batches_that_they_make_unmapped(
    dataset: Path, options: dict[str, Any], last: str
) -> None:
    source = pipeline.ShardDataset(dataset, epochs=1).shuffle(lanes=2).pack(16, boundaries=True, **options)
    for whole, joined in zip(source.batch(3, last=last), source.map(dict).batch(3, last=last), strict=True):
        assert whole.keys() == joined.keys()
        for key, value in whole.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(joined[key])), key


def test_stored_width_is_refused_for_mapped_samples_and_for_documents(dataset: Path) -> None:
    source = pipeline.ShardDataset(dataset)
    with pytest.raises(ConfigError, match=r"\.batch\(\), or remove dtype='stored'"):
        source.pack(8).map(dict).batch(1, dtype="stored")
    with pytest.raises(ConfigError, match=r"remove it after \.documents\(\)"):
        source.documents().batch(2, dtype="stored")


def test_tensors_of_any_dtype_are_stacked_as_they_are(dataset: Path) -> None:
    def embed(sample: dict[str, Any]) -> dict[str, Any]:
        found = sample["input_ids"].to(torch.bfloat16)
        return {**sample, "x": found / 3, "sum": found.sum(), "half": found[:2].to(torch.float16)}

    rows = list(islice(pipeline.ShardDataset(dataset).pack(8).map(embed), 3))
    batch = next(iter(pipeline.ShardDataset(dataset).pack(8).map(embed).batch(3)))
    assert batch["x"].dtype == batch["sum"].dtype == torch.bfloat16
    for key in ("x", "sum", "half"):
        assert torch.equal(batch[key], torch.stack([row[key] for row in rows]))
    with pytest.raises(ConfigError, match=r"'x' .*torch\.bfloat16.*remove \.numpy"):
        next(iter(pipeline.ShardDataset(dataset).pack(8).numpy().map(as_bfloat16).batch(2)))


def as_bfloat16(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": torch.as_tensor(sample["input_ids"]).to(torch.bfloat16)}


def test_arrays_of_bfloat16_as_jax_makes_them_become_tensors(dataset: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    source = pipeline.ShardDataset(dataset).pack(8)
    arrays = source.map(lambda sample: {"x": sample["input_ids"].numpy().astype(ml_dtypes.bfloat16)}).batch(2)
    assert torch.equal(next(iter(arrays))["x"], next(iter(source.batch(2)))["input_ids"].to(torch.bfloat16))


def test_a_row_of_padding_and_a_document_without_tokens_are_decoded_as_no_text() -> None:
    stream = pipeline.ShardDataset.from_texts(["to be"], "bytes", epochs=1).documents().batch(2)
    assert [stream.decode(batch) for batch in stream] == [["to be</s>", ""]]


def test_ids_alone_are_decoded_without_marks_and_other_values_are_refused() -> None:
    stream = pipeline.ShardDataset.from_texts(["to be", "or not"], "bytes").pack(6).batch(2)
    ids = next(iter(stream))["input_ids"]
    for value in (ids, ids.numpy(), ids.tolist(), {"input_ids": ids}):
        assert stream.decode(value) == ["to be</s>", "or not"]
    assert stream.decode(ids[1]) == ["or not"]
    for wrong in ([{"input_ids": ids}], [[1], [2, 3]], "text", ids.float(), {}):
        with pytest.raises(ConfigError, match=r"decode needs a batch .* or their input_ids, got"):
            stream.decode(wrong)
