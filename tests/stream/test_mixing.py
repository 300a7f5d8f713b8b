from __future__ import annotations

import json
import threading
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
from pipeline.stream.order.mixture import PERIOD, quotas, temperature_weights
from tests.helpers.shard_samples import make_documents, write_dataset

NAMES = ("books", "code", "web")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sources of different sizes, whose ids tell them apart."""
    directory = tmp_path_factory.mktemp("mix")
    for number, name in enumerate(NAMES):
        shards = [make_documents(6 + 20 * number, seed=10 * number + k) for k in range(3)]
        marked = [
            [np.where(d == 0, 0, d % 1000 + 1000 * (number + 1)).astype("<u2") for d in shard] for shard in shards
        ]
        write_dataset(directory / name, marked)
    return directory


def shares(**named: float) -> dict[str, float]:
    return {name: named.get(name, 0) for name in NAMES}


def mixed(folder: Path, weights: Any = None, **options: Any) -> pipeline.Stream:
    if weights is None and not options:
        weights = {"books": 0.2, "code": 0.3, "web": 0.5}
    return pipeline.mix({name: pipeline.ShardDataset(folder / name) for name in NAMES}, weights, **options)


def test_a_source_keeps_its_order_when_another_joins(folder: Path) -> None:
    def rows_of_web(names: tuple[str, ...]) -> list[list[int]]:
        sources = {name: pipeline.ShardDataset(folder / name) for name in names}
        stream = pipeline.mix(sources, dict.fromkeys(names, 1)).shuffle(seed=3, lanes=1, window=2).pack(16).batch(1)
        rows = [batch["input_ids"][0].tolist() for batch in stream.take(300)]
        return [row for row in rows if max(row) >= 3000]

    alone, joined = rows_of_web(("code", "web")), rows_of_web(NAMES)
    assert joined == alone[: len(joined)]
    assert len(joined) > 50


def test_a_block_serves_the_shares_asked_exactly(folder: Path) -> None:
    stream = mixed(folder).shuffle(seed=1, lanes=2).pack(4).batch(64)
    iterator = iter(stream)
    for _ in range(2 * PERIOD // 64):
        next(iterator)
    sources = stream.stats()["sources"]
    assert {name: source["sequences"] for name, source in sources.items()} == {
        "books": 2 * 819,
        "code": 2 * 1229,
        "web": 2 * 2048,
    }
    assert sources["web"]["asked"] == sources["web"]["served"] == 0.5
    assert sources["books"]["epoch"] > sources["web"]["epoch"]


@pytest.mark.parametrize(
    ("began", "edited"),
    [
        (shares(web=0.9, code=0.1), shares(web=0.1, code=0.9)),
        ([(0, shares(web=1)), (96, shares(code=1))], [(0, shares(web=1)), (192, shares(code=1))]),
        ([(0, shares(web=1)), (96, shares(code=1))], shares(web=1)),
    ],
)
def test_weights_edited_in_the_script_are_refused_on_resume(folder: Path, began: Any, edited: Any) -> None:
    stream = mixed(folder, began).shuffle(seed=2, lanes=3).pack(16).batch(3)
    list(islice(stream, 4))
    state = json.loads(json.dumps(stream.state_dict()))
    other = mixed(folder, edited).shuffle(seed=2, lanes=3).pack(16).batch(3)
    with pytest.raises(StateError, match=r"weights was \[\[0, .* but is \[\[0, .*set_weights\(\)"):
        other.load_state_dict(state)
    stream.set_weights(shares(books=1))
    changed = json.loads(json.dumps(stream.state_dict()))
    expected = [batch["input_ids"].tolist() for batch in islice(stream, 6)]
    resumed = mixed(folder, began).shuffle(seed=2, lanes=3).pack(16).batch(3)
    resumed.load_state_dict(changed)
    assert [batch["input_ids"].tolist() for batch in islice(resumed, 6)] == expected
    with pytest.raises(StateError, match="weights was"):
        mixed(folder, shares(books=1)).shuffle(seed=2, lanes=3).pack(16).batch(3).load_state_dict(changed)


def test_temperature_weighs_by_tokens(folder: Path) -> None:
    tokens = [sum(pipeline.ShardDataset(folder / name)._data.tokens) for name in NAMES]
    for temperature, power in ((1, 1.0), (2, 0.5)):
        iterator = iter(stream := mixed(folder, temperature=temperature).shuffle(lanes=1).pack(4).batch(1))
        next(iterator)
        total = sum(count**power for count in tokens)
        for name, count in zip(NAMES, tokens, strict=True):
            assert stream.stats()["sources"][name]["asked"] == pytest.approx(count**power / total, abs=1e-3)


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(st.integers(1, 10**15), min_size=1, max_size=12),
    temperature=st.floats(1e-320, 1e300) | st.integers(1, 9) | st.fractions(Fraction(1, 99), 9),
)
def test_every_source_has_a_row_of_4096_at_any_temperature(tokens: list[int], temperature: Any) -> None:
    named = {f"{k:02}": count for k, count in enumerate(tokens)}
    found = temperature_weights(named, temperature)
    assert sum(found.values()) == 1
    assert all(share >= Fraction(1, PERIOD) and (share * PERIOD).denominator == 1 for share in found.values())
    assert quotas(found) == {name: share * PERIOD for name, share in found.items()}
    for one, other in zip(tokens, list(found.values()), strict=True):
        assert all(
            share <= other + Fraction(1, PERIOD) for n, share in zip(tokens, found.values(), strict=True) if n <= one
        )
    with np.errstate(over="ignore"):
        logs = np.log(np.array(tokens, float)) / float(temperature)
    powers = np.exp(logs - logs.max()) if np.isfinite(logs).all() else np.array([n == max(tokens) for n in tokens])
    shares = np.array([float(share) for share in found.values()])
    assert np.abs(shares - powers / powers.sum()).max() < (len(tokens) + 1) / PERIOD


def test_temperature_one_is_the_share_of_tokens_and_a_row_at_least(folder: Path) -> None:
    assert temperature_weights({"a": 3, "b": 1}, 1) == {"a": Fraction(3, 4), "b": Fraction(1, 4)}
    found = temperature_weights({"web": 10**12, "tiny": 1}, temperature=1.0)
    assert found == {"web": Fraction(4095, 4096), "tiny": Fraction(1, 4096)}
    sources = {
        "web": pipeline.ShardDataset.from_tokens(np.ones(2_000_000, np.uint16)),
        "tiny": pipeline.ShardDataset.from_tokens(np.full(9, 7, np.uint16)),
    }
    stream = pipeline.mix(sources, temperature=1).pack(4).batch(PERIOD)
    assert int((next(iter(stream))["input_ids"] == 7).any(dim=1).sum()) == 1
    assert stream.stats()["sources"]["tiny"] == {
        "sequences": 1,
        "asked": 1 / PERIOD,
        "served": 1 / PERIOD,
        "tokens": 4,
        "epoch": 0,
    }
    # Powers of 1,000 and more, which no float holds.
    assert temperature_weights({"a": 5, "b": 5, "c": 4}, 1e-3) == pytest.approx({"a": 0.5, "b": 0.5, "c": 0}, abs=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: mixed(f, {"books": 1, "wbe": 1}), "did you mean 'web'"),
        (lambda f: mixed(f, {"books": 1, "web": 1}), "no share of source 'code'; write 'code': 0 to leave it out"),
        (lambda f: mixed(f, [(0, {"books": 1, "code": 0, "web": 1}), (8, {"web": 1})]), "no share of source 'books'"),
        (lambda f: mixed(f).pack(4).set_weights({"web": 1}), "no share of source 'books'"),
        (lambda f: mixed(f, dict.fromkeys(NAMES, 0)), r"not all 0, got \{'books': 0, "),
        (lambda f: mixed(f, [(5, {"books": 1})]), r"must begin at global sequence 0 and ascend, got \[5\]"),
        (lambda f: mixed(f, {"books": 1}, temperature=1.0), "one of them"),
        (
            lambda f: pipeline.mix({"a": pipeline.ShardDataset(f / "web", epochs=1)}, {"a": 1}),
            r"source .a. ends after epochs=1, .*\.take\(n\)",
        ),
        (lambda f: pipeline.mix({"a": pipeline.ShardDataset(f / "web").shuffle()}, {"a": 1}), "bare dataset"),
        (lambda f: pipeline.ShardDataset(f / "web").pack(4).set_weights({}), "pipeline.mix"),
        (lambda f: pipeline.mix({"a": mixed(f)}, {"a": 1}), "bare dataset"),
        (lambda f: pipeline.mix({"a": str(f / "web")}, {"a": 1}), r"source 'a' must be a dataset.*of type str"),
        (lambda f: pipeline.mix({1: pipeline.ShardDataset(f / "web")}, {1: 1}), "names of type str, got 1"),
        (
            lambda f: quotas({f"{n}": Fraction(1, 4097) for n in range(4097)}),
            "a mix holds at most 4096 sources, got 4097",
        ),
        (lambda f: mixed(f, [0.2, 0.3, 0.5]), "a dict of shares by name, as .* a list of"),
        (lambda f: mixed(f, [(0, 0.5)]), r"a dict of shares by the name.* got 0\.5"),
    ],
)
def test_a_mix_that_cannot_work_is_refused_with_the_reason(folder: Path, make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(folder)


def test_sources_of_two_tokenizers_are_refused(folder: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "wide", [make_documents(5, dtype="<u4")])
    with pytest.raises(ConfigError, match="dtype"):
        pipeline.mix(
            {"a": pipeline.ShardDataset(folder / "web"), "b": pipeline.ShardDataset(tmp_path / "wide")}, {"a": 1}
        )


def test_a_source_without_tokens_is_refused_at_the_call(folder: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "empty", [[]])
    sources = {"a": pipeline.ShardDataset(folder / "web"), "b": pipeline.ShardDataset(tmp_path / "empty")}
    for options in ({"weights": {"a": 1, "b": 1}}, {"weights": {"a": 1}}, {"temperature": 2}):
        with pytest.raises(ConfigError, match=r"source 'b' .*holds no tokens"):
            pipeline.mix(sources, **options)


def test_a_change_of_weights_survives_counting_and_stats_tell_it(folder: Path) -> None:
    def make() -> pipeline.Stream:
        return mixed(folder).pack(8).batch(2)

    changed = make()
    list(islice(changed, 3))
    changed.set_weights({"books": 1, "code": 0, "web": 3})
    whole = [batch["input_ids"].tolist() for batch in islice(changed, 25)]
    counted = make()
    counted.load_state_dict(changed.state_dict(batches=5))
    assert [batch["input_ids"].tolist() for batch in islice(counted, 20)] == whole[5:]
    fresh = make()
    fresh.load_state_dict(changed.state_dict(batches=5))
    asked = {name: source["asked"] for name, source in fresh.stats()["sources"].items()}
    list(islice(fresh, 1))
    assert asked == {name: source["asked"] for name, source in fresh.stats()["sources"].items()}
    assert asked["books"] == 0.25
    iterator = iter(fresh)
    next(iterator)
    with pytest.raises(StateError, match="live"):
        fresh.set_weights({"books": 0, "code": 0, "web": 1})


def test_the_sources_of_a_mix_share_the_threads_of_one(folder: Path) -> None:
    names = [f"{number:02}" for number in range(20)]
    tokens = np.arange(600_000, dtype="<u2")
    sources = {name: pipeline.ShardDataset.from_tokens(tokens, lengths=[600] * 1000) for name in names}
    before = threading.active_count()
    next(batches := iter(pipeline.mix(sources, dict.fromkeys(names, 1)).shuffle(seed=0).pack(64).batch(64)))
    assert 0 < threading.active_count() - before <= 20  # each keeps memory of its own
    del batches
