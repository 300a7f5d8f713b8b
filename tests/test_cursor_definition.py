"""Cursor streams against their plain definition: lanes, windows and batches spelled out by lists, for random corpora."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.errors import ConfigError
from pipeline.stream.order import derive_key, permutation
from pipeline.stream.sequential import text_blocks as texts
from pipeline.text.tokenizer.tokenizer import load_tokenizer
from tests.oracle import plain_best_fit
from tests.text_samples import write_texts

BYTES_OF_A_RECORD = 24  # makes blocks of several records out of little text
EOS = 1
BYTES = load_tokenizer("bytes")

Tokens = list[int]


@dataclass
class Case:
    """A corpus and every option of a stream over it."""

    corpus: list[tuple[str, list[str]]]  # kind and texts of each file
    seed: int | None
    lanes: int
    window: int
    eos: bool
    modulus: int  # of texts by their length: a filter leaves out those that it divides, 0 none
    kind: str  # "pack", "best_fit" or "documents"
    seq_len: int
    stride: int
    shift: int
    batch_size: int
    epochs: int | None
    take: int | None
    last: str
    files: list[Path] = field(default_factory=list)

    def stream(self) -> pipeline.Stream:
        stream: Any = pipeline.TextDataset(self.files, BYTES, eos=self.eos, epochs=self.epochs)
        if self.seed is not None:
            stream = stream.shuffle(self.seed, window=self.window, lanes=self.lanes)
        if self.modulus:
            stream = stream.filter(self.keeps)
        if self.kind == "documents":
            stream = stream.documents()
        elif self.kind == "pack":
            stream = stream.pack(self.seq_len, stride=self.stride, shift=self.shift)
        else:
            stream = stream.pack(self.seq_len, shift=self.shift, best_fit=True)
        if self.take is not None:
            stream = stream.take(self.take)
        return stream.batch(self.batch_size, last=self.last)

    def keeps(self, record: Any) -> bool:
        return len(record.text) % self.modulus != 0


@st.composite
def cases(draw: Any) -> Case:
    text = st.text("ab é", max_size=12)
    kinds = st.sampled_from(["jsonl", "jsonl.gz", "csv", "parquet", "tar"])
    corpus = draw(st.lists(st.tuples(kinds, st.lists(text, max_size=9)), min_size=1, max_size=4))
    if not any(kind in ("jsonl", "jsonl.gz", "csv", "parquet") or texts for kind, texts in corpus):
        corpus.append(("jsonl", ["a"]))
    corpus = [(kind, texts or (["b"] if kind == "tar" else [])) for kind, texts in corpus]
    seq_len = draw(st.integers(1, 24))
    seed = draw(st.none() | st.integers(0, 3))
    epochs = draw(st.none() | st.integers(1, 2))
    return Case(
        corpus=corpus,
        seed=seed,
        lanes=1 if seed is None else draw(st.sampled_from([1, 2, 3, 4, 6])),
        window=draw(st.integers(1, 30)),
        eos=draw(st.booleans()),
        modulus=draw(st.sampled_from([0, 0, 2, 3, 5])),
        kind=draw(st.sampled_from(["pack", "pack", "best_fit", "documents"])),
        seq_len=seq_len,
        stride=draw(st.integers(1, seq_len)),
        shift=draw(st.integers(1, 3)),
        batch_size=draw(st.integers(1, 4)),
        epochs=epochs,
        take=draw(st.none() | st.integers(0, 40)),
        last=draw(st.sampled_from(["pad", "drop"])),
    )


class Barren(Exception):
    """A lane keeps no token of a whole epoch."""


# The definition.


def windows_of(case: Case, lane: int) -> Iterator[tuple[tuple[int, int, int], list[Tokens]]]:
    """Yield place and kept documents of each window of a lane."""
    stamps = [path.stat().st_size * (3 if path.suffix in (".gz", ".parquet") else 1) for path in case.files]
    records = max(1, min(32, sum(stamps) // (case.lanes * BYTES_OF_A_RECORD)))
    best = case.kind == "best_fit"
    window = case.window if case.seed is not None else (1024 if best else 1)
    blocks = max(1, -(-window // (case.lanes * records)))
    epoch = 0
    while case.epochs is None or epoch < case.epochs:
        count = len(case.corpus)
        order = range(count)
        if case.seed is not None:
            order = permutation(count, derive_key("files", case.seed, epoch)).tolist()
        ours = []
        for position, number in enumerate(order):
            held = case.corpus[number][1]
            for block in range((lane - position) % case.lanes, -(-len(held) // records), case.lanes):
                ours += [(position, block, held[block * records : (block + 1) * records])]
        place, kept_in_epoch = (epoch, 0, 0), 0
        for begin in range(0, len(ours), blocks):
            window_blocks = ours[begin : begin + blocks]
            found = [text for *_, block_texts in window_blocks for text in block_texts]
            if case.seed is not None:
                key = derive_key("text window", case.seed, lane, *place)
                found = [found[index] for index in permutation(len(found), key).tolist()]
            kept = [text for text in found if not case.modulus or len(text) % case.modulus]
            documents = [[byte + 3 for byte in text.encode()] + [EOS] * case.eos for text in kept]
            kept_in_epoch += sum(map(len, documents))
            yield place, documents
            place = (epoch, window_blocks[-1][0], window_blocks[-1][1] + 1)
        if case.epochs is None and not kept_in_epoch:
            raise Barren(lane)
        epoch += 1


def sequences_of(case: Case, lane: int) -> Iterator[tuple[Tokens, Tokens]]:
    """Yield ids and labels of each sequence of a lane."""
    length, shift = case.seq_len, case.shift
    if case.kind == "documents":
        for _, documents in windows_of(case, lane):
            for document in documents:
                yield document, document[1:]
    elif case.kind == "pack":
        tokens: Tokens = []
        parts = chain.from_iterable(documents for _, documents in windows_of(case, lane))
        begin, more = 0, True
        while True:
            while more and len(tokens) < begin + length + shift:
                part = next(parts, None)
                more = part is not None
                tokens += part or []
            if begin >= len(tokens):
                return
            yield tokens[begin : begin + length], tokens[begin + shift : begin + length + shift]
            begin += case.stride
    else:
        for place, documents in windows_of(case, lane):
            pieces = []
            for document in documents:
                cuts = range(0, len(document), length)
                pieces += [(document[at : at + length], document[at : at + length + shift]) for at in cuts]
            bins = plain_best_fit([len(ids) for ids, _ in pieces], length)
            if case.seed is not None:
                key = derive_key("best fit", case.seed, lane, *place)
                bins = [bins[index] for index in permutation(len(bins), key).tolist()]
            for items in bins:
                ids = [token for item in items for token in pieces[item][0]]
                ahead = pieces[items[0]][1] if len(pieces[items[0]][0]) == length else ids
                yield ids, ahead[shift : length + shift]


def batches_of(case: Case) -> Iterator[list[tuple[Tokens, Tokens]]]:
    """Yield the batches of all ranks as lists of rows: batch k is of lane k % lanes, or of those after it at the end."""
    lanes = [sequences_of(case, lane) for lane in range(case.lanes)]
    left = case.take
    for turn in range(10**9):
        size = case.batch_size if left is None else min(left, case.batch_size)
        if size == 0 or (case.last == "drop" and size < case.batch_size):
            return
        batch: list[tuple[Tokens, Tokens]] = []
        for lane in range(turn, turn + case.lanes if case.epochs else turn + 1):
            batch += islice(lanes[lane % case.lanes], size - len(batch))
        if left is not None:
            left -= len(batch)
        if not batch or (case.last == "drop" and len(batch) < case.batch_size):
            return
        yield batch


def rows(batch: dict[str, Any], documents: bool) -> list[tuple[Tokens, Tokens]]:
    """Return ids and labels of the rows of a batch, without what fills them."""
    found = []
    for number, (ids, labels) in enumerate(zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True)):
        if documents:
            ids = ids[: int(batch["attention_mask"][number].sum())]
        found.append((ids, [label for label in labels if label != -100]))
    return found


def check(case: Case, batch: dict[str, Any], expected: list[tuple[Tokens, Tokens]]) -> None:
    documents = case.kind == "documents"
    found = rows(batch, documents)
    assert len(found) == case.batch_size
    assert int(batch["valid_tokens"]) == sum(len(labels) for _, labels in expected)
    for (ids, labels), (true, ahead) in zip(found, expected, strict=False):
        padding = [] if documents else [EOS] * (case.seq_len - len(true))
        assert ids == true + padding
        assert labels == ahead
    for ids, labels in found[len(expected) :]:
        assert set(ids) <= {EOS}
        assert labels == []


class Workers:
    """Makes this process the worker of a loader that it says to be, one after another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def iterators(self, stream: pipeline.Stream, count: int) -> list[Iterator[Any]]:
        found = []
        for number in range(count):
            self._set(SimpleNamespace(id=number, num_workers=count) if count > 1 else None)
            found.append(iter(stream))
        self._set(None)
        return found

    def _set(self, info: Any) -> None:
        self._monkeypatch.setattr("torch.utils.data._utils.worker._worker_info", info)


