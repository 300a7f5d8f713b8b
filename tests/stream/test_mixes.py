"""Mixes of any sources and layouts: rows by the definition, buckets, ends, and the same rows on any ranks after any stop."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, StateError
from pipeline.notices import say_once
from tests.helpers.text_samples import write_sources
from tests.stream.order_oracle import key, permutation
from tests.stream.order_oracle_mixes import served
from tests.stream.sequential_oracle import EOS, Case, sequences_of
from tests.stream.streams import assert_goes_on_on_any_ranks, ids

COUNTS = {"array": 150, "text": 120, "tiny": 5, "brief": 7}  # of which the last two have fewer documents than lanes
TEXTS = ("text", "brief")
WEIGHTS = {"array": 4, "text": 3, "tiny": 2, "brief": 1}
SEQ_LEN, LANES, ROWS = 24, 12, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sources(tmp_path_factory.mktemp("kinds"), COUNTS)


def texts_of(folder: Path, name: str) -> list[str]:
    return [json.loads(line)["text"] for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def tokens_of(text: str) -> list[int]:
    return [byte + 3 for byte in text.encode()] + [EOS]


def source(folder: Path, name: str, epochs: int | None = None) -> pipeline.Stream:
    if name in TEXTS:
        return pipeline.TextDataset(folder / f"{name}.jsonl", "bytes", epochs=epochs)
    return pipeline.ShardDataset.from_texts(texts_of(folder, name), "bytes", epochs=epochs)


def mixed(folder: Path, names: Any = tuple(COUNTS), seed: int = 3, **options: Any) -> pipeline.Stream:
    weights = options.pop("weights", {name: WEIGHTS[name] for name in names})
    sources = {name: source(folder, name) for name in names}
    return pipeline.mix(sources, weights, **options).shuffle(seed=seed, lanes=LANES)


def documents_of_lane(texts: list[str], seed: int, lane: int, lanes: int) -> Iterator[list[int]]:
    """Yield the documents of a lane of an array of one extent: its part of each epoch."""
    for epoch in count():
        order = permutation(len(texts), key("block documents", "", seed, epoch, 0))
        first, stop = (len(texts) * number // lanes for number in (lane, lane + 1))
        yield from (tokens_of(texts[index]) for index in order[first:stop])


def rows_of_lane(folder: Path, name: str, seed: int, lane: int, kind: str) -> Iterator[list[int]]:
    texts = texts_of(folder, name)
    alone = len(texts) < LANES
    own = key("text source", seed, name, *([lane] if alone else []))
    if name in TEXTS:
        case = Case(
            corpus=[("jsonl", texts)], seed=own, lanes_a_row=1 if alone else LANES // ROWS, window=None, eos=True, modulus=0,
            kind=kind, seq_len=SEQ_LEN, stride=SEQ_LEN, shift=1, rows=1 if alone else ROWS, epochs=None, take=None,
            last="pad", files=[folder / f"{name}.jsonl"], of_mix=(seed, lane),
        )  # fmt: skip
        yield from (ids for ids, _ in sequences_of(case, 0 if alone else lane))
        return
    documents = documents_of_lane(texts, own, *((0, 1) if alone else (lane, LANES)))
    if kind == "documents":
        yield from documents
        return
    tokens = chain.from_iterable(documents)
    while True:
        yield list(islice(tokens, SEQ_LEN))


@settings(max_examples=8, deadline=None)
@given(
    st.integers(0, 9),
    st.lists(st.integers(1, 5), min_size=4, max_size=4),
    st.sampled_from(["pack", "documents", "best_fit"]),
)
def test_a_mix_of_texts_and_tokens_is_its_plain_definition(
    folder: Path, seed: int, weights: list[int], kind: str
) -> None:
    names = TEXTS if kind == "best_fit" else tuple(COUNTS)  # which has no plain definition for tokens
    weighed = dict(zip(names, weights, strict=False))
    exact = {name: Fraction(weight, sum(weighed.values())) for name, weight in weighed.items()}
    sequences = {(name, lane): rows_of_lane(folder, name, seed, lane, kind) for name in names for lane in range(LANES)}
    drawn = [served(list(names), {0: exact}, seed, lane) for lane in range(LANES)]
    expected = [next(sequences[next(drawn[i % LANES])[0], i % LANES]) for i in range(20 * ROWS)]
    stream = mixed(folder, names, seed=seed, weights=weighed)
    stream = stream.documents() if kind == "documents" else stream.pack(SEQ_LEN, best_fit=kind == "best_fit")
    found = [row for batch in islice(stream.batch(ROWS), 20) for row in batch["input_ids"].tolist()]
    assert [row[: len(own)] for row, own in zip(found, expected, strict=True)] == expected
    assert all({*row[len(own) :]} <= {EOS} for row, own in zip(found, expected, strict=True))
    tokens = {name: stats["tokens"] for name, stats in stream.batch(ROWS).stats()["sources"].items()}
    assert tokens == dict.fromkeys(names, 0)  # of another iterator


Chain = Callable[[pipeline.Stream], pipeline.Stream]
ARRAYS = ("array", "tiny")
CHAINS: dict[str, tuple[tuple[str, ...], Chain]] = {
    "kinds packed": (tuple(COUNTS), lambda mix: mix.pack(SEQ_LEN)),
    "kinds by documents": (tuple(COUNTS), lambda mix: mix.documents(SEQ_LEN, pad_to_multiple_of=SEQ_LEN)),
    "kinds by best fit": (tuple(COUNTS), lambda mix: mix.pack(SEQ_LEN, best_fit=True)),
    "kinds with mapped documents": (
        tuple(COUNTS),
        lambda mix: mix.map_documents(lambda ids, mask: ids[::2], name="half").pack(SEQ_LEN),
    ),
    "tokens by best fit": (ARRAYS, lambda mix: mix.pack(SEQ_LEN, best_fit=True)),
    "tokens filtered": (ARRAYS, lambda mix: mix.filter(lambda ids: len(ids) % 3 > 0, name="some").pack(SEQ_LEN)),
    "tokens in buckets": (ARRAYS, lambda mix: mix.documents(SEQ_LEN, bucket=2, pad_to_multiple_of=SEQ_LEN)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_every_mix_goes_on_with_the_same_rows_on_any_ranks(folder: Path, name: str) -> None:
    names, chain_of = CHAINS[name]

    def stream_of(ranks: int = 1) -> pipeline.Stream:
        return chain_of(mixed(folder, names)).batch(ROWS // ranks)

    order = sorted if name == "tokens in buckets" else list  # the others are sequential
    whole = [order(rows) for rows in ids(islice(stream_of(), 18))]
    assert_goes_on_on_any_ranks(stream_of, whole, ((2, 4), (3, 5), (1, 2), (6, 2), (2, 5)), order)
    if name in ("kinds packed", "tokens filtered"):
        loader = DataLoader(stream_of(), batch_size=None, num_workers=2)
        assert ids(islice(loader, 10)) == whole[:10]


def test_a_mix_says_how_many_tokens_each_source_gave(folder: Path) -> None:
    for names, chain_of in CHAINS.values():
        stream = chain_of(mixed(folder, names)).batch(ROWS)
        batches = list(islice(stream, 40))
        given_ = sum(stats["tokens"] for stats in stream.stats()["sources"].values())
        padding = sum(int((batch["input_ids"] == EOS).sum()) for batch in batches)
        assert given_ >= sum(batch["input_ids"].numel() for batch in batches) - padding > 0
        assert all(stats["tokens"] > 0 for stats in stream.stats()["sources"].values())


@pytest.mark.parametrize(
    ("names", "bucket"), [(("array", "tiny"), None), (("array", "tiny"), 2), (("array", "text"), None)]
)
def test_tokens_of_sources_are_those_of_rows_not_of_longer_documents(
    folder: Path, names: tuple[str, ...], bucket: int | None
) -> None:
    stream = mixed(folder, names).documents(max_length=9, bucket=bucket).batch(ROWS)
    batches = list(islice(stream, 10))
    given_ = sum(stats["tokens"] for stats in stream.stats()["sources"].values())
    labels = sum(batch["valid_tokens"] for batch in batches)
    assert labels <= given_ <= labels + 10 * ROWS, "at most one token of a row is no label"


def test_a_filter_of_texts_and_tokens_together_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="records of texts and the ids of shards"):
        mixed(folder).filter(lambda record: True, name="all")


# Buckets


def test_buckets_of_a_mix_hold_their_groups_side_by_side_by_length(folder: Path) -> None:
    def documents(bucket: int | None) -> list[tuple[int, ...]]:
        stream = mixed(folder, ARRAYS).documents(bucket=bucket)
        return [tuple(item["input_ids"].tolist()) for item in islice(stream, 3 * 128)]

    plain, close = documents(None), documents(2)
    for group in range(0, 3 * 128, 128):
        assert Counter(plain[group : group + 128]) == Counter(close[group : group + 128])
        lengths = [sorted(map(len, close[at : at + 2])) for at in range(group, group + 128, 2)]
        ordered = sorted(lengths)
        assert list(chain.from_iterable(ordered)) == sorted(chain.from_iterable(lengths))  # buckets do not overlap
    assert plain != close


@pytest.mark.parametrize("at", [1, 100, 128, 130])
def test_weights_of_a_mix_in_buckets_change_between_groups(folder: Path, at: int) -> None:
    row = -(-at // LANES) * LANES  # the next one of all lanes
    changed = -(-row // 128) * 128  # the next group

    def found(bucket: int | None, at: int) -> Counter[tuple[int, ...]]:
        stream = mixed(folder, ARRAYS).documents(bucket=bucket)
        items = list(islice(stream, at))
        stream.set_weights({"array": 0, "tiny": 1})
        items += islice(stream, 3 * 128 - at)
        return Counter(tuple(item["input_ids"].tolist()) for item in items)

    assert found(2, at) == found(None, changed)


# Ends


def ends_by_counting(
    sizes: dict[str, int], weights: dict[int, dict[str, Fraction]], seed: int, lanes: int
) -> list[int]:
    """Return where a mix ends by its first exhausted source, and by its last."""
    drawn = [served(sorted(sizes), weights, seed, lane) for lane in range(lanes)]
    left = {name: size for name, size in sizes.items() if any(shares[name] for shares in weights.values())}
    ends: list[int] = []
    for index in count():
        name, earlier = next(drawn[index % lanes])
        if earlier * lanes + index % lanes < sizes[name]:
            left[name] -= 1
        elif not ends:
            ends.append(index)
        if not any(left.values()):
            return [*ends, index + 1] if ends else [index + 1, index + 1]
    raise AssertionError


def arrays(**sizes: int) -> dict[str, pipeline.Stream]:
    return {
        name: pipeline.ShardDataset.from_tokens(np.full(size, number, np.uint16), lengths=np.ones(size, int), epochs=1)
        for number, (name, size) in enumerate(sizes.items())
    }


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    weights=st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=2),
    change=st.integers(1, 40),
    lanes=st.sampled_from([None, 1, 3, 4]),
    kind=st.sampled_from(["pack", "documents", "sample"]),
    data=st.data(),
)
def test_a_mix_ends_with_its_first_or_last_exhausted_source(
    sizes: list[int], weights: list[list[int]], change: int, lanes: int | None, kind: str, data: Any
) -> None:
    named = dict(zip("abc", sizes, strict=False))
    shares = [dict(zip("abc", [*row[: len(sizes) - 1], 1 + row[-1]], strict=False)) for row in weights]
    schedule = [(change * number, row) for number, row in enumerate(shares)]
    schedule = schedule[:1] if lanes is None else schedule
    used = [name for name in named if schedule[-1][1][name]]
    if any(row[name] and name not in used for _, row in schedule for name in named):
        return  # the weights of a source that end before it does
    of_lanes = 1 if lanes is None or kind == "sample" else lanes
    exact = {
        -(-at // of_lanes): {name: Fraction(share, sum(row.values())) for name, share in row.items()}
        for at, row in schedule
    }
    stride = 1 if kind == "documents" else 2
    counted = {name: -(-size // stride) for name, size in named.items()}
    expected = ends_by_counting(counted, exact, 5 if lanes else 0, of_lanes)

    def stream_of(strategy: str) -> pipeline.Stream:
        stream = pipeline.mix(arrays(**named), schedule, stopping_strategy=strategy)
        if lanes is not None:
            stream = stream.shuffle(seed=5, **({} if kind == "sample" else {"lanes": lanes}))
        return {"pack": lambda: stream.pack(2), "documents": stream.documents, "sample": lambda: stream.sample(2)}[
            kind
        ]()

    for strategy, end in zip(("first_exhausted", "all_exhausted"), expected, strict=True):
        stream, resumed = stream_of(strategy), stream_of(strategy)
        whole = ids(stream)
        assert len(stream) == len(whole) == end
        begun = ids(islice(stream, data.draw(st.integers(0, end))))
        resumed.load_state_dict(stream.state_dict())
        assert begun + ids(resumed) == whole
        resumed.set_epoch(0)
        resumed.set_epoch(1)  # the next run of as many rows
        assert len(ids(resumed)) == end


@pytest.mark.parametrize(("strategy", "part"), [("first_exhausted", "72%"), ("all_exhausted", "142%")])
def test_a_mix_that_ends_far_from_the_end_of_an_epoch_says_so(
    strategy: str, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    say_once.cache_clear()
    stream = pipeline.mix(arrays(a=233, b=500), {"a": 1, "b": 2}, stopping_strategy=strategy)
    with caplog.at_level(logging.WARNING, logger="pipeline"):
        assert abs(len(list(stream.shuffle(seed=0, lanes=1).pack(1))) / 733 - 1) < 0.1
        assert "lanes" not in caplog.text
        count = len(list(stream.shuffle(seed=0).pack(1)))
    assert count < 600 if strategy == "first_exhausted" else count > 850
    said = f"stopping_strategy={strategy!r}: the mix ends when {part} of the epoch of one source is read, since "
    assert said + "each of 16 lanes has its own end; .shuffle(lanes=1)" in caplog.text


def test_weights_far_below_the_smallest_share_of_a_mix_are_said(caplog: pytest.LogCaptureFixture) -> None:
    def said(weights: dict[str, float]) -> str:
        caplog.clear()
        say_once.cache_clear()
        data = {name: pipeline.ShardDataset.from_tokens(range(9)) for name in weights}
        next(iter(pipeline.mix(data, weights).pack(1)))
        return caplog.text

    many = said({"web": 0.9992} | {f"s{n}": 1e-6 for n in range(800)})
    assert "800 weights of this mix are below 1 / 4,096" in many
    assert "'web' gets 80.47% of the rows in place of 99.92%" in many
    assert "'c' gets 2,441 times its weight" in said({"a": 0.999, "b": 0.001, "c": 1e-7})
    assert said({"a": 0.9999, "b": 0.0001}) == said({"a": 1, "b": 0}) == said({"a": 2, "b": 1}) == ""


def test_what_cannot_end_or_has_no_strategy_is_refused(folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^stopping_strategy='all_exhausted' counts .* texts, filters and best fit.*\.take\(n\)"
    ):
        len(mixed(folder, stopping_strategy="all_exhausted").pack(8))
    with pytest.raises(ConfigError, match="stopping_strategy must be 'first_exhausted' or 'all_exhausted'"):
        mixed(folder, stopping_strategy="last")
    with pytest.raises(ConfigError, match=r"ends after epochs=1.*stopping_strategy= or \.take\(n\)"):
        pipeline.mix({"a": source(folder, "array", epochs=1)}, {"a": 1})
    with pytest.raises(ConfigError, match=r"ends after epochs=2"):
        pipeline.mix({"a": source(folder, "array", epochs=2)}, {"a": 1}, stopping_strategy="first_exhausted")
    never = pipeline.mix(
        arrays(a=9, b=9), [(0, {"a": 1, "b": 1}), (4, {"a": 1, "b": 0})], stopping_strategy="all_exhausted"
    )
    with pytest.raises(ConfigError, match="source 'b' is never exhausted"):
        len(never.pack(2))
    stream = mixed(folder, ARRAYS, stopping_strategy="first_exhausted").pack(8)
    with pytest.raises(ConfigError, match="stopping_strategy='first_exhausted' is counted from its first weights"):
        stream.set_weights({"array": 1, "tiny": 1})


def bucketed(stopping_strategy: str | None, lanes: int = 1, bucket: int | None = 4) -> pipeline.Stream:
    drawn = random.Random(1)
    lengths = {
        name: [drawn.randint(1, 30) + more for _ in range(n)] for name, n, more in (("a", 650, 0), ("b", 300, 40))
    }
    data = {
        name: pipeline.ShardDataset.from_tokens(np.repeat(np.arange(len(each)), each), lengths=each)
        for name, each in lengths.items()
    }
    mixed = pipeline.mix(data, {"a": 0.6, "b": 0.4}, stopping_strategy=stopping_strategy)
    return mixed.shuffle(seed=0, lanes=lanes).documents(bucket=bucket, source=True)


def documents_of(rows: Iterable[Any]) -> list[tuple[int, int]]:
    return [(int(row["source"]), int(row["input_ids"][0])) for row in rows]


@pytest.mark.parametrize(("strategy", "whole"), [("first_exhausted", 1), ("all_exhausted", 0)])
def test_a_mix_of_buckets_ends_with_the_documents_of_the_mix_without_buckets(strategy: str, whole: int) -> None:
    rows = documents_of(bucketed(strategy))
    counts = Counter(rows)
    assert {count for (source, _), count in counts.items() if source == whole} == {1}  # its epoch ends with the mix
    assert len({document for source, document in counts if source == whole}) == (650, 300)[whole]
    size = 64 * 4
    last = len(rows) // size * size
    assert rows[:last] == documents_of(islice(bucketed(None), last))
    for index in (0, 100, last, len(rows) - 9):
        resumed = bucketed(strategy)
        resumed.load_state_dict(bucketed(strategy).state_dict() | {"sequence_index": index})
        assert documents_of(resumed) == rows[index:]
        without_end = bucketed(None).state_dict() | {"sequence_index": index}  # as an earlier release wrote it
        if index <= last:
            resumed.load_state_dict(without_end)
        else:
            with pytest.raises(StateError, match=r"end was None .* the stopping_strategy that it was saved with"):
                resumed.load_state_dict(without_end)


@pytest.mark.parametrize("strategy", ["first_exhausted", "all_exhausted"])
def test_each_pass_of_a_mix_of_buckets_has_the_documents_of_the_mix_without_buckets(strategy: str) -> None:
    stream, plain = bucketed(strategy), bucketed(strategy, bucket=None)
    for number in (0, 1, 3):
        for each in (stream, plain):
            each.set_epoch(number)
        rows = documents_of(stream)
        assert sorted(rows) == sorted(documents_of(plain))
        resumed = bucketed(strategy)
        begin = number * len(rows)
        resumed.load_state_dict(resumed.state_dict() | {"sequence_index": begin + len(rows) - 70})
        assert documents_of(resumed) == rows[-70:]


def test_the_counts_of_a_mix_of_buckets_are_those_of_the_rows_given() -> None:
    stream, counts = bucketed(None, lanes=16), [0, 0]
    for number, row in enumerate(islice(stream, 600), 1):
        counts[int(row["source"])] += 1
        if number % 37 == 0:
            assert [source["sequences"] for source in stream.stats()["sources"].values()] == counts
    resumed = bucketed(None, lanes=16)
    resumed.load_state_dict(stream.state_dict())
    assert [source["sequences"] for source in resumed.stats()["sources"].values()] == counts
    plan = bucketed(None, lanes=16).plan(tokens=20_000)
    planned = Counter(source for source, _ in documents_of(islice(bucketed(None, lanes=16), plan.rows)))
    assert [source["rows"] for source in plan.sources.values()] == [planned[0], planned[1]]
