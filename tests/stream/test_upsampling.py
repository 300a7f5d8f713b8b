"""``.upsample``: an epoch reads each document as often as its quantile says, in the order of the definition, without a copy."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.errors import ConfigError, StateError
from pipeline.finished.redaction.redact import redact
from pipeline.stream.datasets.sources.upsampling import quantiles
from tests.helpers.shard_samples import EOS, write_dataset
from tests.stream.order_oracle import Options, Source, Stream
from tests.stream.order_samples import Documents, assert_follows, halved, numbered, written

SIZES = [[3, 9, 0, 5, 7, 2], [11, 1, 4, 4], [], [6, 8, 2, 2, 3]]
SCORES = [[0.5, 0.1, 0.9, 0.4, 0.9, 0.2], [0.3, 0.9, 0.8, 0.0], [], [0.7, 0.6, 0.1, 0.95, 0.35]]
TIMES = [0, 1, 2, 4]


def group_of(score: float, scores: list[float], count: int) -> int:
    """Return the quantile of a score, by counting."""
    below, equal = sum(other < score for other in scores), sum(other == score for other in scores)
    return int((below + Fraction(equal, 2)) / len(scores) * count)


def times_of(scores: list[list[float]], times: list[int]) -> list[list[int]]:
    """Return how often each document of each shard is read."""
    flat = [score for shard in scores for score in shard]
    return [[times[group_of(score, flat, len(times))] for score in shard] for shard in scores]


def scored(folder: Path, shards: Documents, scores: list[list[Any]], **options: Any) -> tuple[Path, Source]:
    return written(folder, shards, tables=[{"column:score": shard} for shard in scores], **options)


def listed(source: Source, times: list[list[int]]) -> Source:
    """Return a source as the definition lists it: shard after shard, as often as the document that is read most."""
    shards = [
        replace(shard, given=[each > listing for each in own])
        for listing in range(max(map(max, filter(None, times))))
        for shard, own in zip(source.shards, times, strict=True)
    ]
    return replace(source, shards=shards)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scored(tmp_path_factory.mktemp("scored") / "data", numbered(SIZES), SCORES, extent_bytes=2500)[
        0
    ]  # of two or three documents


def dataset(folder: Path, **options: Any) -> pipeline.Stream:
    return pipeline.ShardDataset(folder, **options).upsample("score", TIMES)


@given(st.lists(st.integers(0, 6) | st.floats(-1, 1), min_size=1, max_size=30), st.integers(1, 12))
def test_a_quantile_counts_the_scores_below_and_half_of_the_equal_ones(scores: list[float], count: int) -> None:
    assert quantiles(np.array(scores, float), count).tolist() == [group_of(score, scores, count) for score in scores]


CASES = st.lists(
    st.lists(st.tuples(st.integers(0, 12) | st.just(0), st.integers(0, 5)), max_size=10), min_size=1, max_size=4
).filter(lambda shards: sum(size for shard in shards for size, _ in shard) > 1)


LAYOUTS = st.fixed_dictionaries(  # extents of one document, of several, of all
    {"extent_bytes": st.sampled_from([500, 2500, 5000, None]), "tokens_per_sample": st.sampled_from([0, 15])}
)


@settings(max_examples=25, deadline=None)
@given(CASES, st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any), st.data())
def test_an_epoch_reads_each_document_as_often_as_its_quantile_says(
    shards: list[list[tuple[int, int]]], times: list[int], data: st.DataObject
) -> None:
    documents, scores = (
        numbered([[size for size, _ in shard] for shard in shards]),
        [[s for _, s in own] for own in shards],
    )
    wanted = times_of(scores, times)
    pairs = [
        (tuple(each) or (EOS,), count)  # a row has at least one id
        for own, counts in zip(documents, wanted, strict=True)
        for each, count in zip(own, counts, strict=True)
    ]
    expected = Counter({document: 0 for document, _ in pairs})
    for document, count in pairs:
        expected[document] += count
    tokens = sum(len(document) * count for document, count in pairs if document != (EOS,))
    with tempfile.TemporaryDirectory() as name:
        folder, source = scored(Path(name, "data"), documents, scores, **data.draw(LAYOUTS))
        stream = pipeline.ShardDataset(folder, epochs=1).upsample("score", times)
        if not tokens:
            return
        options = Options(
            seq_len=data.draw(st.integers(1, 9)),
            seed=data.draw(st.none() | st.integers(0, 3)),
            lanes=data.draw(st.none() | st.integers(1, 5)),
            window=data.draw(st.none() | st.integers(1, 3)),
            epochs=1,
        )
        if options.seed is not None:
            stream = stream.shuffle(seed=options.seed, lanes=options.lanes, window=options.window)
        else:
            options = replace(options, lanes=None, window=None)
        whole = stream.documents()
        for epoch in range(2):
            whole.set_epoch(epoch)
            found = [tuple(row["input_ids"].tolist()) for row in whole]
            assert Counter(found) == +expected
            assert len(whole) == len(found)
        if tokens > 1:
            oracle = Stream(listed(source, wanted), options)
            packed = stream.pack(options.seq_len)
            assert len(packed) == oracle.count() == -(-(tokens - 1) // options.seq_len)
            assert_follows(packed, oracle, data.draw(st.integers(1, 3)), data.draw(st.none() | st.integers(1, 4)))


CHAINS: dict[str, Any] = {
    "packed": lambda data: data.shuffle(seed=2, lanes=3, window=2).pack(7, boundaries=True),
    "documents": lambda data: data.shuffle(seed=2, lanes=3, window=2).documents(12, pad_to_multiple_of=12),
    "buckets": lambda data: data.shuffle(seed=2, lanes=3).documents(12, pad_to_multiple_of=12, bucket=2),
    "samples": lambda data: data.shuffle(seed=2).sample(7),
    "mixed": lambda data: pipeline.mix({"a": data, "b": data}, {"a": 3, "b": 1}).shuffle(seed=2, lanes=4).pack(7),
    "best fit": lambda data: data.shuffle(seed=2).pack(12, best_fit=True),
    "filtered": lambda data: (
        data.shuffle(seed=2).filter(lambda ids: len(ids) > 2, name="long").documents(12, pad_to_multiple_of=12)
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_an_upsampled_stream_resumes_exactly_and_is_traced(folder: Path, name: str) -> None:
    def make(size: int = 4) -> pipeline.Stream:
        return CHAINS[name](dataset(folder)).batch(size)

    def rows(batches: Any) -> list[list[int]]:
        return [row for batch in batches for row in batch["input_ids"].tolist()]

    whole = rows(islice(make(), 12))
    for stop in (1, 5, 8):
        first = [make(2).shard(rank, 2) for rank in range(2)]
        begun = [rows(islice(stream, stop)) for stream in first]
        second = make()
        second.load_state_dict(json.loads(json.dumps(pipeline.merge_states([stream.state_dict() for stream in first]))))
        assert sorted(begun[0] + begun[1]) == sorted(whole[: 4 * stop])
        assert rows(islice(second, 12 - stop)) == whole[4 * stop :]
    texts = dict(enumerate([document for shard in numbered(SIZES) for document in shard]))
    for step in (0, 3, 11):
        for row, ids in zip(make().trace(step, with_ids=True), whole[4 * step :], strict=False):
            traced = [token for span in row["documents"] for token in span["ids"]]
            assert traced == ids[: len(traced)]
            for span in row["documents"]:
                stored = texts[int(span["origin"]["key"])]
                assert stored[span["document_begin"] : span["document_end"]] == span["ids"]


def test_every_reading_of_a_document_is_found_by_its_key(folder: Path) -> None:
    stream = dataset(folder, epochs=2).shuffle(seed=3, lanes=2, window=1).pack(5).batch(2)
    steps = len(stream)
    traced: dict[str, list[tuple[int, ...]]] = {}
    fields = ("step", "row", "row_begin", "row_end", "document_begin")
    for step in range(steps):
        for row in stream.trace(step):
            for span in row["documents"]:
                place = {"step": step, "row": row["row"], **span}
                traced.setdefault(span["origin"]["key"], []).append(tuple(place[name] for name in fields))
    for number in range(sum(map(len, SIZES))):
        found = stream.seen(f"{number:012d}", steps=steps)
        assert [tuple(span[name] for name in fields) for span in found] == traced.get(f"{number:012d}", [])
    assert stream.seen("train-000001.tar:1", steps=steps) == stream.seen(f"{7:012d}", steps=steps) != []


def test_a_block_of_a_mix_is_one_extent_of_what_is_read(folder: Path) -> None:
    data: Any = dataset(folder)._data
    extents = data.extents
    assert len(extents.blocks(in_mix=True)) == len(extents.rows) == 18 > len(extents.blocks())


def test_a_redacted_document_is_in_no_quantile_and_is_not_read(tmp_path: Path) -> None:
    records = [{"id": f"d{n}", "text": f"{n} and some words, the same for all", "score": n} for n in range(40)]
    options: dict[str, Any] = {
        "tokenizer": "bytes",
        "rules": (),
        "dedup": False,
        "val_fraction": 0,
        "keep_fields": "score:int",
    }
    pipeline.build(records, tmp_path / "data", **options, progress=pipeline.Progress(quiet=True))
    running = pipeline.ShardDataset(tmp_path / "data", epochs=1).upsample("score", [0, 1, 2, 4]).documents()
    texts = sorted(running.decode(row)[0] for row in running)
    redact(tmp_path / "data", ["d38", "d39"], reason="opt-out")
    again = [running.decode(row)[0] for row in running]  # of a stream that was made before
    assert len(again) == len(texts)
    assert sum(text not in texts for text in again) == 8
    stream = pipeline.ShardDataset(tmp_path / "data", epochs=1).upsample("score", [0, 1]).documents()
    found = {int(stream.decode(row)[0].removeprefix("⟦").split()[0].strip("⟦⟧")) for row in stream}
    assert found == {*range(19, 38)}


def test_states_of_scores_with_a_fraction_stay_valid_when_a_document_is_redacted(tmp_path: Path) -> None:
    records = [{"id": f"d{n}", "text": f"{n} and some words, the same for all", "score": n / 7} for n in range(40)]
    options: dict[str, Any] = {"tokenizer": "bytes", "rules": (), "dedup": False, "val_fraction": 0}
    options |= {"keep_fields": "score:float", "progress": pipeline.Progress(quiet=True)}
    pipeline.build(records, tmp_path / "data", **options)

    def stream() -> pipeline.Stream:
        return pipeline.ShardDataset(tmp_path / "data").upsample("score", [0, 1, 2, 4]).shuffle(seed=0).documents()

    before = stream()
    order = [before.decode(row)[0] for row in islice(before, 99)]
    redact(tmp_path / "data", ["d39"], reason="opt-out")
    after = stream()
    after.load_state_dict(stream().state_dict() | {"shape": before.state_dict()["shape"]})
    assert [a == b for a, b in zip((after.decode(row)[0] for row in after), order, strict=False)] == [
        not text.removeprefix("⟦").startswith("39") for text in order
    ]


def test_copies_of_a_document_are_spread_over_the_epoch(tmp_path: Path) -> None:
    sizes = [[8] * 64] * 8
    folder, _ = scored(tmp_path / "data", numbered(sizes), [[0.0, 0.0, 0.0, 1.0] * 16] * 8, extent_bytes=4096)
    stream = pipeline.ShardDataset(folder, epochs=1).upsample("score", [1, 1, 1, 4])
    order = [row["input_ids"][0].item() for row in stream.shuffle(seed=0, lanes=4, window=2).documents()]
    places: dict[int, list[int]] = {}
    for place, token in enumerate(order):
        places.setdefault(token, []).append(place)
    gaps = np.concatenate([np.diff(own) for own in places.values() if len(own) == 4])
    assert len(gaps) == 3 * 16 * 8
    assert np.mean(gaps) > len(order) / 8  # of four places that are drawn, neighbours are a fifth of the epoch apart


def test_a_split_of_shards_is_upsampled_by_its_own_quantiles(tmp_path: Path) -> None:
    sizes = [[2] * 51] * 20
    scores = np.random.default_rng(0).permutation(1020).reshape(20, 51).tolist()
    folder, source = scored(tmp_path / "data", numbered(sizes), scores, extent_bytes=500)
    train, _ = pipeline.ShardDataset(folder, epochs=1).split(val=0.25)
    kept = halved(source, [f"train-{n:06d}.tar" for n in range(20)], (0.25, 0))
    documents = {
        tuple(d): s
        for shard, own in zip(source.shards, scores, strict=True)
        for d, s in zip(shard.documents, own, strict=True)
    }
    left = [tuple(d) for shard in kept.shards for d, k in zip(shard.documents, shard.kept or [], strict=True) if k]
    own = [documents[d] for d in left]
    expected = Counter({d: TIMES[group_of(documents[d], own, 4)] for d in left})
    assert Counter(tuple(row["input_ids"].tolist()) for row in train.upsample("score", TIMES).documents()) == +expected


def test_a_state_belongs_to_the_scores_and_to_how_often_they_are_read(folder: Path, tmp_path: Path) -> None:
    state = dataset(folder).pack(7).state_dict()
    for other in (pipeline.ShardDataset(folder), pipeline.ShardDataset(folder).upsample("score", [0, 1, 2, 3])):
        with pytest.raises(StateError, match=r"data was .* or split or upsampled differently"):
            other.pack(7).load_state_dict(state)
    changed = [[0.95 - score for score in shard] for shard in SCORES]
    other_scores, _ = scored(tmp_path / "data", numbered(SIZES), changed, extent_bytes=2500)
    with pytest.raises(StateError, match="data was"):  # other scores
        dataset(other_scores).pack(7).load_state_dict(state)


@pytest.mark.parametrize(
    ("by", "times", "message"),
    [
        (
            "quality",
            TIMES,
            r"train-000000\.tar has no field 'quality', only score, lang; keep it when you build: --keep-fields quality:float",
        ),
        ("lang", TIMES, r"15 of 15 documents have no number in 'lang', such as 'en'.*--where 'lang is not null'"),
        ("score", [0, 0], r"times must list how often each quantile is read, as \[0, 1, 2, 4\], got \[0, 0\]"),
        ("score", 4, "times must list how often each quantile is read"),
        ("score", [0, 0.5], "each of times must be an integer"),
        ("score", [0, 256], "each of times must be at most 255, got 256"),
        (3, TIMES, "by must be the name of a field, got 3"),
    ],
)
def test_what_cannot_be_upsampled_says_why(tmp_path: Path, by: Any, times: Any, message: str) -> None:
    tables = [{"column:score": shard, "column:lang": ["en"] * len(shard)} for shard in SCORES]
    write_dataset(tmp_path / "data", [[np.array(d, "<u2") for d in own] for own in numbered(SIZES)], tables=tables)
    with pytest.raises(ConfigError, match=message):
        pipeline.ShardDataset(tmp_path / "data").upsample(by, times)


def test_documents_without_fields_and_a_second_upsampling_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"from_tokens\(.* is in memory, .*upsample shards"):
        pipeline.ShardDataset.from_tokens(range(9)).upsample("score", TIMES)
    with pytest.raises(ConfigError, match=r"in memory.*--val-fraction"):
        pipeline.ShardDataset(folder).split(val=0.5)[0].upsample("score", TIMES)
    once = dataset(folder)
    for method, again in (("upsample", lambda: once.upsample("score", TIMES)), ("split", lambda: once.split(val=0.5))):
        with pytest.raises(ConfigError) as refused:
            again()
        assert str(refused.value).startswith(
            f".{method}() comes before .upsample(), and once: {once._data.label} reads"
        )
