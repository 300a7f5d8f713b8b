"""Data of other kinds where shards are expected: each error names the call that reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline.errors import ConfigError, MissingDatasetError
from tests.helpers.shard_samples import make_documents, write_dataset

MOSAIC = "MosaicML Streaming; .* pipeline.write_shards"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.arange(9, dtype=np.uint16).tofile("train.bin")
    np.save("train.npy", np.arange(9))
    others = "text.jsonl ids.parquet shard.00000.mds meg/a.bin meg/a.idx lit/chunk-0-0.bin lit/index.json"
    for name in others.split():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(b"1234")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train.bin", r"array of token ids.*open_dataset\('train.bin', dtype='uint16'\).*ShardDataset.from_tokens"),
        ("train.npy", r"array of token ids.*open_dataset\('train.npy'\)"),
        ("*.bin", r"arrays of token ids.*shardwright import \*\.bin"),
        ("text.jsonl", "this is text.*pipeline.TextDataset.*shardwright build$"),
        ("ids.parquet", "this is text.*if a column holds token ids: shardwright import"),
        ("shard.00000.mds", MOSAIC),
        ("meg/a.bin", "Megatron; .*shardwright import meg/a.bin"),
        ("meg/a.idx", "Megatron; .*shardwright import meg/a.bin"),
        ("lit/chunk-0-0.bin", "litdata"),
        ("lit/index.json", "give its directory, lit"),
    ],
)
def test_a_file_of_another_kind_is_told_by_its_name_and_refused_with_the_call_that_reads_it(
    folder: Path, name: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        pipeline.ShardDataset(name)


def test_a_tar_of_any_name_is_a_shard(folder: Path) -> None:
    write_dataset(folder / "data", [make_documents(3)])
    (folder / "data" / "train-000000.tar").rename(folder / "tokens.bin")
    assert len(list(pipeline.ShardDataset("tokens.bin", epochs=1).documents())) == 3


def test_tars_are_opened_by_a_pattern_though_the_name_of_their_folder_holds_braces_and_brackets(tmp_path: Path) -> None:
    write_dataset(tmp_path / "a{1,2}[x]", [make_documents(3)])
    assert len(list(pipeline.open_dataset(tmp_path / "a{1,2}[x]" / "*.tar", epochs=1).documents())) == 3


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a.jsonl"], "It holds a.jsonl: this is text"),
        (["index.json", "shard.00000.mds", "z.txt"], f"It holds shard.00000.mds: .*{MOSAIC}"),
        (["input.txt", "train.bin"], "It holds train.bin: an array of token ids"),
        ([], "Give the --output of a build that has finished"),
    ],
)
def test_a_folder_without_a_dataset_says_what_it_holds(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"1234")
    with pytest.raises(MissingDatasetError, match=message):
        pipeline.ShardDataset(tmp_path)


def test_the_folder_above_datasets_names_them(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_dataset(tmp_path / name, [make_documents(1)])
    with pytest.raises(MissingDatasetError, match=rf"2 datasets are inside: give {tmp_path}/a, {tmp_path}/b"):
        pipeline.ShardDataset(tmp_path)
    with pytest.raises(ConfigError, match="2 datasets are inside"):
        pipeline.open_dataset(tmp_path)


@pytest.mark.parametrize("name", ["shard.00000.mds", "meg/a.idx", "meg", "lit"])
def test_files_of_other_tools_are_never_opened_as_text(folder: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"MosaicML|Megatron|litdata"):
        pipeline.open_dataset(name)
