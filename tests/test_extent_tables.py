"""The table of extents of a dataset: written, computed, kept, fetched and held to what it describes."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import shutil
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset

from pipeline.builder.build import build
from pipeline.builder.report.console import Progress
from pipeline.errors import ConfigError, CorruptShardError, ManifestError, ShardError, StorageError
from pipeline.shards.extents.file import EXTENTS_NAME, decode_table, encode_table
from pipeline.shards.extents.indexing import index_dataset, write_table
from pipeline.shards.extents.loading import Limits, load_extent_table
from pipeline.shards.extents.table import CHECKSUMS, COUNTS, PER_SHARD, ExtentTable
from pipeline.shards.manifest import MANIFEST_NAME, Manifest, Split
from pipeline.shards.reader import read_index
from pipeline.shards.remote.store import Store
from pipeline.shards.remote.transport import Access
from pipeline.shards.resolve import resolve
from pipeline.shards.verify.dataset import Problem, verify_dataset
from scripts.index_shards import main as index_main
from tests.corpus import english
from tests.faulty_server import FaultyServer, running_server
from tests.shard_samples import EOS, make_documents, write_dataset, write_documents

ROOT = Path(__file__).resolve().parents[1]
QUICK = Access(tries=3, first_delay=0.001, timeout=10, least_patience=10)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A dataset of version 1: two splits, an empty shard, shards of one extent and of several, grouped members."""
    folder = tmp_path / "data"
    folder.mkdir()
    long = {"longest": 30_000}
    infos = {
        "train": (
            write_documents(folder / "train-000000.tar", make_documents(40, seed=0, **long), 0),
            write_documents(folder / "train-000001.tar", [], 40),
            write_documents(
                folder / "train-000002.tar", make_documents(30, seed=1, **long), 40, tokens_per_sample=60_000
            ),
        ),
        "a-val": (write_documents(folder / "val-000000.tar", make_documents(25, seed=2, longest=9), 90),),
    }
    tokenizer = {"name": "test", "sha256": "0" * 64, "vocab_size": 60_000, "eos_id": EOS, "bos_id": None}
    Manifest("<u2", tokenizer, {name: Split(shards) for name, shards in infos.items()}).write(folder)
    return folder


def load(source: Any, cache: Path, split: str = "train") -> ExtentTable:
    store = Store(cache, access=QUICK)
    return load_extent_table(resolve(source, split, store), store, Limits(keep_bytes=0))


def columns(table: ExtentTable, *without: str) -> dict[str, Any]:
    names = [name for name in (*PER_SHARD, *COUNTS, *CHECKSUMS) if name not in without]
    return {name: getattr(table, name).tolist() for name in names}


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "extents").glob("*.bin"))


def edit_table(folder: Path, column: str, at: int, value: int) -> None:
    """Change one value of a dataset's table, and every hash that covers it."""
    table = decode_table((folder / EXTENTS_NAME).read_bytes())
    changed = getattr(table, column).copy()
    changed[at] = value
    manifest = Manifest.read(folder)
    replace(manifest, extents=write_table(folder, [replace(table, **{column: changed})], "<u2")).write(folder)


# Writing


def test_the_table_holds_every_checksum_of_every_shard_in_the_order_of_the_splits(dataset: Path) -> None:
    manifest = index_dataset(dataset)
    table = decode_table((dataset / EXTENTS_NAME).read_bytes())
    names = ["val-000000.tar", "train-000000.tar", "train-000001.tar", "train-000002.tar"]
    assert [info.name for info in manifest.shards] == names
    assert table.extents[1] > 3
    assert table.extents[2] == 0
    assert table.extents[3] > 3
    assert table.crc32 is not None
    for number, name in enumerate(names):
        raw, index = (dataset / name).read_bytes(), read_index(dataset / name)
        for extent in range(int(table.shard_bounds[number]), int(table.shard_bounds[number + 1])):
            offset, size = int(table.offsets[extent]), int(table.sizes[extent])
            assert zlib.crc32(raw[offset : offset + size]) == table.crc32[extent]
            first, count = int(table.first_documents[extent]), int(table.documents[extent])
            at = [int(table.starts_at[number]) + 8 * first, int(table.lengths_at[number]) + 4 * first]
            starts, lengths = raw[at[0] : at[0] + 8 * count], raw[at[1] : at[1] + 4 * count]
            assert np.frombuffer(starts, "<u8").tolist() == index.starts[first : first + count].tolist()
            assert np.frombuffer(lengths, "<u4").tolist() == index.lengths[first : first + count].tolist()
            assert zlib.crc32(lengths, zlib.crc32(starts)) == table.index_crc32[extent]


