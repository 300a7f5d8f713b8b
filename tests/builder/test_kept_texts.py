"""The texts that a build keeps beside its shards: the same documents in the same order, hashed, and read back as texts are."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.errors import ConfigError, InputError
from pipeline.shards.verify.dataset import verify_dataset
from tests.helpers.builds import kept, run, run_plain, table, write_jsonl
from tests.helpers.corpus import english

KINDS = ("parquet", "jsonl.zst")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, found = tmp_path_factory.mktemp("inputs"), {}
    for at, name in enumerate(("web", "wiki")):
        rows = [{"id": f"{name}-{n}", "text": english(n + 900 * at), "score": n / 7, "tags": [n]} for n in range(70)]
        found[name] = str(write_jsonl(folder / f"{name}.jsonl", [*rows, rows[3]]))
    return found


def built(inputs: Any, output: Path, **options: Any) -> Path:
    given = [f"{name}={path}" for name, path in inputs.items()]
    options |= {"keep_fields": "score:float,tags", "tokens_per_shard": 6_000}
    run(given, output, rules="none", dedup_lines=True, **options)
    return output


@pytest.fixture(scope="module")
def dataset_with(inputs: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A dataset with texts of a kind, which tests leave as it is."""
    return cache(lambda kind: built(inputs, tmp_path_factory.mktemp("set") / "out", keep_texts=kind))


def read(folder: Path) -> list[pipeline.Document]:
    """Return the documents that a stream of text finds in a folder."""
    from pipeline.text.readers.document_reader import DocumentReader, find_inputs

    names = ("source", "language", "split", "score:float", "tags")
    keep = pipeline.TextDataset(str(folder), "bytes", fields=names)._data.fields
    files = find_inputs(str(folder))
    return [doc for file in files for doc in DocumentReader(file, keep=keep) if isinstance(doc, pipeline.Document)]


@pytest.mark.parametrize("kind", KINDS)
def test_kept_texts_are_those_of_the_shards_with_their_fields(dataset_with: Callable[[str], Path], kind: str) -> None:
    output = dataset_with(kind)
    manifest, documents = pipeline.Manifest.read(output), read(output / "texts")
    shards = [info.name for split in manifest.splits.values() for info in split.shards]
    assert {path.name for path in (output / "texts").iterdir()} == {name.replace(".tar", f".{kind}") for name in shards}
    train = [document for document in documents if document.metadata["split"] == "train"]
    val = [document for document in documents if document.metadata["split"] == "val"]
    for found, split in ((train, "train"), (val, "val")):
        rows = table(output, split)
        assert [document.id for document in found] == rows["id"]
        assert [document.metadata["language"] for document in found] == rows["language"]
        assert [document.metadata["score"] for document in found] == rows["column:score"]
    assert [document.text for document in (*train, *val)] == kept(output)
    assert {document.metadata["source"] for document in documents} == {"web", "wiki"}
    assert val


@pytest.mark.parametrize("kind", ["parquet", pytest.param("jsonl.zst", marks=pytest.mark.nightly)])
def test_they_are_the_same_bytes_for_any_workers_hashed_and_verified(
    inputs: dict[str, str], dataset_with: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    one, two = dataset_with(kind), built(inputs, tmp_path / "two", keep_texts=kind, workers=2)
    listed = {info.name: info.sha256 for info in pipeline.Manifest.read(one).files if info.name.startswith("texts/")}
    for output in (one, two):
        found = {f"texts/{path.name}": path for path in (output / "texts").iterdir()}
        assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()} == listed
        assert list(verify_dataset(str(output))) == []
    path, more = max((two / "texts").iterdir()), two / "texts" / "more.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    more.write_bytes(b"x")
    assert {problem.shard for problem in verify_dataset(str(two))} == {str(path), str(more)}


def test_a_build_of_kept_texts_holds_the_same_documents(dataset_with: Callable[[str], Path], tmp_path: Path) -> None:
    first = dataset_with("parquet")
    run_plain(str(first / "texts"), tmp_path / "second", dedup=False)
    assert kept(tmp_path / "second") == [document.text for document in read(first / "texts")]
    run_plain(str(first / "texts"), tmp_path / "train", dedup=False, where='split == "train"')
    assert pipeline.Manifest.read(tmp_path / "train").counts["kept"] == len(table(first)["id"])
    with pytest.raises(InputError, match="dataset"):  # its texts are never found by accident
        run_plain(str(first), tmp_path / "third")
    beside = write_jsonl(tmp_path / "more" / "own.jsonl", ["a text"]).parent
    shutil.copytree(first, beside / "first")
    assert run_plain(str(beside), tmp_path / "fourth").counts["kept"] == 1


def test_datasets_loads_them_by_split(dataset_with: Callable[[str], Path], tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    output = dataset_with("parquet")
    files = {split: str(output / "texts" / f"{split}-*.parquet") for split in ("train", "val")}
    loaded = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))
    assert [*loaded["train"]["text"], *loaded["val"]["text"]] == kept(output)


def test_overwrite_removes_kept_texts_and_wrong_kinds_are_refused(inputs: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keep_texts must be .*parquet, jsonl\.zst, got 'csv'"):
        built(inputs, tmp_path / "set", keep_texts="csv")
    output = built(inputs, tmp_path / "set", keep_texts="parquet")
    own = output / "texts" / "notes.md"
    own.write_text("mine")
    built(inputs, output, keep_texts="jsonl.zst", overwrite=True)
    assert {"".join(path.suffixes) for path in (output / "texts").iterdir() if path != own} == {".jsonl.zst"}
    assert own.read_text() == "mine"