def divisors(number: int) -> list[int]:
    return [count for count in range(1, number + 1) if number % count == 0]


@settings(max_examples=120, deadline=None)
@given(cases(), st.data())
def test_any_cursor_stream_is_its_plain_definition_on_any_topology_and_after_any_stop(case: Case, data: Any) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(texts, "_BLOCK_BYTES", BYTES_OF_A_RECORD)
        monkeypatch.setattr(texts, "_HELD_BYTES", data.draw(st.sampled_from([0, 2000, 1 << 20]), "held"))
        monkeypatch.setattr(texts, "_OPEN_SCANS", data.draw(st.integers(1, 3), "scans"))
        case.files = [write_texts(Path(folder) / f"{n}.{kind}", held) for n, (kind, held) in enumerate(case.corpus)]
        turns, whole, barren = 3 * case.lanes, [], None
        try:
            whole.extend(islice(batches_of(case), turns))
        except Barren as found:
            barren, turns = found.args[0], len(whole)
        iterator = iter(case.stream())
        for expected in whole:
            check(case, next(iterator), expected)
        if barren is not None:
            with pytest.raises(ConfigError, match=f"lane {barren} of {case.lanes} found no document"):
                next(iterator)
        elif len(whole) < turns:
            assert next(iterator, None) is None
        event("barren" if barren is not None else "live")
        event(f"{case.kind}, {'endless' if case.epochs is None else 'bounded'}")
        resumes(case, whole, turns, data, Workers(monkeypatch))


