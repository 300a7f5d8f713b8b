"""A document's steps, found backwards, are those whose traces and batches contain it, for every layout, rank and pass."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.stream.order import RankStep, Sequences
from tests.helpers.builds import run_plain, write_jsonl
from tests.stream.order_samples import numbered, written

SIZES = [[5, 0, 17, 9, 1], [30, 2, 2], [], [8, 8, 8, 0, 0, 41, 3]]
DOCUMENTS = sum(map(len, SIZES))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("seen")
    return [written(folder / str(k), numbered(SIZES, first=1 + 200 * k), extent_bytes=64)[0] for k in range(2)]


def by_tracing(stream: pipeline.Stream, steps: int) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the spans of each document of each source, by tracing all steps."""
    spans: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for step in range(steps):
        rows = list[dict[str, Any]]()
        with suppress(pipeline.ConfigError):  # after the end
            rows = stream.trace(step)
        for row in rows:
            where = {"step": step} | {key: value for key, value in row.items() if key != "documents"}
            for span in row["documents"]:
                spans.setdefault((row.get("source", ""), span["origin"]["key"]), []).append(where | span)
    return spans


def assert_inverse(stream: Any, steps: int, documents: Iterable[int] = range(DOCUMENTS)) -> None:
    """Hold what `seen` returns for documents to traces of all steps."""
    spans = by_tracing(stream, steps)
    for number in documents:
        key = f"{number:012d}"
        expected = [span for (_, own), each in spans.items() for span in each if own == key]
        expected.sort(key=lambda span: (span["step"], span["rank"], span["row"], span["row_begin"]))
        assert stream.seen(key, steps=steps) == expected


def test_the_spans_of_a_list_are_those_of_its_documents_in_the_order_of_the_run(folders: list[Path]) -> None:
    for packed in ({}, {"best_fit": True}):
        stream = pipeline.ShardDataset(folders[0]).shuffle(seed=3, lanes=2).pack(7, **packed).batch(2)  # type: ignore[arg-type]
        keys = [f"{number:012d}" for number in (9, 2, 5)]
        spans = [span for key in keys for span in stream.seen(key, steps=14)]
        assert stream.seen([*keys, keys[0]], steps=14) == sorted(
            spans, key=lambda span: (span["step"], span["rank"], span["row"], span["row_begin"])
        )
        assert spans
        with pytest.raises(pipeline.ConfigError, match="no document 'none'"):
            stream.seen([keys[0], "none"], steps=14)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_the_spans_of_each_document_are_those_of_all_traces(folders: list[Path], data: st.DataObject) -> None:
    draw = data.draw
    is_mix = draw(st.booleans())
    epochs = None if is_mix else draw(st.none() | st.integers(1, 3))
    stream: Any
    if is_mix:
        sources = {name: pipeline.ShardDataset(folder) for name, folder in zip("ab", folders, strict=True)}
        stream = pipeline.mix(sources, weights={"a": draw(st.integers(1, 5)), "b": draw(st.integers(0, 5))})
    else:
        stream = pipeline.ShardDataset(folders[0], epochs=epochs)
    kind = draw(st.sampled_from(["pack", "documents", "sample"]))
    seed = draw(st.none() | st.integers(0, 3))
    if seed is not None:
        lanes = {"window": draw(st.none() | st.integers(1, 3)), "lanes": draw(st.integers(1, 5))}
        stream = stream.shuffle(seed=seed, **({} if kind == "sample" else lanes))
    length = draw(st.integers(1, 150))
    if kind == "pack":
        stream = stream.pack(length, stride=draw(st.none() | st.integers(1, length)), shift=draw(st.integers(1, 2)))
    elif kind == "sample":
        stream = stream.sample(length)
    else:
        stream = stream.documents(draw(st.none() | st.integers(1, 20)), bucket=draw(st.none() | st.integers(1, 3)))
    ranks = draw(st.integers(1, 3))
    stream = stream.shard(draw(st.integers(0, ranks - 1)), ranks)
    last = draw(st.sampled_from(["pad", "drop"]))
    stream = stream.batch(draw(st.integers(1, 3)), last=last) if draw(st.booleans()) else stream
    stream = stream.take(draw(st.integers(1, 9))) if draw(st.booleans()) else stream
    documents = draw(st.sets(st.integers(0, DOCUMENTS - 1), min_size=1, max_size=4))
    assert_inverse(stream, draw(st.integers(0, 14)), documents)


