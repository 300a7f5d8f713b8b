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
from pipeline.shards.extents.file import EXTENTS_NAME, decode_table
from pipeline.shards.extents.table import EXTENT_BYTES
from pipeline.stream.data.holdout import held_out
from pipeline.stream.order import derive_key
from tests.faulty_server import running_server
from tests.order_oracle import is_held_out, mark, mix64
from tests.shard_samples import index_extents, write_dataset


def by_definition(key: str, share: Fraction, level: int = 0) -> bool:
    """The rule in the words of its docstring, with Python integers."""

    raw, state = key.encode("utf-8", "surrogatepass"), derive_key("split", level) if level else derive_key("split")
    for start in range(0, len(raw), 8):
        state = mix64(state ^ int.from_bytes(raw[start : start + 8], "little"))
    return Fraction(state, 2**64) < share


def documents_of(count: int, first: int = 0) -> list[Any]:
    """Documents that tell which they are: the token ``number``, one to five times."""
    return [np.full(1 + (first + j) % 5, 1 + first + j, dtype="<u2") for j in range(count)]


def write_shards(directory: Path, sizes: list[int], extent_bytes: int = EXTENT_BYTES, **options: Any) -> Path:
    """Write a dataset of shards of ``sizes`` documents, numbered over all of them."""
    firsts = [sum(sizes[:k]) for k in range(len(sizes))]
    write_dataset(directory, [documents_of(*pair) for pair in zip(sizes, firsts, strict=True)], **options)
    index_extents(directory, extent_bytes)
    return directory


def numbers(stream: pipeline.Stream) -> list[int]:
    """Which documents a bounded stream holds, in its order."""
    return [int(sample["input_ids"][0]) - 1 for sample in stream.documents()]


SIZES = [700, 1, 99, 600]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose documents are split."""
    return write_shards(tmp_path_factory.mktemp("splitting") / "data", SIZES)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of more than 1,000 extents, of a document or two each."""
    return write_shards(tmp_path_factory.mktemp("splitting") / "large", [1000, 1, 99, 900], extent_bytes=10)


@given(st.lists(st.text(st.characters(exclude_characters="\0"), min_size=1), max_size=9))
@example(["\udce9", "a\ud800"])
def test_the_vectorised_rule_is_its_definition_and_knows_no_company(keys: list[str]) -> None:
    share = Fraction(1, 3)
    expected = [by_definition(key, share) for key in keys]
    assert held_out(keys, share).tolist() == expected
    assert [held_out([key], share).tolist()[0] for key in keys] == expected


def test_one_long_key_among_many_takes_little_room() -> None:
    keys = [str(n) for n in range(100_000)]
    tracemalloc.start()
    try:
        held = held_out([*keys, "x" * 8000], Fraction(1, 10))
        assert tracemalloc.get_traced_memory()[1] < 150 << 20  # all in the room of the longest: 800 MB
    finally:
        tracemalloc.stop()
    assert held[:-1].tolist() == held_out(keys, Fraction(1, 10)).tolist()


@pytest.mark.parametrize("share", [Fraction(1, 1000), Fraction(1, 100), Fraction(1, 2)])
def test_the_share_held_out_of_like_keys_is_the_one_asked_for(share: Fraction) -> None:
    for make in ("{:012d}".format, "https://example.org/page/{}".format):
        count = 200_000
        held = int(held_out([make(n) for n in range(count)], share).sum())
        assert abs(held - count * share) < 5 * float(count * share * (1 - share)) ** 0.5


def test_a_larger_share_holds_out_what_a_smaller_one_did_and_more() -> None:
    keys = [str(n) for n in range(5000)]
    small, large = held_out(keys, Fraction(1, 100)), held_out(keys, Fraction(2, 100))
    assert (large >= small).all()
    assert large.sum() > small.sum()


def is_out(n: int, shard: str, share: str = "1/10", level: int = 0) -> bool:
    return is_held_out(mark(n, shard), Fraction(share), level)


def test_every_document_is_in_exactly_one_half_by_its_shards_name_and_its_number_there(dataset: Path) -> None:
    rest, val = (numbers(half) for half in pipeline.ShardDataset(dataset, epochs=1).split(val=0.1))
    places = [(n, f"train-{k:06d}.tar") for k, size in enumerate(SIZES) for n in range(size)]
    assert val == [j for j, place in enumerate(places) if is_out(*place)]
    assert sorted(rest + val) == list(range(1400))
    assert 100 < len(val) < 180


