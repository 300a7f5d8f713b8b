"""The table of extents is written by a build and by `shardwright index`, with the same bytes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.builder.build import build
from pipeline.builder.counts.progress import Progress
from pipeline.errors import ConfigError, CorruptShardError, ManifestError
from pipeline.shards.extents.file import EXTENTS_NAME, decode_table
from pipeline.shards.extents.indexing import index_dataset
from pipeline.shards.manifest import MANIFEST_NAME, Manifest
from pipeline.shards.reader import read_index
from pipeline.shards.verify.dataset import verify_dataset
from scripts.index_shards import main as index_main
from tests.corpus import english
from tests.extent_samples import write_without_table

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_without_table(tmp_path / "data")


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