def test_documents_of_rows_that_each_pass_drops_are_in_no_step(folders: list[Path]) -> None:
    stream = pipeline.ShardDataset(folders[0], epochs=1).pack(7).batch(4, last="drop")
    assert (len(stream), len(list(pipeline.ShardDataset(folders[0], epochs=1).pack(7))) % 4) == (4, 3)
    assert_inverse(stream, 10, range(DOCUMENTS - 3, DOCUMENTS))


def test_a_row_that_reaches_into_the_next_epoch_is_seen_there_too(folders: list[Path]) -> None:
    tokens = sum(map(sum, SIZES))
    border = -(-tokens // 7)  # the row before this one ends in epoch 1
    assert tokens % 7
    for steps in (border - 1, border, border + 1):
        assert_inverse(pipeline.ShardDataset(folders[0]).pack(7), steps)


def test_sequences_are_found_by_the_tokens_that_they_hold() -> None:
    settings = product(range(5, 13), range(1, 5), range(1, 5), (None, 1, 2), (0, 1, 3))
    for tokens, stride, lanes, epochs, lag in settings:
        sequences = Sequences(tokens, stride, lanes, epochs, lag)
        served: set[tuple[int, int]] = set()
        for epoch in range(epochs or 3):
            begin, stop = sequences.first(epoch), sequences.first(epoch + 1)
            inside = np.arange((stop if epochs is None else min(stop, sequences.labelled)) - begin)
            first = epoch * tokens + sequences.positions(epoch, inside)
            served |= {*zip((begin + inside).tolist(), first.tolist(), strict=True)}
        assert len({at for _, at in served}) == len(served)
        for epoch, held in product(range(epochs or 3), (1, stride + 2, 2 * tokens + 1)):
            begin, end = epoch * tokens, (epoch + 1) * tokens
            expected = {(index, at) for index, at in served if at < end and at + held > begin}
            assert {*sequences.containing(begin, end, held)} == expected


def test_a_run_that_changed_weights_and_ranks_is_searched(folders: list[Path]) -> None:
    def mix(ranks: int, size: int) -> pipeline.Stream:
        sources = {name: pipeline.ShardDataset(folder) for name, folder in zip("ab", folders, strict=True)}
        stream = pipeline.mix(sources, weights={"a": 3, "b": 1}).shuffle(seed=5, lanes=4)
        return stream.pack(7).shard(0, ranks).batch(size)

    first = mix(2, 2)
    assert len(list(islice(first, 6))) == 6
    first.set_weights({"a": 1, "b": 2})
    second = mix(1, 4)
    second.load_state_dict(first.state_dict())
    list(islice(second, 5))
    key = f"{3:012d}"
    assert second.seen(key) == second.seen(key, steps=11)
    assert {span["step"] for span in second.seen(key)} <= set(range(11))
    assert_inverse(second, 14, range(0, DOCUMENTS, 3))
    assert_inverse(mix(3, 1).take(9), 16, range(1, DOCUMENTS, 4))


@pytest.mark.parametrize("layout", [lambda mix: mix.pack(7), lambda mix: mix.documents(bucket=2)])
def test_a_mix_with_a_schedule_is_searched_in_every_phase(folders: list[Path], layout: Any) -> None:
    sources = {name: pipeline.ShardDataset(folder) for name, folder in zip("ab", folders, strict=True)}
    points = [(0, {"a": 3, "b": 1}), (9, {"a": 0, "b": 1}), (14, {"a": 1, "b": 0})]
    weights = pipeline.Schedule(points, unit="steps", global_batch=4, linear=True)
    stream = layout(pipeline.mix(sources, weights=weights).shuffle(seed=3, lanes=4)).shard(1, 2).batch(2)
    assert_inverse(stream, 18, range(2, DOCUMENTS, 4))


def test_every_copy_of_an_upsampled_document_is_found(tmp_path: Path) -> None:
    records = [{"id": f"d{k}", "text": "x" * (5 + 7 * k % 31), "score": k / 12} for k in range(DOCUMENTS)]
    options: dict[str, Any] = {"keep_fields": "score:float", "tokens_per_shard": 100, "dedup": False}
    run_plain(write_jsonl(tmp_path / "in.jsonl", records), tmp_path / "out", **options)
    data = pipeline.ShardDataset(tmp_path / "out", epochs=1).upsample("score", [0, 1, 3])
    stream = data.shuffle(seed=1).documents().batch(2)
    assert [len(stream.seen(f"{k:012d}", steps=len(stream))) for k in (0, 7, 14)] == [0, 1, 3]
    assert_inverse(data.shuffle(seed=1, lanes=2).pack(16).batch(2), 18)


def test_what_a_run_has_seen_ends_at_its_position_in_any_pass(folders: list[Path]) -> None:
    stream = pipeline.ShardDataset(folders[0], epochs=1).shuffle(seed=1).pack(16).batch(2)
    key = f"{1:012d}"  # of no tokens
    whole = f"{DOCUMENTS - 2:012d}"
    assert stream.seen(whole) == []
    list(islice(stream, 3))
    assert stream.seen(whole) == stream.seen(whole, steps=3)
    stream.set_epoch(2)
    list(islice(stream, 2))
    steps = 2 * len(stream) + 2
    assert stream.seen(whole) == stream.seen(whole, steps=steps)
    assert {span["step"] // len(stream) for span in stream.seen(whole, steps=3 * len(stream))} == {0, 1, 2}
    assert stream.seen(key, steps=99) == []


def test_each_part_of_a_split_sees_its_own_documents_alone(tmp_path: Path) -> None:
    folder, _ = written(tmp_path / "set", numbered([[40] * 600, [40] * 600]), extent_bytes=80)
    parts = pipeline.ShardDataset(folder, epochs=1).split(val=0.3)
    streams = [part.shuffle(seed=2).documents().batch(8) for part in parts]
    for number in (0, 1, 599, 600, 1199):
        spans = [stream.seen(f"{number:012d}", steps=len(stream)) for stream in streams]
        assert sorted(map(len, spans)) == [0, 1]
        [span] = spans[0] or spans[1]
        stream = streams[0] if spans[0] else streams[1]
        [row] = [row for row in stream.trace(span["step"]) if row["row"] == span["row"]]
        assert row["documents"][0]["origin"] == span["origin"]


def test_a_document_is_named_by_key_id_or_its_number_in_a_shard(tmp_path: Path) -> None:
    records = [{"id": f"d{k % 3}", "text": f"text number {k}"} for k in range(9)]
    run_plain(write_jsonl(tmp_path / "in.jsonl", records), tmp_path / "out", dedup=False, tokens_per_shard=40)
    stream = pipeline.ShardDataset(tmp_path / "out").shuffle(seed=0).documents().batch(1)
    by_key = [stream.seen(f"{k:012d}", steps=9) for k in range(9)]
    assert [len(spans) for spans in by_key] == [1] * 9
    assert len({span["origin"]["shard"] for spans in by_key for span in spans}) > 2
    for k, [span] in enumerate(by_key):
        assert (span["origin"]["key"], span["origin"]["id"]) == (f"{k:012d}", f"d{k % 3}")
        assert stream.seen(f"{span['origin']['shard']}:{span['origin']['document']}", steps=9) == [span]
    of_id = stream.seen("d1", steps=9)
    assert sorted(span["origin"]["key"] for span in of_id) == [f"{k:012d}" for k in (1, 4, 7)]
    assert [span["step"] for span in of_id] == sorted(span["step"] for span in of_id)
    for wrong in ("d9", "000000000009", "train-000000.tar:99", "other.tar:0", 3):
        with pytest.raises(pipeline.ConfigError, match=f"no document '{wrong}' in .*: give its key, as 0{{10}}40"):
            stream.seen(wrong, steps=9)


def test_an_id_of_any_signs_is_found_and_a_part_of_an_id_is_not(tmp_path: Path) -> None:
    ids = [
        "https://a.org/1",
        "https://a.org/12",
        'say "hi"',
        "back\\slash",
        "\u00e9 \U0001f600\u2028\n",
        "000000000099",
        "en",
    ]
    records = [{"id": id, "text": f"text number {k}"} for k, id in enumerate(ids)]
    run_plain(write_jsonl(tmp_path / "in.jsonl", records), tmp_path / "out", dedup=False, tokens_per_shard=40)
    stream = pipeline.ShardDataset(tmp_path / "out").documents().batch(1)
    for id in ids:
        assert [span["origin"]["id"] for span in stream.seen(id, steps=len(ids))] == [id]
    for part in ("https://a.org/", "org/12", "hi", "\udcff"):
        with pytest.raises(pipeline.ConfigError, match=r"no document .* give its key"):
            stream.seen(part, steps=len(ids))


@pytest.mark.parametrize("split", ["train", None])
def test_each_document_of_a_key_is_found_in_several_datasets(tmp_path: Path, split: Any) -> None:
    for name in "ab":
        texts = [f"text {k} of {name}" for k in range(12)]
        run_plain(
            write_jsonl(tmp_path / f"{name}.jsonl", texts), tmp_path / name, val_fraction=0.2, tokens_per_shard=60
        )
    both = pipeline.ShardDataset([tmp_path / "a", tmp_path / "b"], split=split).shuffle(seed=0).documents().batch(1)
    assert_inverse(both, 24, range(12))
    of_place = both.seen("train-000000.tar:1", steps=24)
    assert {span["origin"]["file"] for span in of_place} == {"a.jsonl", "b.jsonl"}


KINDS: dict[str, Any] = {
    "filter": lambda data, texts: data.filter(lambda ids: len(ids) > 4, name="long").shuffle(seed=1).pack(11),
    "best fit": lambda data, texts: data.shuffle(seed=1).pack(40, best_fit=True),
    "texts": lambda data, texts: texts.shuffle(seed=1).documents(),
    "mix": lambda data, texts: pipeline.mix({"a": texts, "b": texts}, {"a": 1, "b": 2}).shuffle(seed=1).pack(30),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequential_stream_is_read_from_the_beginning_of_its_pass(
    folders: list[Path], tmp_path: Path, kind: str
) -> None:
    write_jsonl(tmp_path / "in.jsonl", [f"A text of number {k}." for k in range(12)])
    texts = pipeline.TextDataset(tmp_path / "in.jsonl", tokenizer="bytes")
    stream = KINDS[kind](pipeline.ShardDataset(folders[0]), texts).shard(1, 2).batch(2)
    name = "id" if kind in ("texts", "mix") else "key"
    wanted = "d3" if name == "id" else f"{10:012d}"
    expected = [
        {"step": step} | {key: value for key, value in row.items() if key != "documents"} | span
        for step in range(9)
        for row in stream.trace(step)
        for span in row["documents"]
        if span["origin"][name] == wanted
    ]
    assert len(expected) > 0
    assert stream.seen(wanted, steps=9) == expected
    list(islice(stream, 4))
    assert stream.seen(wanted) == [span for span in expected if span["step"] < 4]


@pytest.mark.parametrize("last", ["pad", "drop"])
def test_the_end_of_a_sequential_stream_is_that_of_its_traces(folders: list[Path], last: str) -> None:
    data = pipeline.ShardDataset(folders[0], epochs=1).filter(len, name="all")
    assert_inverse(data.shuffle(seed=1).documents().shard(0, 2).batch(2, last=last), 6, range(0, DOCUMENTS, 4))


def test_what_no_trace_can_read_is_refused_here_too(folders: list[Path]) -> None:
    with pytest.raises(pipeline.ConfigError, match=r"remove \.apply"):
        pipeline.ShardDataset(folders[0]).pack(4).apply(iter).seen("000000000001", steps=3)
    live = pipeline.TextDataset(lambda: iter([{"text": "a"}]), tokenizer="bytes").pack(4)
    with pytest.raises(pipeline.ConfigError, match="a live source cannot be read again"):
        live.seen("a", steps=3)
    with pytest.raises(pipeline.ConfigError, match=r"steps must be .*got -1"):
        pipeline.ShardDataset(folders[0]).pack(4).seen("000000000001", steps=-1)


@given(st.integers(0, 40), st.integers(1, 30), st.integers(1, 7), st.integers(1, 9), st.integers(0, 5))
def test_the_rank_and_row_of_an_index_are_those_that_take_it(
    begin: int, size: int, ranks: int, lanes: int, before: int
) -> None:
    steps = [RankStep(begin + before, size, rank, ranks, lanes, begin) for rank in range(ranks)]
    for rank, step in enumerate(steps):
        for row, index in enumerate(step):
            assert steps[0].rank_and_row(index) == (rank, row)
