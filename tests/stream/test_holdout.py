from __future__ import annotations

import json
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
from pipeline.errors import ConfigError, ManifestError, ShardError, StateError
from pipeline.shards.writer import write_shard
from pipeline.stream.data.holdout import KEEP_ABOVE, held_out, split_data
from pipeline.stream.datasets import Documents
from pipeline.stream.order import derive_key
from tests.faulty_server import running_server
from tests.order_oracle import mix64
from tests.shard_samples import write_dataset, write_manifest


def by_definition(key: str, share: Fraction, level: int = 0) -> bool:
    """The rule in the words of its docstring, with Python integers."""

    raw, state = key.encode("utf-8", "surrogatepass"), derive_key("split", level) if level else derive_key("split")
    for start in range(0, len(raw), 8):
        state = mix64(state ^ int.from_bytes(raw[start : start + 8], "little"))
    return Fraction(state, 2**64) < share


def documents_of(count: int, first: int = 0) -> list[Any]:
    """Documents that tell which they are: the token ``number``, one to five times."""
    return [np.full(1 + (first + j) % 5, 1 + first + j, dtype="<u2") for j in range(count)]


def write_split_over(directory: Path, sizes: list[int], **options: Any) -> Path:
    """One dataset of the same documents and keys, cut into shards of ``sizes`` documents."""
    first, infos = 0, []
    directory.mkdir()
    for number, size in enumerate(sizes):
        documents = documents_of(size, first)
        tokens = np.concatenate(documents) if documents else np.zeros(0, "<u2")
        keys = [f"{first + j:012d}" for j in range(size)]
        path = directory / f"train-{number:06d}.tar"
        infos.append(write_shard(path, tokens=tokens, lengths=[len(d) for d in documents], keys=keys, **options))
        first += size
    write_manifest(directory, {"train": infos})
    return directory


def numbers(stream: pipeline.Stream) -> list[int]:
    """Which documents a bounded stream holds, in its order."""
    return [int(sample["input_ids"][0]) - 1 for sample in stream.documents()]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_split_over(tmp_path_factory.mktemp("splitting") / "data", [200, 1, 99, 300])


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


def test_every_document_is_in_exactly_one_half_chosen_by_its_key(dataset: Path) -> None:
    rest, val = (numbers(half) for half in pipeline.ShardDataset(dataset, epochs=1).split(val=0.1))
    assert val == [n for n in range(600) if by_definition(f"{n:012d}", Fraction(1, 10))]
    assert sorted(rest + val) == list(range(600))
    assert 30 < len(val) < 90


@pytest.mark.parametrize("sizes", [[600], [50] * 12, [0, 599, 1]])
@pytest.mark.parametrize("group", [0, 40])
def test_a_document_keeps_its_half_when_the_number_of_shards_changes(
    dataset: Path, tmp_path: Path, sizes: list[int], group: int
) -> None:
    other = write_split_over(tmp_path / "other", sizes, tokens_per_sample=group)
    halves = [[numbers(h) for h in pipeline.ShardDataset(d, epochs=1).split(val=0.1)] for d in (dataset, other)]
    assert halves[0] == halves[1]


def test_halves_shuffle_pack_and_resume_as_whole_datasets_do(dataset: Path) -> None:
    for half in (0, 1):
        make = lambda: pipeline.ShardDataset(dataset).split(val=0.2)[half].shuffle(lanes=4).pack(16).batch(2)  # noqa: B023, E731
        pipeline.assert_resumes(make)
        bounded = pipeline.ShardDataset(dataset, epochs=1).split(val=0.2)[half]
        packed = bounded.shuffle(lanes=4).pack(16).batch(1)
        held = [t for b in packed for t, label in zip(b["input_ids"][0].tolist(), b["labels"][0], strict=True) if t]
        assert sorted(held) == sorted(int(t) for s in bounded.documents() for t in s["input_ids"])


@given(st.lists(st.text(st.characters(exclude_characters="\0"), min_size=1), max_size=9), st.integers(1, 3))
def test_the_rule_of_a_later_split_is_its_definition(keys: list[str], level: int) -> None:
    share = Fraction(1, 3)
    assert held_out(keys, share, level).tolist() == [by_definition(key, share, level) for key in keys]


def test_a_half_splits_again_by_a_hash_of_its_own(dataset: Path) -> None:
    tenth = Fraction(1, 10)
    rest, test = pipeline.ShardDataset(dataset, epochs=1).split(val=0.1)
    train, val = rest.split(val=0.1)
    first = [by_definition(f"{n:012d}", tenth) for n in range(600)]
    second = [by_definition(f"{n:012d}", tenth, level=1) for n in range(600)]
    assert numbers(test) == [n for n in range(600) if first[n]]
    assert numbers(val) == [n for n in range(600) if second[n] and not first[n]]
    assert sorted(numbers(train) + numbers(val) + numbers(test)) == list(range(600))
    few, fewer = test.split(val=0.5)
    assert sorted(numbers(few) + numbers(fewer)) == numbers(test)
    third, _ = val.split(val=0.5)
    assert numbers(third) == [n for n in numbers(val) if not by_definition(f"{n:012d}", Fraction(1, 2), level=2)]


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
    chosen = [n for n in range(300) if not by_definition(str(n), Fraction(1, 5))]
    chosen = [n for n in chosen if by_definition(str(n), Fraction(3, 10), level=1)]
    assert len(held(val)) == len(chosen) > 40
    pipeline.assert_resumes(lambda: source().split(val=0.2)[0].split(val=0.3)[1].shuffle(lanes=2).pack(8).batch(2))
    states = [
        part.pack(8).state_dict() for part in (source().split(val=0.2)[0], *source().split(val=0.2)[0].split(val=0.3))
    ]
    assert len({str(json.loads(state["shape"])["data"]) for state in states}) == 3


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_halves_go_through_workers_of_any_start_method(dataset: Path, method: str) -> None:
    # To its end: of torch's own spawned workers, some abort when they are stopped half-way, whatever they load.
    stream = pipeline.ShardDataset(dataset).split(val=0.2)[1].shuffle(lanes=4).pack(16).batch(2).take(6)
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


