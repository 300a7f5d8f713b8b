"""``.split(val=)`` and ``.subset(share)``: every document in a part by a hash of what it is known by, of any data."""

from __future__ import annotations

import json
import os
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import pipeline
from pipeline.errors import ConfigError, ManifestError, StateError
from pipeline.shards.extents.extent_table import EXTENT_BYTES
from pipeline.shards.extents.table_file import decode_table
from pipeline.shards.manifest import EXTENTS_NAME
from pipeline.stream.datasets.sources.holdout import held_out
from pipeline.stream.order import derive_key
from tests.helpers.faulty_server import running_server
from tests.helpers.shard_samples import index_extents, write_dataset
from tests.stream.order_oracle import is_held_out, mark, mix64

SIZES = {"small": [700, 1, 99, 600], "large": [1000, 1, 99, 900]}  # documents of each shard
EXTENTS = {"small": EXTENT_BYTES, "large": 10}  # bytes: of the small one documents are split


def write_shards(directory: Path, sizes: list[int], extent_bytes: int = EXTENT_BYTES, **options: Any) -> Path:
    """Write shards of documents that tell which they are: the token ``number + 1``, one to five times."""
    ends = np.cumsum(sizes).tolist()
    shards = [
        [np.full(1 + j % 5, 1 + j, "<u2") for j in range(end - n, end)] for n, end in zip(sizes, ends, strict=True)
    ]
    write_dataset(directory, shards, **options)
    index_extents(directory, extent_bytes)
    return directory


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("splits")
    return {name: write_shards(folder / name, SIZES[name], EXTENTS[name]) for name in SIZES}


def numbers(stream: pipeline.Stream) -> list[int]:
    """Which documents a bounded stream holds, in its order."""
    found: list[int] = []
    for batch in stream.documents().batch(256):
        found += (batch["input_ids"][:, 0][batch["attention_mask"][:, 0] > 0] - 1).tolist()
    return found


def by_definition(key: str, share: Fraction, level: int) -> bool:
    """The rule for keys of texts in the words of its docstring, with Python integers."""
    raw, state = key.encode("utf-8", "surrogatepass"), derive_key("split", level) if level else derive_key("split")
    for start in range(0, len(raw), 8):
        state = mix64(state ^ int.from_bytes(raw[start : start + 8], "little"))
    return Fraction(state, 2**64) < share


@given(st.lists(st.text(st.characters(exclude_characters="\0"), min_size=1), max_size=9), st.integers(0, 3))
@example(["\udce9", "a\ud800"], 0)
def test_the_rule_for_keys_is_its_definition(keys: list[str], level: int) -> None:
    share = Fraction(1, 3)
    expected = [by_definition(key, share, level) for key in keys]
    assert held_out(keys, share, level).tolist() == expected
    assert [held_out([key], share, level).tolist()[0] for key in keys] == expected


def test_one_long_key_among_many_takes_no_room_beside_each_other() -> None:
    keys = [str(n) for n in range(20_000)]
    tracemalloc.start()
    try:
        out = held_out([*keys, "x" * 100_000], Fraction(1, 10))
        assert tracemalloc.get_traced_memory()[1] < 100 << 20  # all as wide as the longest: 2 GB
    finally:
        tracemalloc.stop()
    assert out[:-1].tolist() == held_out(keys, Fraction(1, 10)).tolist()


@pytest.mark.parametrize("make", ["{:012d}", "https://example.org/page/{}"])
def test_shares_are_those_asked_for_nested_and_independent(make: str) -> None:
    keys = [make.format(n) for n in range(100_000)]
    held = {share: held_out(keys, Fraction(share)) for share in ("1/1000", "1/100", "1/5")}
    for share, out in held.items():
        expected = len(keys) * float(Fraction(share))
        assert abs(int(out.sum()) - expected) < 5 * expected**0.5
    assert (held["1/1000"] <= held["1/100"]).all()
    assert (held["1/100"] <= held["1/5"]).all()
    assert abs(int((held["1/5"] & held_out(keys, Fraction(1, 5), level=1)).sum()) - 4000) < 300