def test_a_manifest_of_either_version_has_one_fingerprint_and_comes_back_byte_for_byte(dataset: Path) -> None:
    before, old = Manifest.read(dataset), json.loads((dataset / MANIFEST_NAME).read_bytes())
    after = index_dataset(dataset)
    raw = (dataset / MANIFEST_NAME).read_bytes()
    new = json.loads(raw)
    assert (old.pop("version"), new.pop("version")) == (1, 2)
    assert new.pop("extents") == {
        "name": EXTENTS_NAME,
        "bytes": (dataset / EXTENTS_NAME).stat().st_size,
        "sha256": hashlib.sha256((dataset / EXTENTS_NAME).read_bytes()).hexdigest(),
    }
    assert old == new
    assert before.fingerprint == after.fingerprint
    Manifest.read(dataset).write(dataset)
    assert (dataset / MANIFEST_NAME).read_bytes() == raw


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "../extents.bin", "bytes": 1, "sha256": "0"}, "plain file"),
        ({"name": "extents.bin", "bytes": -1, "sha256": "0"}, "plain file"),
        ({"name": "extents.bin", "bytes": "1", "sha256": "0"}, "plain file"),
        ({"name": "extents.bin", "bytes": 1}, "sha256"),
        (["extents.bin"], "malformed"),
    ],
)
def test_a_manifest_that_names_no_plain_file_as_table_is_refused(dataset: Path, entry: Any, message: str) -> None:
    value = json.loads((dataset / MANIFEST_NAME).read_text()) | {"version": 2, "extents": entry}
    with pytest.raises(ManifestError, match=message):
        Manifest.parse(json.dumps(value))


