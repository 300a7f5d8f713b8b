"""Peers of context parallelism share each row: their slices joined are the row, with labels and positions."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError
from pipeline.stream.batch.collate import pad_documents

LENGTHS = [7, 13, 20, 1, 30, 9]
EOS = 99


def data(epochs: int | None = 1) -> Any:
    return pipeline.ShardDataset.from_tokens(np.arange(80, dtype=np.uint16), lengths=LENGTHS, eos_id=EOS, epochs=epochs)


def tokens_of(peer: int, size: int, slices: str, begins: list[int]) -> list[int]:
    """Return where the tokens of a peer are in a row, by the definition; ``begins`` is where its documents begin, and its end."""
    if slices != "documents":
        begins = [0, begins[-1]]
    mine: list[int] = []
    for begin, end in pairwise(begins):
        part = list(range(begin, end))
        pieces = size if slices == "contiguous" else 2 * size
        chunks = [part[n * len(part) // pieces : (n + 1) * len(part) // pieces] for n in range(pieces)]
        for number in [peer] if slices == "contiguous" else [peer, 2 * size - 1 - peer]:
            mine += chunks[number]
    return mine


@settings(max_examples=50)
@given(
    size=st.integers(1, 4),
    slices=st.sampled_from(["zigzag", "contiguous", "documents"]),
    layout=st.sampled_from(["pack", "boundaries", "padded", "best fit", "sample", "documents"]),
    shift=st.integers(1, 3),
    batch=st.integers(1, 3),
    stored=st.booleans(),
)
@example(size=2, slices="documents", layout="padded", shift=1, batch=3, stored=True)
@example(size=2, slices="zigzag", layout="boundaries", shift=2, batch=3, stored=True)
def test_slices_of_all_peers_joined_are_the_rows(
    size: int, slices: str, layout: str, shift: int, batch: int, stored: bool
) -> None:
    multiple = 2 * size
    if slices == "documents" and layout not in ("padded", "best fit"):
        slices = "zigzag"
    options: dict[str, Any] = {"shift": shift, "boundaries": layout != "pack", "document_ids": True}
    if layout in ("padded", "best fit"):
        options |= {"pad_to_multiple_of": multiple, "best_fit": layout == "best fit"}
    rows = data().shuffle(seed=1)
    if layout == "documents":
        whole, stored = rows.documents(pad_to_multiple_of=multiple, document_ids=True), False
    else:
        whole = (rows.sample if layout == "sample" else rows.pack)(6 * multiple, **options)
    whole = whole.batch(batch, dtype="stored" if stored else "int64")
    peers = [iter(whole.shard(0, 1, context=(peer, size), slices=slices)) for peer in range(size)]
    for expected, *parts in zip(whole, *peers, strict=True):
        count, length = expected["input_ids"].shape
        positions = expected.get("position_ids", torch.arange(length).expand(count, length))
        labels = counted(expected)
        bounds = expected.get("cu_seqlens", torch.arange(count + 1) * length).tolist()
        for peer, part in enumerate(parts):
            for row in range(count):
                begins = [begin - row * length for begin in bounds if row * length <= begin <= (row + 1) * length]
                own = tokens_of(peer, size, slices, begins)
                assert part["input_ids"][row].tolist() == expected["input_ids"][row][own].tolist()
                assert counted(part)[row].tolist() == labels[row][own].tolist()
                assert part["position_ids"][row].tolist() == positions[row][own].tolist()
                for key in ("attention_mask", "document_ids"):
                    assert key not in expected or part[key][row].tolist() == expected[key][row][own].tolist()
            assert part["valid_tokens"] == int((counted(part) != -100).sum())
            for key in ("cu_seqlens", "cu_seqlens_unpadded", "max_seqlen"):
                assert np.array_equal(part.get(key, 0), expected.get(key, 0))
        assert sum(part["valid_tokens"] for part in parts) == expected["valid_tokens"]
        assert sum(part["input_ids"].numel() for part in parts) == expected["input_ids"].numel()


def counted(batch: Any) -> torch.Tensor:
    """Return the labels of a batch as int64, with -100 where they do not count."""
    labels: torch.Tensor = batch["labels"].to(torch.int64).clone()
    labels.view(-1)[batch.get("ignored", torch.zeros(0, dtype=torch.int64))] = -100
    return labels


@given(
    rows=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=4),
    multiple=st.integers(1, 8),
    narrow=st.booleans(),
)
def test_documents_are_padded_to_the_multiple_rows_to_the_longest(
    rows: list[list[int]], multiple: int, narrow: bool
) -> None:
    length = max(map(sum, rows))
    rows = [sizes + [length - sum(sizes)] * (sum(sizes) < length) for sizes in rows]
    sizes = [size for row in rows for size in row]
    ids = np.arange(len(rows) * length, dtype=np.uint16 if narrow else np.int64).reshape(len(rows), length)
    positions = np.concatenate([np.arange(size) for size in sizes]).reshape(ids.shape)
    batch = {"input_ids": ids, "labels": ids + 1, "position_ids": positions, "valid_tokens": 5, "max_seqlen": 0}
    batch |= {"ignored": np.array([0])} if narrow else {}
    batch["document_ids"] = np.repeat(np.concatenate([np.arange(len(row)) for row in rows]), sizes).reshape(ids.shape)
    padded = pad_documents(batch | {"cu_seqlens": np.cumsum([0, *sizes], dtype=np.int32)}, multiple, EOS)

    expected, at = [list[tuple[int, int, int, int]]() for _ in rows], 0
    for row, of_row in zip(expected, rows, strict=True):
        for document, size in enumerate(of_row):
            row += [(at + n, at + n + 1, n, document) for n in range(size)]
            row += [(EOS, -100, min(n, length - 1), -1) for n in range(size, -(-size // multiple) * multiple)]
            at += size
    longest = max(map(len, expected))
    for row in expected:
        row += [(EOS, -100, min(row[-1][2] + 1 + n, length - 1), -1) for n in range(longest - len(row))]
    if narrow:
        expected[0][0] = (expected[0][0][0], -100, 0, 0)
    made = torch.stack([torch.as_tensor(padded["input_ids"].astype(np.int64)), labels_of(padded)], -1).tolist()
    assert made == [[list(token[:2]) for token in row] for row in expected]
    for place, key in ((2, "position_ids"), (3, "document_ids")):
        assert padded[key].tolist() == [[token[place] for token in row] for row in expected]
    bounds, unpadded = padded["cu_seqlens"].tolist(), padded["cu_seqlens_unpadded"].tolist()
    assert unpadded == np.cumsum([0, *sizes]).tolist()
    assert (bounds[0], bounds[-1], padded["max_seqlen"]) == (0, longest * len(rows), max(np.diff(bounds)))
    ends = {*range(longest, longest * len(rows) + 1, longest)}  # more padding may come before them
    assert all(
        end in ends or size % multiple == 0 for end, size in zip(bounds[1:], np.diff(bounds).tolist(), strict=True)
    )
    assert padded["cu_seqlens"].dtype == np.int32
    assert padded["valid_tokens"] == 5


def labels_of(batch: Any) -> torch.Tensor:
    tensors = {key: torch.as_tensor(value) for key, value in batch.items() if isinstance(value, np.ndarray)}
    return counted(tensors)


def test_documents_are_cut_as_transformer_engine_cuts_them() -> None:
    rows = pipeline.ShardDataset.from_tokens(range(1, 13), lengths=[8, 4]).pack(
        12, boundaries=True, pad_to_multiple_of=4
    )
    slices = [next(iter(rows.shard(context=(peer, 2), slices="documents"))) for peer in range(2)]
    assert [part["input_ids"].tolist() for part in slices] == [[1, 2, 7, 8, 9, 12], [3, 4, 5, 6, 10, 11]]
    assert [part["position_ids"].tolist() for part in slices] == [[0, 1, 6, 7, 0, 3], [2, 3, 4, 5, 1, 2]]
    assert [part["cu_seqlens"].tolist() for part in slices] == [[0, 8, 12]] * 2


def attended(query: Any, keys: Any, weights: torch.Tensor) -> float:
    """Return the summed loss of a model of one causal attention, for some tokens of a row and the keys of all."""
    at, own = ((part["input_ids"] * 7 + part["position_ids"]) % 64 for part in (keys, query))
    scores = weights[own] @ weights[at].T
    seen = query["position_ids"][:, None] >= keys["position_ids"][None]
    logits = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ weights[at] @ weights.T
    return float(torch.nn.functional.cross_entropy(logits, query["labels"] % 64, reduction="sum"))


@pytest.mark.parametrize("slices", ["zigzag", "contiguous"])
def test_the_loss_over_slices_is_the_loss_over_the_row(slices: str) -> None:
    weights = torch.randn(64, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = pipeline.ShardDataset.from_tokens(range(100)).pack(16)
    row = next(iter(rows)) | {"position_ids": torch.arange(16)}
    parts = [next(iter(rows.shard(context=(peer, 4), slices=slices))) for peer in range(4)]
    gathered = {key: torch.cat([part[key] for part in parts]) for key in ("input_ids", "position_ids")}
    losses = [attended(part, gathered, weights) for part in parts]
    assert sum(losses) == pytest.approx(attended(row, row, weights), abs=1e-9)


@pytest.mark.parametrize("sequential", [False, True])
def test_a_state_goes_on_with_another_number_of_peers(sequential: bool) -> None:
    def stream(peer: int, size: int) -> Any:
        rows = data(epochs=None).shuffle(seed=2).pack(16, boundaries=True, best_fit=sequential).batch(2)
        return rows.shard(0, 1, context=(peer, size)) if size else rows

    whole = [batch["input_ids"] for batch in islice(stream(0, 0), 6)]
    for before, after in ((4, 2), (2, 0), (0, 4)):
        states = []
        for peer in range(max(1, before)):
            first = stream(peer, before)
            list(islice(first, 3))
            states.append(first.state_dict())
        assert states == [states[0]] * len(states)
        for state in (states[-1], pipeline.merge_states(states)):
            for peer in range(max(1, after)):
                second = stream(peer, after)
                second.load_state_dict(json.loads(json.dumps(state)))
                own = tokens_of(peer, after, "zigzag", [0, 16]) if after else slice(None)
                assert [batch["input_ids"].tolist() for batch in islice(second, 3)] == [
                    ids[:, own].tolist() for ids in whole[3:]
                ]


def test_samples_and_functions_of_the_user_see_slices() -> None:
    rows = data().pack(16, boundaries=True)
    samples = rows.shard(context=(1, 2)).map(lambda sample: sample | {"sum": sample["input_ids"].sum()}).batch(2)
    plain = next(iter(rows.batch(2)))
    batch = next(iter(samples))
    assert batch["input_ids"].tolist() == plain["input_ids"][:, 4:12].tolist()
    assert batch["sum"].tolist() == plain["input_ids"][:, 4:12].sum(1).tolist()
    assert batch["cu_seqlens"].tolist() == plain["cu_seqlens"].tolist()


def test_workers_of_a_loader_make_the_same_slices() -> None:
    rows = data().shuffle(seed=1).pack(16, boundaries=True).batch(2).shard(0, 1, context=(1, 2))
    loader = DataLoader(rows, batch_size=None, num_workers=2)
    plain, made = ([batch["input_ids"].tolist() for batch in batches] for batches in (rows, loader))
    assert plain == made


def test_each_data_rank_has_its_own_rows_and_peers_share_them() -> None:
    rows = data().pack(8).batch(1)
    for rank in range(2):
        own = next(iter(rows.shard(rank, 2)))["input_ids"]
        parts = [next(iter(rows.shard(rank, 2, context=(peer, 2))))["input_ids"] for peer in range(2)]
        assert torch.cat([parts[0][:, :2], parts[1], parts[0][:, 2:]], 1).tolist() == own.tolist()


def test_a_stream_of_slices_is_shown_as_it_is_written() -> None:
    call = ".shard(0, 2, context=(1, 4), slices='contiguous')"
    assert call in repr(data().pack(16).shard(0, 2, context=(1, 4), slices="contiguous"))
    assert repr(data().pack(16).shard(context=(1, 4))).splitlines()[0].endswith(".pack(16).shard(context=(1, 4))")


def test_frameworks_get_labels_that_their_models_do_not_shift() -> None:
    rows = data().pack(16).batch(1).shard(context=(0, 2))
    [kept, batch] = [next(iter(rows.loader(keys=keys))) for keys in ("hf", None)]
    assert kept["shift_labels"].tolist() == kept["labels"].tolist() == batch["labels"].tolist()
    inputs, labels = next(iter(rows.loader(keys="torchtitan")))
    assert inputs["positions"].tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    assert labels.tolist() == batch["labels"][0].tolist()


@pytest.mark.parametrize(
    ("make", "cure"),
    [
        (
            lambda: data().pack(1000).shard(context=(0, 16)),
            "seq_len=1000: 16 context ranks with slices='zigzag' cut rows into 32 equal chunks; .*multiple of 32, as 1024",
        ),
        (lambda: data().shard(context=(0, 3), slices="contiguous").pack(8), "give seq_len a multiple of 3, as 9"),
        (
            lambda: data().pack(16, boundaries=True, pad_to_multiple_of=6).shard(context=(0, 2)),
            "pad_to_multiple_of=6.*multiple of 4, as 8",
        ),
        (
            lambda: data().documents().shard(context=(0, 2)),
            "pad_to_multiple_of=1: 2 context ranks .*give pad_to_multiple_of a multiple of 4, as 4",
        ),
        (lambda: data().pack(16, labels="same").shard(context=(0, 2)), "remove labels='same'"),
        (lambda: data().pack(16, shift="divisors").shard(context=(0, 2)), "set shift=1"),
        (
            lambda: data().pack(16, boundaries=True).shard(context=(0, 2), slices="documents"),
            r"boundaries=True, pad_to_multiple_of=4",
        ),
        (
            lambda: data().documents(pad_to_multiple_of=4).shard(context=(0, 2), slices="documents"),
            "use slices='zigzag'",
        ),
        (lambda: data().pack(16, pad_to_multiple_of=4), "pad_to_multiple_of=4.*add boundaries=True"),
        (lambda: data().pack(16, boundaries=True, shift="divisors", pad_to_multiple_of=4), "set shift=1"),
        (lambda: data().pack(16, boundaries=True, pad_to_multiple_of=0), "at least 1, got 0"),
        (
            lambda: data().pack(16).shard(context=(2, 2)),
            "context rank must be below context size, got context rank 2 of 2",
        ),
        (lambda: data().pack(16).shard(context=2), "a mesh or a process group, got 2"),
        (lambda: data().pack(16).shard(slices="contiguous"), r"slices='contiguous' .*add context=\(rank, size\)"),
        (lambda: data().pack(16).shard(context=(0, 2), slices="ring"), "slices must be 'zigzag' or .*got 'ring'"),
        (lambda: data().pack(16).shard(), "needs a rank and a world size"),
        (lambda: data().pack(16).shard(context=(0, 2)).rows(), r"remove .shard\(context=\(0, 2\)\)"),
    ],
)
def test_rows_that_peers_cannot_share_are_refused_with_the_cure(make: Any, cure: str) -> None:
    with pytest.raises(ConfigError, match=cure):
        make()