def test_more_than_1000_extents_are_split_and_nothing_is_read(datasets: dict[str, Path], tmp_path: Path) -> None:
    large = datasets["large"]
    table = decode_table((large / EXTENTS_NAME).read_bytes())
    expected: list[int] = []
    for row in range(len(table)):
        shard = int(table.shard_of(row))
        if is_held_out(mark(row - int(table.shard_bounds[shard]), f"train-{shard:06d}.tar"), Fraction(1, 10), 0):
            expected += range(int(table.document_sums[row]), int(table.document_sums[row + 1]))
    shards = sorted(large.glob("*.tar"))
    for path in shards:
        path.rename(tmp_path / path.name)
    halves = pipeline.ShardDataset(large, epochs=1).split(val=0.1)
    assert [len(half.documents()) for half in halves] == [2000 - len(expected), len(expected)]
    for path in shards:
        (tmp_path / path.name).rename(path)
    rest, val = (numbers(half) for half in halves)
    assert val == expected
    assert sorted(rest + val) == list(range(2000))


@pytest.mark.parametrize(("extent_bytes", "group"), [(10, 0), (EXTENT_BYTES, 0), (EXTENT_BYTES, 40)])
def test_halves_stay_when_shards_are_added_or_grouped_otherwise(tmp_path: Path, extent_bytes: int, group: int) -> None:
    few = write_shards(tmp_path / "few", [1200, 50], extent_bytes)
    more = write_shards(tmp_path / "more", [1200, 50, 300], extent_bytes, tokens_per_sample=group)
    for one, other in zip(*(pipeline.ShardDataset(each, epochs=1).split(val=0.1) for each in (few, more)), strict=True):
        assert numbers(one) == [n for n in numbers(other) if n < 1250]