def resumes(case: Case, whole: list[Any], turns: int, data: Any, workers: Workers) -> None:
    """Stop, on some ranks and workers, merge, and go on with others."""
    bounded = case.epochs is not None
    ranks = 1 if bounded else data.draw(st.sampled_from(divisors(case.lanes)), "ranks")
    steps = data.draw(st.integers(0, len(whole) // ranks), "steps")
    states = []
    for rank in range(ranks):
        stream = case.stream().shard(rank, ranks)
        iterator = iter(stream)
        for step in range(steps):
            check(case, next(iterator), whole[step * ranks + rank])
        states.append(json.loads(json.dumps(stream.state_dict())))
    merged = pipeline.merge_states(states)
    rest = whole[steps * ranks :]
    others = 1 if bounded else data.draw(st.sampled_from(divisors(case.lanes)), "others")
    count = data.draw(st.sampled_from([1, 2, 3] if bounded else divisors(case.lanes // others)), "workers")
    if case.last == "drop" and case.take is not None:  # a batch that not every rank has is dropped on all
        left = case.take - steps * ranks * case.batch_size
        rest = rest[: left // (case.batch_size * others) * others]
    for rank in range(others):
        stream = case.stream().shard(rank, others)
        stream.load_state_dict(merged)
        assert stream.state_dict() == merged
        first = (rank - steps * ranks) % others
        iterators = workers.iterators(stream, count)
        for step, expected in enumerate(rest[first::others]):
            check(case, next(iterators[step % count]), expected)
        if bounded and len(whole) < turns:
            assert [next(iterator, None) for iterator in iterators] == [None] * count