def test_indexing_an_older_dataset_gives_the_bytes_of_the_builder(tmp_path: Path) -> None:
    lines = [json.dumps({"id": str(k), "text": english(k, 40)}) for k in range(300)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    options: dict[str, Any] = {"tokenizer": "bytes", "rules": (), "dedup": False, "progress": Progress(quiet=True)}
    options |= {"tokens_per_shard": 200_000, "val_fraction": 0.1, "tokens_per_sample": 500, "start_method": "fork"}
    for workers in (1, 2):
        build(tmp_path / "in.jsonl", tmp_path / f"{workers}", workers=workers, **options)
    one, two = tmp_path / "1", tmp_path / "2"
    built = (one / EXTENTS_NAME).read_bytes()
    assert (two / EXTENTS_NAME).read_bytes() == built
    manifest = (one / MANIFEST_NAME).read_bytes()
    assert len(decode_table(built)) > len(list(one.glob("*.tar"))) > 3
    replace(Manifest.read(one), extents=None).write(one)
    (one / EXTENTS_NAME).unlink()
    index_dataset(one, workers=2)
    assert (one / EXTENTS_NAME).read_bytes() == built
    assert (one / MANIFEST_NAME).read_bytes() == manifest
    assert list(verify_dataset(one)) == []


def test_indexing_goes_on_after_a_kill_between_its_two_files_and_leaves_a_sound_table_alone(dataset: Path) -> None:
    old = (dataset / MANIFEST_NAME).read_bytes()
    index_dataset(dataset)
    new, table = (dataset / MANIFEST_NAME).read_bytes(), (dataset / EXTENTS_NAME).read_bytes()
    (dataset / MANIFEST_NAME).write_bytes(old)
    (problem,) = verify_dataset(dataset)
    assert "manifest.json does not name it; remove it, or complete it: shardwright index" in problem.message
    index_dataset(dataset)
    assert (dataset / MANIFEST_NAME).read_bytes() == new
    before = (dataset / EXTENTS_NAME).stat().st_mtime_ns
    index_dataset(dataset)
    assert (dataset / EXTENTS_NAME).stat().st_mtime_ns == before
    (dataset / EXTENTS_NAME).write_bytes(table[:-1])
    index_dataset(dataset)
    assert (dataset / EXTENTS_NAME).read_bytes() == table


def test_indexing_refuses_shards_that_are_not_the_manifests_and_writes_nothing(dataset: Path) -> None:
    path = dataset / "train-000002.tar"
    raw = path.read_bytes()
    for changed, kind in ((raw[:-512], CorruptShardError), (raw[:700] + b"\xff\xfe" + raw[702:], CorruptShardError)):
        path.write_bytes(changed)
        with pytest.raises(kind, match=r"train-000002\.tar"):
            index_dataset(dataset, workers=2)
    path.unlink()
    with pytest.raises(ManifestError, match="not there"):
        index_dataset(dataset)
    assert not (dataset / EXTENTS_NAME).exists()
    with pytest.raises(ConfigError, match="directory of this machine"):
        index_dataset("s3://bucket/data")
    with pytest.raises(ConfigError, match="workers must be 1 or more"):
        index_dataset(dataset, workers=0)


def test_the_command_indexes_and_says_what_is_wrong(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "index_shards.py"), str(dataset)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "extents.bin describes 4 shards" in found.stdout
    assert Manifest.read(dataset).extents is not None
    assert index_main([str(dataset / "none")]) == 1
    assert "no complete dataset" in capsys.readouterr().err
    assert index_main(["https://host/data"]) == 2
    with pytest.raises(SystemExit):
        index_main([str(dataset), "--workers", "0"])


# Loading


def test_an_indexed_dataset_is_loaded_without_opening_a_shard(dataset: Path, tmp_path: Path) -> None:
    index_dataset(dataset)
    for path in dataset.glob("*.tar"):
        path.unlink()
    table = load(dataset, tmp_path / "cache")
    assert table.shards == 3
    assert load(dataset, tmp_path / "cache", "a-val").extents.tolist() == [1]
    assert not (tmp_path / "cache").exists()


def test_a_dataset_without_a_table_gives_the_same_but_for_the_checksums_of_bytes(dataset: Path, tmp_path: Path) -> None:
    computed = load(dataset, tmp_path / "cache")
    assert computed.crc32 is None
    (place,) = kept(tmp_path / "cache")
    assert encode_table(decode_table(place.read_bytes())) == encode_table(computed)
    index_dataset(dataset)
    assert columns(load(dataset, tmp_path / "cache"), "crc32") == columns(computed, "crc32")


def test_a_kept_table_is_used_until_it_is_damaged(dataset: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    wanted = columns(load(dataset, cache), "crc32")
    (place,) = kept(cache)
    for path in dataset.glob("*.tar"):
        path.rename(path.with_suffix(".away"))
    assert columns(load(dataset, cache), "crc32") == wanted
    for path in dataset.glob("*.away"):
        path.rename(path.with_suffix(".tar"))
    for raw in (b"", place.read_bytes()[:-5], b"\0" * 999):
        place.write_bytes(raw)
        assert columns(load(dataset, cache), "crc32") == wanted
    other = load([dataset / "val-000000.tar"], cache)
    place.write_bytes(encode_table(other))
    assert columns(load(dataset, cache), "crc32") == wanted


def test_a_table_of_few_bytes_is_not_kept(dataset: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    size = sum(path.stat().st_size for path in dataset.glob("train-*.tar"))
    for source in (dataset, f"{dataset}/train-*.tar"):
        for more, times in ((1, 0), (0, 1)):
            load_extent_table(resolve(source, "train", store), store, Limits(keep_bytes=size + more))
            assert len(kept(tmp_path / "cache")) == times
        shutil.rmtree(tmp_path / "cache")
        (dataset / MANIFEST_NAME).unlink(missing_ok=True)


def test_shards_by_list_glob_and_braces_have_the_rows_that_they_have_in_the_table(
    dataset: Path, tmp_path: Path
) -> None:
    index_dataset(dataset)
    cache = tmp_path / "cache"
    whole = load(dataset, cache)
    assert columns(load(f"{dataset}/train-*.tar", cache)) == columns(whole)
    assert columns(load(f"{dataset}/train-{{000000..000001}}.tar", cache)) == columns(whole.select([0, 1]))
    assert columns(load([dataset / "train-000002.tar"], cache)) == columns(whole.select([2]))
    assert whole.select(range(3)) is whole  # whose sums are there
    both = load([dataset / "val-000000.tar", dataset / "train-000000.tar"], cache)
    assert both.per_shard(both.document_sums).tolist() == [40, 25]


def test_tars_without_a_manifest_are_computed_and_kept_until_one_changes(dataset: Path, tmp_path: Path) -> None:
    index_dataset(dataset)
    cache = tmp_path / "cache"
    wanted = columns(load(dataset, cache), "crc32")
    (dataset / MANIFEST_NAME).unlink()
    spec = f"{dataset}/train-*.tar"
    assert columns(load(spec, cache), "crc32") == wanted
    (place,) = kept(cache)
    before = place.stat().st_mtime_ns
    assert columns(load(spec, cache), "crc32") == wanted
    assert place.stat().st_mtime_ns == before
    place.write_bytes(encode_table(decode_table(place.read_bytes()).select([0])))
    assert columns(load(spec, cache), "crc32") == wanted
    write_documents(dataset / "train-000001.tar", make_documents(3), 40)
    assert load(spec, cache).document_sums[-1] == 73
    assert len(kept(cache)) == 2


@pytest.mark.parametrize("dtype", ["<u2", "<i4"])
def test_tars_of_other_tools_have_a_table_too(tmp_path: Path, dtype: str) -> None:
    documents = [np.arange(count, dtype=dtype) for count in (3, 0, 150_000, 1, 90_000, 90_000, 2)]
    path = tmp_path / "web-000.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for number, document in enumerate(documents):
            writer.write({"__key__": f"{number:06d}", "npy": document, "json": {"n": number}})
    table = load(str(path), tmp_path / "cache")
    assert table.dtype == np.dtype(dtype)
    assert len(table) > 2
    assert table.starts_at.tolist() == table.lengths_at.tolist() == [0]
    index = read_index(path)
    ends = table.offsets + table.sizes
    for extent, first in enumerate(table.first_documents.tolist()):
        mine = slice(first, first + int(table.documents[extent]))
        assert index.starts[mine].min() >= table.offsets[extent]
        assert (index.starts[mine] + index.lengths[mine] * table.itemsize).max() <= ends[extent]
        assert table.tokens[extent] == index.lengths[mine].sum()
    assert int(ends[-1]) <= path.stat().st_size
    os.utime(path, ns=(1, 1))
    assert columns(load(str(path), tmp_path / "cache"), "crc32") == columns(table, "crc32")
    assert len(kept(tmp_path / "cache")) == 2


def test_tars_of_two_dtypes_make_no_stream(tmp_path: Path) -> None:
    write_documents(tmp_path / "a.tar", make_documents(3))
    write_documents(tmp_path / "b.tar", make_documents(3, dtype="<u4"))
    with pytest.raises(ConfigError, match=r"one dtype, .*b\.tar holds uint32, .*a\.tar uint16"):
        load(str(tmp_path), tmp_path / "cache")


def test_a_cache_that_cannot_be_written_costs_only_time(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the directory belongs")
    store = Store(tmp_path / "cache")
    assert load_extent_table(resolve(dataset, "train", store), store, Limits(keep_bytes=0)).shards == 3


def test_long_work_is_reported_with_its_progress_and_its_cure(dataset: Path, tmp_path: Path) -> None:
    reports: queue.SimpleQueue[str] = queue.SimpleQueue()

    class SlowStore(Store):
        def index(self, *arguments: Any) -> Any:
            while reports.empty():  # nothing is read before the first report
                time.sleep(0.01)
            return super().index(*arguments)

    store = SlowStore(tmp_path / "cache")
    load_extent_table(resolve(dataset, "train", store), store, Limits(reports.put, 0.02))
    report = reports.get()
    assert f"{dataset}: no table of extents; 0 of 3 indexes read for it" in report
    assert f"shardwright index {dataset}" in report


# Damage


def test_every_flipped_byte_of_a_table_is_found_when_the_dataset_is_loaded(dataset: Path, tmp_path: Path) -> None:
    index_dataset(dataset)
    path = dataset / EXTENTS_NAME
    raw = path.read_bytes()
    for at in range(0, len(raw), 3):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
        with pytest.raises(ManifestError, match=r"data/extents\.bin: "):
            load(dataset, tmp_path / "cache")
    path.unlink()
    with pytest.raises(ManifestError, match=r"extents\.bin: not there, .*shardwright index .*data"):
        load(dataset, tmp_path / "cache")


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("tokens", -1, r"its extents of train-000000\.tar have \d+ tokens, but the manifest says"),
        ("documents", 1, r"its extents of train-000000\.tar have 41 documents, but the manifest says 40"),
        ("documents", 99, r"lengths_at of shard 1"),
        ("sizes", 512, r"starts_at of shard 1"),
    ],
)
def test_a_table_that_disagrees_with_its_manifest_is_refused(
    dataset: Path, tmp_path: Path, column: str, change: int, message: str
) -> None:
    index_dataset(dataset)
    value = int(getattr(decode_table((dataset / EXTENTS_NAME).read_bytes()), column)[1]) + change
    edit_table(dataset, column, 1, value)
    with pytest.raises(ManifestError, match=message):
        load(dataset, tmp_path / "cache")
    (problem,) = verify_dataset(dataset)
    assert Path(problem.shard).name == EXTENTS_NAME


def test_a_table_of_too_few_shards_or_of_shorter_files_is_refused(dataset: Path, tmp_path: Path) -> None:
    manifest = index_dataset(dataset)
    table = decode_table((dataset / EXTENTS_NAME).read_bytes())
    replace(manifest, extents=write_table(dataset, [table.select([0, 1, 2])], "<u2")).write(dataset)
    with pytest.raises(ManifestError, match="3 shards of uint16, but the manifest has 4 of uint16"):
        load(dataset, tmp_path / "cache")
    bare = replace(table, starts_at=table.starts_at * 0, lengths_at=table.lengths_at * 0)
    replace(manifest, extents=write_table(dataset, [bare], "<u2")).write(dataset)
    with pytest.raises(ManifestError, match=r"puts the index of val-000000\.tar before byte"):
        load(dataset, tmp_path / "cache")


def problems_of(folder: Path, **options: Any) -> list[Problem]:
    return list(verify_dataset(folder, **options))


@pytest.mark.parametrize("column", ["crc32", "index_crc32"])
def test_verify_finds_a_checksum_that_is_not_the_shards(dataset: Path, column: str) -> None:
    index_dataset(dataset)
    assert problems_of(dataset) == []
    edit_table(dataset, column, 2, 7)
    (problem,) = problems_of(dataset)
    table = decode_table((dataset / EXTENTS_NAME).read_bytes())
    assert Path(problem.shard).name == "train-000000.tar"
    assert problem.offset == table.offsets[2]
    assert f"the table of extents says {column} 7 of extent 1, found" in problem.message
    assert bool(problems_of(dataset, quick=True)) is (column == "index_crc32")
    assert problems_of(dataset, workers=2) == [problem]


def test_verify_finds_extents_that_are_cut_elsewhere(dataset: Path) -> None:
    manifest = index_dataset(dataset)
    table = decode_table((dataset / EXTENTS_NAME).read_bytes())
    joined = {name: getattr(table, name).copy() for name in (*PER_SHARD, *COUNTS, *CHECKSUMS)}
    joined["extents"][1] -= 1  # the first two extents of a shard as one: every sum is what it was
    for name in COUNTS:
        joined[name][2] += joined[name][1]
    for name in (*COUNTS, *CHECKSUMS):
        joined[name] = np.delete(joined[name], 1)
    changed = ExtentTable(table.dtype, **joined)
    replace(manifest, extents=write_table(dataset, [changed], "<u2")).write(dataset)
    (problem,) = problems_of(dataset)
    assert Path(problem.shard).name == "train-000000.tar"
    assert "the table of extents says extents" in problem.message


def assert_the_table_is_the_problem(dataset: Path, message: str) -> None:
    (problem,) = problems_of(dataset)
    assert problem.shard == str(dataset / EXTENTS_NAME)
    assert message in problem.message


def test_verify_finds_a_table_that_is_swapped_cut_or_missing(dataset: Path, tmp_path: Path) -> None:
    index_dataset(dataset)
    write_dataset(tmp_path / "other", [make_documents(9)])
    index_dataset(tmp_path / "other")
    table = (dataset / EXTENTS_NAME).read_bytes()
    shutil.copy(tmp_path / "other" / EXTENTS_NAME, dataset)
    assert_the_table_is_the_problem(dataset, "sha256 is")
    (dataset / EXTENTS_NAME).write_bytes(table[:-7])
    assert_the_table_is_the_problem(dataset, "size is")
    (dataset / EXTENTS_NAME).unlink()
    assert_the_table_is_the_problem(dataset, "not there")


def test_verify_blames_a_damaged_shard_and_not_its_table(dataset: Path) -> None:
    index_dataset(dataset)
    path = dataset / "train-000000.tar"
    raw = bytearray(path.read_bytes())
    raw[9_000] ^= 1
    path.write_bytes(raw)
    problems = problems_of(dataset)
    assert problems
    assert not any("table of extents" in problem.message for problem in problems)


def test_documents_that_overlap_have_no_extents() -> None:
    with pytest.raises(ShardError, match=r"a\.tar: its index is wrong"):
        ExtentTable.of_shard(np.array([640, 641]), np.array([2, 2]), "<u2", 4096, indexed=True, name="a.tar")


# Remote


@pytest.fixture
def server(dataset: Path) -> Any:
    with running_server() as running:
        serve(running, dataset)
        yield running


def serve(server: FaultyServer, dataset: Path) -> None:
    server.objects = {f"data/{path.name}": path.read_bytes() for path in dataset.iterdir()}


def test_a_remote_table_is_fetched_once_and_no_shard_is_asked_for(
    dataset: Path, server: FaultyServer, tmp_path: Path
) -> None:
    index_dataset(dataset)
    serve(server, dataset)
    wanted = columns(load(dataset, tmp_path / "cache"))
    for fetches in (1, 1):
        assert columns(load(server.url("data"), tmp_path / "cache")) == wanted
        assert sum("extents.bin" in path for path, _ in server.requests) == fetches
    assert not any(path.endswith(".tar") for path, _ in server.requests)
    assert list(verify_dataset(server.url("data"), access=QUICK)) == []
    assert list(verify_dataset(server.url("data"), access=QUICK, quick=True)) == []


def test_a_remote_table_that_is_missing_or_damaged_is_named(
    dataset: Path, server: FaultyServer, tmp_path: Path
) -> None:
    index_dataset(dataset)
    serve(server, dataset)
    raw = server.objects["data/extents.bin"]
    server.objects["data/extents.bin"] = raw[:99] + b"\xff\xff" + raw[101:]
    with pytest.raises(ManifestError, match=r"http://.*/data/extents\.bin: digest is"):
        load(server.url("data"), tmp_path / "cache")
    assert kept(tmp_path / "cache") == []
    server.objects["data/extents.bin"] = raw[:-1]
    with pytest.raises(StorageError, match=r"extents\.bin"):
        load(server.url("data"), tmp_path / "cache")
    del server.objects["data/extents.bin"]
    with pytest.raises(ManifestError, match=r"http://.*/data/extents\.bin: not there"):
        load(server.url("data"), tmp_path / "cache")
    (problem,) = verify_dataset(server.url("data"), access=QUICK, quick=True)
    assert problem.shard == server.url("data/extents.bin")
    server.objects["data/extents.bin"] = raw
    edit_table(dataset, "index_crc32", 2, 7)
    serve(server, dataset)
    (problem,) = verify_dataset(server.url("data"), access=QUICK, quick=True)
    assert problem.shard == server.url("data/train-000000.tar")


def test_remote_shards_without_a_table_are_computed_from_their_indexes_alone(
    dataset: Path, server: FaultyServer, tmp_path: Path
) -> None:
    wanted = columns(load(dataset, tmp_path / "local"), "crc32")
    assert columns(load(server.url("data"), tmp_path / "cache"), "crc32") == wanted
    assert server.sent < sum(map(len, server.objects.values())) // 4
    del server.objects["data/manifest.json"]
    spec = server.url("data/train-{000000..000002}.tar")
    assert columns(load(spec, tmp_path / "cache"), "crc32") == wanted
    before = len(server.requests)
    assert columns(load(spec, tmp_path / "cache"), "crc32") == wanted
    assert len(server.requests) - before <= 4  # the manifest that is not there, and the version of each


def test_a_table_of_memory_has_one_shard_and_no_checksum_of_bytes() -> None:
    table = ExtentTable.of_documents(np.array([70_000, 0, 70_000, 70_000]), "<u4")
    assert (table.shards, table.crc32) == (1, None)
    assert table.offsets.tolist() == [0, 280_000, 560_000]