def test_more_than_200_mb_of_few_documents_are_split_unread(tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").touch()
    os.truncate(tmp_path / "tokens.bin", 202_000_000)  # without blocks on the disk
    tokens = np.memmap(tmp_path / "tokens.bin", "<u2", "r")
    data = pipeline.ShardDataset.from_tokens(tokens, lengths=[5_050_000] * 20, eos_id=0, epochs=1)
    tracemalloc.start()
    try:
        rest, val = data.split(val=0.3)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert len(rest.documents()) + len(val.documents()) == 20


@pytest.mark.parametrize("name", SIZES)
def test_halves_resume_and_split_again_by_a_hash_of_their_own(name: str, datasets: dict[str, Path]) -> None:
    half = {"small": 0, "large": 1}[name]
    pipeline.assert_resumes(
        lambda: pipeline.ShardDataset(datasets[name]).split(val=0.2)[half].shuffle(lanes=4).pack(16).batch(2), items=3
    )
    whole = pipeline.ShardDataset(datasets[name], epochs=1)
    rest, test = whole.split(val=0.1)
    train, val = rest.split(val=0.1)
    assert sorted(numbers(train) + numbers(val) + numbers(test)) == numbers(whole)
    assert 0.04 < len(numbers(val)) / len(numbers(whole)) < 0.16
    assert {*numbers(rest.split(val=0.2)[1])} > {*numbers(val)}
    few, fewer = test.split(val=0.5)  # of a small half of many extents, by documents
    shards = [(n, f"train-{k:06d}.tar") for k, size in enumerate(SIZES[name]) for n in range(size)]
    assert numbers(fewer) == [n for n in numbers(test) if is_held_out(mark(*shards[n]), Fraction(1, 2), 1)]
    assert sorted(numbers(few) + numbers(fewer)) == numbers(test)


@pytest.mark.parametrize("kind", ["memory", "text", "tars"])
def test_halves_of_every_kind_of_source_split_again_and_resume(kind: str, tmp_path: Path) -> None:
    def source(**options: Any) -> Any:
        if kind == "memory":
            return pipeline.ShardDataset.from_tokens(np.repeat(np.arange(1, 301), 3), lengths=[3] * 300, **options)
        if kind == "tars":
            return pipeline.ShardDataset(tmp_path / "a.tar", **options)
        return pipeline.TextDataset(tmp_path / "a.jsonl", "bytes", **options)

    lines = [f'{{"id": "{n}", "text": "text {n}"}}' for n in range(300)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as tar:
        for n in range(300):
            tar.write({"__key__": str(n), "npy": np.full(3, n + 1, np.int64)})

    def held(stream: Any) -> list[Any]:
        return sorted(tuple(sample["input_ids"].tolist()) for sample in stream.documents())

    rest, test = source(epochs=1).split(val=0.2)
    train, val = rest.split(val=0.3)
    assert sorted(held(train) + held(val) + held(test)) == held(source(epochs=1))
    assert 40 < len(held(val)) < 110
    if kind != "text":
        shard = {"memory": "", "tars": "a.tar"}[kind]
        assert numbers(test) == [n for n in range(300) if is_held_out(mark(n, shard), Fraction(1, 5), 0)]
    pipeline.assert_resumes(
        lambda: source().split(val=0.2)[0].split(val=0.3)[1].shuffle(lanes=2).pack(8).batch(2), steps=(3,)
    )
    first = source().split(val=0.2)[0]
    states = [part.pack(8).state_dict() for part in (first, *first.split(val=0.3))]
    assert len({str(json.loads(state["shape"])["data"]) for state in states}) == 3


@pytest.mark.parametrize(("method", "name"), [("fork", "large"), ("forkserver", "small")])
def test_halves_go_through_workers_of_any_start_method(method: str, name: str, datasets: dict[str, Path]) -> None:
    # To its end: of torch's own spawned workers, some abort when they are stopped half-way, whatever they load.
    stream = pipeline.ShardDataset(datasets[name]).split(val=0.2)[1].shuffle(lanes=4).pack(16).batch(2).take(6)
    loader = DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context=method)
    for a, b in zip(stream, loader, strict=True):
        assert a["input_ids"].tolist() == b["input_ids"].tolist()


def test_the_state_of_one_half_or_share_is_refused_by_another(datasets: dict[str, Path]) -> None:
    def half(number: int, val: float) -> pipeline.Stream:
        return pipeline.ShardDataset(datasets["small"]).split(val=val)[number].pack(16)

    state = half(1, 0.2).state_dict()
    half(1, 0.2).load_state_dict(state)
    for other in (half(0, 0.2), half(1, 0.3), pipeline.ShardDataset(datasets["small"]).pack(16)):
        with pytest.raises(StateError, match="data was "):
            other.load_state_dict(state)


def test_remote_shards_split_as_local_ones_do(datasets: dict[str, Path], tmp_path: Path) -> None:
    with running_server() as server:
        server.files = {f"data/{path.name}": path.read_bytes() for path in datasets["small"].iterdir()}
        halves = pipeline.ShardDataset(server.url("data"), epochs=1, cache_dir=str(tmp_path)).split(val=0.1)
        assert not list(tmp_path.rglob("*.tar"))
        local = pipeline.ShardDataset(datasets["small"], epochs=1).split(val=0.1)
        assert [numbers(half) for half in halves] == [numbers(half) for half in local]


def in_subset_by_definition(units: list[tuple[int, str, int]], share: Fraction) -> set[int]:
    """Which of the units of a shard, by number, shard and tokens, are in a subset, in the words of the docstring."""
    left, before = share * sum(tokens for *_, tokens in units), 0
    kept = set()
    hashes = {mix64(mark(number, shard) ^ derive_key("subset")): (number, tokens) for number, shard, tokens in units}
    for hash in sorted(hashes):
        number, tokens = hashes[hash]
        if before + tokens * Fraction(mix64(hash) >> 11, 2**53) < left:
            kept.add(number)
        before += tokens
    return kept


@pytest.mark.parametrize("share", [Fraction(1, 3), Fraction(1, 32)])
def test_a_subset_has_the_documents_of_its_definition(datasets: dict[str, Path], share: Fraction) -> None:
    expected, before = list[int](), 0
    for shard, size in enumerate(SIZES["small"]):
        units = [(n, f"train-{shard:06d}.tar", 1 + (before + n) % 5) for n in range(size)]
        expected += [before + n for n in sorted(in_subset_by_definition(units, share))]
        before += size
    assert numbers(pipeline.ShardDataset(datasets["small"], epochs=1).subset(share)) == expected


@pytest.mark.parametrize("name", SIZES)
def test_subsets_are_exact_nested_and_apart_from_val_however_shards_grow(name: str, tmp_path: Path) -> None:
    sizes, extent_bytes = SIZES[name], EXTENTS[name]
    whole = pipeline.ShardDataset(write_shards(tmp_path / "all", sizes, extent_bytes), epochs=1)
    parts = {share: numbers(whole.subset(share)) for share in (1 / 4, 1 / 16, 1 / 32)}
    assert {*parts[1 / 32]} < {*parts[1 / 16]} < {*parts[1 / 4]}
    assert numbers(whole.subset(1 / 4).subset(1 / 8)) == parts[1 / 32]
    extent = 5 if name == "small" else 10  # tokens, at most
    for share, part in parts.items():
        tokens = sum(1 + n % 5 for n in part)
        assert abs(tokens - share * sum(1 + n % 5 for n in range(sum(sizes)))) <= extent * len(sizes)
    train, val = whole.split(val=0.1)
    assert {*numbers(train.subset(1 / 4))} <= {*numbers(train)}
    overlap = {*numbers(val)} & {*parts[1 / 4]}
    assert 0.1 < len(overlap) / len(numbers(val)) < 0.45  # a quarter of val, too
    if name == "large":
        fewer = pipeline.ShardDataset(write_shards(tmp_path / "fewer", [1000, 1, 99], 8), epochs=1)
        grown = pipeline.ShardDataset(write_shards(tmp_path / "grown", [1000, 1, 99, 900], 8), epochs=1)
        assert numbers(fewer.subset(1 / 4)) == [n for n in numbers(grown.subset(1 / 4)) if n < 1100]


def test_a_subset_of_texts_is_nested_apart_from_val_and_refused_by_states_of_the_whole(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"id": f"{n}", "text": f"{n}"}) for n in range(400)))
    whole = pipeline.TextDataset(tmp_path / "a.jsonl", "bytes", epochs=1)

    def ids(stream: Any) -> set[str]:
        rows = stream.documents()
        return {"".join(rows.decode(sample)) for sample in rows}

    quarter, eighth = ids(whole.subset(1 / 4)), ids(whole.subset(1 / 8))
    assert eighth < quarter
    assert 60 < len(quarter) < 140
    train, val = whole.split(val=0.5)
    assert ids(train.subset(1 / 4)) == quarter & ids(train) != quarter
    assert quarter & ids(val)
    assert ids(whole.subset(1 / 4).subset(1 / 2)) == eighth
    with pytest.raises(StateError, match="data was "):
        whole.pack(8).load_state_dict(whole.subset(1 / 4).pack(8).state_dict())