def test_tars_of_other_tools_split_by_the_names_of_their_members(tmp_path: Path) -> None:
    keys = [f"web/{n}" for n in range(80)]
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as tar:
        for n, key in enumerate(keys):
            tar.write({"__key__": key, "npy": np.full(2, n + 1, np.int64)})
    rest, val = (numbers(h) for h in pipeline.ShardDataset(tmp_path / "a.tar", epochs=1).split(val=0.3))
    assert val == [n for n, key in enumerate(keys) if by_definition(key, Fraction(3, 10))]
    assert sorted(rest + val) == list(range(80))


def test_tokens_in_memory_split_by_the_number_of_the_document() -> None:
    data = pipeline.ShardDataset.from_tokens(np.repeat(np.arange(1, 101), 2), lengths=[2] * 100, epochs=1)
    rest, val = (numbers(half) for half in data.split(val=0.3))
    assert val == [n for n in range(100) if by_definition(str(n), Fraction(3, 10))]
    assert sorted(rest + val) == list(range(100))


def test_remote_shards_split_by_their_indexes_without_a_download(dataset: Path, tmp_path: Path) -> None:
    with running_server() as server:
        server.objects = {f"data/{path.name}": path.read_bytes() for path in dataset.iterdir()}
        data = pipeline.ShardDataset(server.url("data"), epochs=1, cache_dir=str(tmp_path))
        halves = data.split(val=0.1)
        assert not list(tmp_path.rglob("*.tar"))
        local = pipeline.ShardDataset(dataset, epochs=1).split(val=0.1)
        assert [numbers(half) for half in halves] == [numbers(half) for half in local]


def test_counts_of_many_documents_are_kept_and_others_leave_no_trace(dataset: Path, tmp_path: Path) -> None:
    def halves(directory: Path = dataset, keep_above: int = 0) -> list[list[int]]:
        data = pipeline.ShardDataset(directory, cache_dir=str(tmp_path / "cache"))._data
        return [numbers(Documents(half, epochs=1)) for half in split_data(data, Fraction(1, 10), keep_above)]

    expected = halves(keep_above=KEEP_ABOVE)
    assert not list((tmp_path / "cache").rglob("split-*"))
    assert halves() == expected
    (kept,) = (tmp_path / "cache" / "index").glob("split-*")
    other = write_split_over(tmp_path / "other", [300, 99, 100, 101])  # counts of as many shards in the same cache
    assert halves(other) == expected
    with np.load(kept) as arrays:
        sound = dict(arrays)
    np.savez(kept, **{name: np.zeros_like(array) for name, array in sound.items()})
    with pytest.raises(ConfigError, match="holds no documents"):  # what is kept is used, and nothing counted again
        halves()
    odd = {"bits": sound["bits"][1:]}, {"tokens": sound["tokens"] * 1000}, {"documents": sound["documents"][:-1]}
    for damage in (b"", kept.read_bytes()[:-30]):
        kept.write_bytes(damage)
        assert halves() == expected
    for change in odd:
        np.savez(kept, **{**sound, **change})
        assert halves() == expected


def test_a_shard_that_is_not_the_manifests_is_refused_by_the_split(tmp_path: Path) -> None:
    directory = write_split_over(tmp_path / "data", [20, 30])
    (directory / "train-000000.tar").write_bytes((directory / "train-000001.tar").read_bytes())
    with pytest.raises(ManifestError, match=r"train-000000\.tar: its footer says documents 30, the manifest 20"):
        pipeline.ShardDataset(directory).split(val=0.1)


def test_a_shard_replaced_after_the_split_is_told(tmp_path: Path) -> None:
    paths = [tmp_path / "a.tar", tmp_path / "b.tar"]
    for path, count in zip(paths, (40, 60), strict=True):
        with webdataset.TarWriter(str(path)) as tar:
            for n in range(count):
                tar.write({"__key__": str(n), "npy": np.arange(n % 3 + 1)})
    rest, _ = pipeline.ShardDataset(paths[0], epochs=1).split(val=0.5)
    paths[1].rename(paths[0])
    with pytest.raises(ShardError, match="was written since the stream was made"):
        numbers(rest)


@pytest.mark.parametrize("val", [0, 1, -0.1, 1.5, "x", True, float("nan")])
def test_a_share_that_holds_out_nothing_or_all_is_refused(dataset: Path, val: Any) -> None:
    with pytest.raises(ConfigError, match=r"as 0\.01, got"):
        pipeline.ShardDataset(dataset).split(val=val)


def test_a_half_without_documents_says_so_instead_of_spinning(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [documents_of(3)])
    _, val = pipeline.ShardDataset(tmp_path / "data").split(val=1e-9)
    with pytest.raises(ConfigError, match="val=1e-09' holds no tokens"):
        iter(val.pack(8))
