"""`shardwright export`: what is written is what was in the dataset, as the tools that it is for read it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
from pipeline.errors import ConfigError, CorruptShardError
from pipeline.exchange.token_sources import import_tokens
from pipeline.finished.redaction.redact import redact
from pipeline.progress import Progress
from pipeline.shards.manifest import Manifest
from tests.exchange.test_write_shards import stored, stored_split, write
from tests.helpers.commands import Says
from tests.helpers.shard_samples import flip

QUIET = Progress(quiet=True)
FILES = {"megatron": "{}.bin", "nanogpt": "{}.bin", "parquet": "data/{}-*.parquet"}
WIDE = 70_000  # an id that uint16 does not hold


def export(dataset: Path, output: Path, to: str) -> dict[str, Any]:
    return pipeline.export_tokens(dataset, output, to, progress=QUIET)


def dataset_of(documents: Any, output: Path, **options: Any) -> Manifest:
    return write(documents, output, None, **{"eos_id": 0, **options})


@settings(max_examples=12, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=12), min_size=1, max_size=25),
    to=st.sampled_from(["megatron", "nanogpt", "parquet"]),
    val_fraction=st.sampled_from([0.0, 0.4]),
)
def test_what_is_exported_is_imported_as_the_same_documents(
    documents: list[list[int]], to: str, val_fraction: float, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("round")
    manifest = dataset_of(documents, path / "set", val_fraction=val_fraction, tokens_per_shard=40)
    export(path / "set", path / "out", to)
    for split, entry in manifest.splits.items():
        if entry.documents:
            sources = str(path / "out" / FILES[to].format(split))
            import_tokens(sources, path / split, eos_id=0, val_fraction=0, progress=QUIET)
            assert stored(path / split) == stored_split(path / "set", split)


@pytest.mark.parametrize("to", FILES)
def test_ends_of_documents_that_an_array_loses_are_counted(to: str, tmp_path: Path) -> None:
    dataset_of([[5, 0, 6], [7], [], [0, 0]], tmp_path / "set", val_fraction=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        export(tmp_path / "set", tmp_path / "out", to)
    lost = [str(each.message) for each in said if "documents hold the end-of-text id" in str(each.message)]
    assert [message.split(" documents")[0] for message in lost] == ["train.bin: 2 of 4"] * (to == "nanogpt")


@pytest.mark.parametrize(("to", "dtype"), [("megatron", "int32"), ("nanogpt", "uint32"), ("parquet", "int64")])
def test_ids_beyond_uint16_keep_their_value_and_the_dtype_is_said(to: str, dtype: str, tmp_path: Path) -> None:
    dataset_of([[WIDE]], tmp_path / "set", val_fraction=0)
    assert export(tmp_path / "set", tmp_path / "out", to)["dtype"] == dtype
    assert json.loads((tmp_path / "out" / "export.json").read_text())["dtype"] == dtype
    if to != "parquet":
        assert np.fromfile(tmp_path / "out" / "train.bin", dtype).tolist() == [WIDE, 0]


def test_megatron_is_given_no_ids_that_int32_may_not_hold(tmp_path: Path) -> None:
    dataset_of([[2**31]], tmp_path / "set", val_fraction=0)
    with pytest.raises(ConfigError, match=r"id 2147483648, but int32 .* 2147483647"):
        export(tmp_path / "set", tmp_path / "out", "megatron")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [2, None])
def test_parquet_holds_fields_of_any_kind_under_one_schema(size: int | None, tmp_path: Path) -> None:
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    fields = [{"id": "a"}, {"url": "u", "n": 1}, {"url": 3, "n": 2.5, "mixed": "a", "no": None}]
    fields.append({"tags": ["x"], "key": "mine", "mixed": {"a": 1}})
    options: dict[str, Any] = {"val_fraction": 0, "tokens_per_shard": size}
    dataset_of([([k + 1], field) for k, field in enumerate(fields)], tmp_path / "set", **options)
    export(tmp_path / "set", tmp_path / "out", "parquet")
    names = [f"train-{k:05d}-of-00004.parquet" for k in range(4)] if size else ["train-00000-of-00001.parquet"]
    assert sorted(path.name for path in (tmp_path / "out" / "data").iterdir()) == names
    first = pq.ParquetFile(tmp_path / "out" / "data" / names[0])
    assert first.metadata.row_group(0).column(0).compression == "ZSTD"
    types = {field.name: str(field.type) for field in first.schema_arrow}
    assert (types["input_ids"], types["n"], types["no"]) == ("list<element: int32>", "double", "string")
    rows = ds.dataset(tmp_path / "out" / "data").to_table().to_pylist()
    assert [row["mixed"] for row in rows] == [None, None, "a", '{"a": 1}']
    assert [row["input_ids"] for row in rows] == [[1, 0], [2, 0], [3, 0], [4, 0]]
    assert [row["url"] for row in rows] == [None, "u", "3", None]
    assert [row["n"] for row in rows] == [None, 1, 2.5, None]
    assert rows[3]["tags"] == ["x"]
    assert (rows[3]["column:key"], rows[3]["key"]) == ("mine", "000000000003")


@pytest.mark.stacks
def test_datasets_finds_the_splits_of_parquet(tmp_path: Path) -> None:
    from datasets import load_dataset

    dataset_of([[k % 300 + 1] for k in range(200)], tmp_path / "set", val_fraction=0.2)
    export(tmp_path / "set", tmp_path / "out", "parquet")
    loaded = load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    for split in ("train", "val"):
        assert [list(ids) for ids in loaded[split]["input_ids"]] == stored_split(tmp_path / "set", split)


@pytest.mark.stacks
@pytest.mark.parametrize("greatest", [300, WIDE])
def test_megatron_core_reads_each_document(greatest: int, tmp_path: Path) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    drawn = np.random.default_rng(0)
    documents = [drawn.integers(1, greatest, drawn.integers(1, 50)).tolist() for _ in range(100)]
    dataset_of(documents, tmp_path / "set", val_fraction=0.2)
    export(tmp_path / "set", tmp_path / "out", "megatron")
    for split in ("train", "val"):
        read = IndexedDataset(str(tmp_path / "out" / split))
        assert [ids.tolist() for ids in read] == stored_split(tmp_path / "set", split)
        assert len(read.document_indices) == len(read) + 1


def test_a_document_that_was_damaged_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    dataset_of([[5] * 100], tmp_path / "set", val_fraction=0)
    flip(tmp_path / "set" / "train-000000.tar", 700)
    with pytest.raises(CorruptShardError, match="the checksum of document 0 differs"):
        export(tmp_path / "set", tmp_path / "out", "nanogpt")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_the_command_exports_and_says_files_and_dtype(tmp_path: Path, says: Says) -> None:
    write([[5, 6], [7]], tmp_path / "set", val_fraction=0)
    flags = ["--output", str(tmp_path / "out")]
    said = says(0, "export", tmp_path / "set", "--to", "nanogpt", *flags).out
    assert f"{tmp_path}/out/train.bin: 10 bytes\n" in said
    assert "train: 2 documents, 5 tokens as uint16\n" in said
    names = ["tokenizer_config.json", "train.bin"]
    assert json.loads((tmp_path / "out" / "export.json").read_text()) == {
        "format": "nanogpt",
        "dataset": Manifest.read(tmp_path / "set").fingerprint,
        "dtype": "uint16",
        "tokenizer": "bytes",
        "eos_id": 1,
        "splits": {"train": {"documents": 2, "tokens": 5}},
        "files": {name: (tmp_path / "out" / name).stat().st_size for name in names},
    }
    wrong = "error: --to (to= in Python) must be one of megatron, nanogpt, parquet, got 'megatrn' (did"
    says(2, "export", tmp_path / "set", "--to", "megatrn", *flags, shows=wrong)
    says(2, "export", tmp_path / "set", "--to", "megatron", *flags, shows="holds files already")


@pytest.mark.parametrize("to", ["nanogpt", "megatron", "parquet"])
def test_redacted_documents_are_called_so_by_an_export_and_an_import(tmp_path: Path, to: str) -> None:
    documents = [[*range(first, first + 20)] for first in range(10, 100, 10)]
    dataset_of(documents, tmp_path / "set", val_fraction=0)
    redact(tmp_path / "set", ["000000000001", "000000000002"], "opt-out")
    with pytest.warns(UserWarning, match=r"2 documents were redacted, .* redact --drop") as warned:
        export(tmp_path / "set", tmp_path / "out", to)
    assert len(warned) == 1, "no document is said to hold end-of-text ids"
    if to != "nanogpt":  # a flat array does not tell where its documents end
        source = tmp_path / "out" / ("train.bin" if to == "megatron" else "data")
        manifest = import_tokens(source, tmp_path / "again", eos_id=0, val_fraction=0, progress=QUIET)
        said = "2 documents are kept, but hold only end-of-text ids, as redacted documents do"
        assert manifest.counts["notes"] == [said]