@pytest.mark.parametrize("unit", ["sequences", "tokens", "shares", "steps"])
def test_a_proxy_of_a_mix_repeats_each_source_as_often_as_the_target(unit: str, tmp_path: Path) -> None:
    data = pipeline.ShardDataset(write_shards(tmp_path / "data", [9000, 9000]))
    sources = {"web": data, "wiki": data.split(val=0.05)[1]}
    start, end = {"web": 3.0, "wiki": 1.0}, {"web": 1.0, "wiki": 1.0}
    target = 600_000
    half = {"sequences": 40_000, "tokens": target // 2, "shares": 0.5, "steps": 5_000}[unit]
    options: Any = {"shares": {"tokens": target}, "steps": {"global_batch": 8}}.get(unit, {})
    changes: Any = [(0, start), (half, end)]
    weights = changes if unit == "sequences" else pipeline.Schedule(changes, unit=unit, **options)
    mixed = pipeline.mix(sources, weights)
    whole, part = (
        each.shuffle().pack(8).plan(tokens=n) for each, n in ((mixed, target), (mixed.proxy(1 / 16), target / 16))
    )
    for name, row in whole.sources.items():
        assert part.sources[name]["epochs"] == pytest.approx(row["epochs"], rel=0.05)
    assert whole.sources["wiki"]["epochs"] > 30
    assert [phase["end"] for phase in part.phases] == pytest.approx(
        [phase["end"] / 16 for phase in whole.phases], rel=0.05
    )


def test_what_cannot_be_split_is_refused_with_the_reason(datasets: dict[str, Path], tmp_path: Path) -> None:
    for val in (0, 1, -0.1, 1.5, "x", True, float("nan")):
        with pytest.raises(ConfigError, match=r"as 0\.01, got"):
            pipeline.ShardDataset(datasets["small"]).split(val=val)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"holds no document: the whole has .*; take a larger share"):
        pipeline.ShardDataset(datasets["small"]).subset(1e-9)
    directory = write_shards(tmp_path / "swapped", [20, 30])
    (directory / "train-000000.tar").write_bytes((directory / "train-000001.tar").read_bytes())
    with pytest.raises(ManifestError, match=r"train-000000\.tar: 36352 .*26112"):
        pipeline.ShardDataset(directory).split(val=0.1)
    _, val = pipeline.ShardDataset(write_shards(tmp_path / "few", [3])).split(val=1e-9)
    with pytest.raises(ConfigError, match="val=1e-09' holds no tokens"):
        iter(val.pack(8))