def test_of_more_than_1000_extents_each_is_in_one_half_and_nothing_is_read(large: Path, tmp_path: Path) -> None:
    table = decode_table((large / EXTENTS_NAME).read_bytes())
    assert len(table) > 1000
    expected = []
    for row in range(len(table)):
        shard = int(table.shard_numbers[row])
        if is_out(row - int(table.shard_bounds[shard]), f"train-{shard:06d}.tar"):
            expected += range(int(table.document_sums[row]), int(table.document_sums[row + 1]))
    for path in large.glob("*.tar"):
        path.rename(tmp_path / path.name)
    halves = pipeline.ShardDataset(large, epochs=1).split(val=0.1)
    assert [len(half.documents()) for half in halves] == [2000 - len(expected), len(expected)]
    for path in tmp_path.glob("*.tar"):
        path.rename(large / path.name)
    rest, val = (numbers(half) for half in halves)
    assert val == expected
    assert sorted(rest + val) == list(range(2000))


@pytest.mark.parametrize("extent_bytes", [10, EXTENT_BYTES])
@pytest.mark.parametrize("group", [0, 40])
def test_halves_stay_as_they_are_when_shards_are_added_or_grouped_otherwise(
    tmp_path: Path, extent_bytes: int, group: int
) -> None:
    few = write_shards(tmp_path / "few", [1200, 50], extent_bytes)
    more = write_shards(
        tmp_path / "more", [1200, 50, 300], extent_bytes, tokens_per_sample=group if extent_bytes > 10 else 0
    )
    for one, other in zip(*(pipeline.ShardDataset(each, epochs=1).split(val=0.1) for each in (few, more)), strict=True):
        assert numbers(one) == [n for n in numbers(other) if n < 1250]


def test_more_than_200_mb_of_few_long_documents_are_split_by_extents_and_not_read(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["dataset", "large"])
def test_halves_shuffle_pack_and_resume_as_whole_datasets_do(name: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(name)
    for half in (0, 1):
        make = lambda: pipeline.ShardDataset(path).split(val=0.2)[half].shuffle(lanes=4).pack(16).batch(2)  # noqa: B023, E731
        pipeline.assert_resumes(make)
        bounded = pipeline.ShardDataset(path, epochs=1).split(val=0.2)[half]
        packed = bounded.shuffle(lanes=4).pack(16).batch(1)
        held = [t for b in packed for t, label in zip(b["input_ids"][0].tolist(), b["labels"][0], strict=True) if t]
        assert sorted(held) == sorted(int(t) for s in bounded.documents() for t in s["input_ids"])


@given(st.lists(st.text(st.characters(exclude_characters="\0"), min_size=1), max_size=9), st.integers(1, 3))
def test_the_rule_of_a_later_split_is_its_definition(keys: list[str], level: int) -> None:
    share = Fraction(1, 3)
    assert held_out(keys, share, level).tolist() == [by_definition(key, share, level) for key in keys]


@pytest.mark.parametrize("name", ["dataset", "large"])
def test_a_half_splits_again_by_a_hash_of_its_own(name: str, request: pytest.FixtureRequest) -> None:
    whole = pipeline.ShardDataset(request.getfixturevalue(name), epochs=1)
    rest, test = whole.split(val=0.1)
    train, val = rest.split(val=0.1)
    assert sorted(numbers(train) + numbers(val) + numbers(test)) == numbers(whole)
    assert 0.04 < len(numbers(val)) / len(numbers(whole)) < 0.16
    few, fewer = test.split(val=0.5)
    assert sorted(numbers(few) + numbers(fewer)) == numbers(test)
    assert {*numbers(rest.split(val=0.2)[1])} > {*numbers(val)}


def test_a_small_half_of_a_large_dataset_splits_again_by_documents(large: Path) -> None:
    _, held = pipeline.ShardDataset(large, epochs=1).split(val=0.1)
    few, fewer = held.split(val=0.5)
    assert type(few._data).__name__ == "SelectedDocuments"
    assert sorted(numbers(few) + numbers(fewer)) == numbers(held)
    places = [(n, f"train-{k:06d}.tar") for k, size in enumerate([1000, 1, 99, 900]) for n in range(size)]
    assert numbers(fewer) == [n for n in numbers(held) if is_out(*places[n], share="1/2", level=1)]


def test_splits_of_one_share_are_independent() -> None:
    keys = [f"{n:012d}" for n in range(100_000)]
    first, second = held_out(keys, Fraction(1, 5)), held_out(keys, Fraction(1, 5), level=1)
    assert abs(int((first & second).sum()) - 4000) < 300


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
    pipeline.assert_resumes(lambda: source().split(val=0.2)[0].split(val=0.3)[1].shuffle(lanes=2).pack(8).batch(2))
    states = [
        part.pack(8).state_dict() for part in (source().split(val=0.2)[0], *source().split(val=0.2)[0].split(val=0.3))
    ]
    assert len({str(json.loads(state["shape"])["data"]) for state in states}) == 3


@pytest.mark.parametrize(("method", "name"), [("fork", "large"), ("forkserver", "dataset")])
def test_halves_go_through_workers_of_any_start_method(method: str, name: str, request: pytest.FixtureRequest) -> None:
    # To its end: of torch's own spawned workers, some abort when they are stopped half-way, whatever they load.
    whole = pipeline.ShardDataset(request.getfixturevalue(name))
    stream = whole.split(val=0.2)[1].shuffle(lanes=4).pack(16).batch(2).take(6)
    loader = DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context=method)
    for a, b in zip(stream, loader, strict=True):
        assert a["input_ids"].tolist() == b["input_ids"].tolist()


def test_the_state_of_one_half_or_share_is_refused_by_another(dataset: Path) -> None:
    def half(number: int, val: float) -> pipeline.Stream:
        return pipeline.ShardDataset(dataset).split(val=val)[number].pack(16)

    state = half(1, 0.2).state_dict()
    half(1, 0.2).load_state_dict(state)
    for other in (half(0, 0.2), half(1, 0.3), pipeline.ShardDataset(dataset).pack(16)):
        with pytest.raises(StateError, match="data was "):
            other.load_state_dict(state)


def test_tars_and_tokens_in_memory_split_by_the_numbers_of_their_documents(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as tar:
        for n in range(80):
            tar.write({"__key__": f"web/{n}", "npy": np.full(2, n + 1, np.int64)})
    array = pipeline.ShardDataset.from_tokens(np.repeat(np.arange(1, 81), 2), lengths=[2] * 80, epochs=1)
    for data, name in ((pipeline.ShardDataset(tmp_path / "a.tar", epochs=1), "a.tar"), (array, "")):
        rest, val = (numbers(half) for half in data.split(val=0.3))
        assert val == [n for n in range(80) if is_out(n, name, "3/10")]
        assert sorted(rest + val) == list(range(80))


def test_remote_shards_split_as_local_ones_do(dataset: Path, tmp_path: Path) -> None:
    with running_server() as server:
        server.objects = {f"data/{path.name}": path.read_bytes() for path in dataset.iterdir()}
        halves = pipeline.ShardDataset(server.url("data"), epochs=1, cache_dir=str(tmp_path)).split(val=0.1)
        assert not list(tmp_path.rglob("*.tar"))
        local = pipeline.ShardDataset(dataset, epochs=1).split(val=0.1)
        assert [numbers(half) for half in halves] == [numbers(half) for half in local]


def test_a_shard_that_is_not_the_manifests_is_refused_by_the_split(tmp_path: Path) -> None:
    directory = write_shards(tmp_path / "data", [20, 30])
    (directory / "train-000000.tar").write_bytes((directory / "train-000001.tar").read_bytes())
    with pytest.raises(ManifestError, match=r"train-000000\.tar: 36352 bytes, but the manifest says 26112"):
        pipeline.ShardDataset(directory).split(val=0.1)


@pytest.mark.parametrize("val", [0, 1, -0.1, 1.5, "x", True, float("nan")])
def test_a_share_that_holds_out_nothing_or_all_is_refused(dataset: Path, val: Any) -> None:
    with pytest.raises(ConfigError, match=r"as 0\.01, got"):
        pipeline.ShardDataset(dataset).split(val=val)


def test_a_half_without_documents_says_so_instead_of_spinning(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [documents_of(3)])
    _, val = pipeline.ShardDataset(tmp_path / "data").split(val=1e-9)
    with pytest.raises(ConfigError, match="val=1e-09' holds no tokens"):
        iter(val.pack(8))
