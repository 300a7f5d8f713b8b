"""The texts that a build keeps beside its shards: the same documents in the same order, hashed, and read back as texts are."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.builder.limits import Limits
from pipeline.errors import ConfigError, InputError
from pipeline.shards.manifest import Manifest
from pipeline.shards.verify.dataset import verify_dataset
from tests.helpers.builds import HALVES, kept, rejected, run, run_plain, table, write_jsonl
from tests.helpers.commands import Says
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


def test_overwrite_removes_kept_texts(inputs: dict[str, str], tmp_path: Path) -> None:
    output = built(inputs, tmp_path / "set", keep_texts="parquet")
    own = output / "texts" / "notes.md"
    own.write_text("mine")
    built(inputs, output, keep_texts="jsonl.zst", overwrite=True)
    assert {"".join(path.suffixes) for path in (output / "texts").iterdir() if path != own} == {".jsonl.zst"}
    assert own.read_text() == "mine"


# Documents whose ids are listed are dropped, as any stage after dedup may drop documents: counted, sampled and reported.


SMALL = Limits(unit_bytes=20_000, smallest_unit_bytes=5_000, batch_records=10, partition_characters=10_000)
FLAGS = ["--tokenizer", "bytes", "--rules", "none", "--val-fraction", "0"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """60 documents; each of d50 to d54 equals the one ten before it, and the last has no id."""
    records = [{"id": f"d{k}", "text": english(k - 10 * (50 <= k < 55), 8)} for k in range(60)]
    del records[59]["id"]
    return write_jsonl(tmp_path / "in.jsonl", records)


def ids(output: Path) -> list[str]:
    return table(output)["id"]


def listed(tmp_path: Path, *names: str) -> str:
    (tmp_path / "gone.txt").write_text("\ufeff" + "\r\n".join(["", *names, " ", "of no document"]), encoding="utf-8")
    return str(tmp_path / "gone.txt")


def test_listed_documents_are_dropped_and_everything_tells_so(tmp_path: Path, source: Path) -> None:
    gone, names = listed(tmp_path, "d3", "d42", "d51", "in.jsonl:60"), {"d3", "d42", "in.jsonl:60"}
    manifest = run_plain(source, tmp_path / "out", drop_ids=gone, keep_rejected=True, limits=SMALL)
    # d52 is a duplicate of d42 and goes with it; d51 is dropped for d41, which stays.
    assert ids(tmp_path / "out") == [f"d{k}" for k in range(59) if k not in (3, 42) and not 50 <= k < 55]
    counts = manifest.counts
    assert (counts["read"], counts["kept"], counts["duplicates"]) == (60, 52, {"exact": 5, "near": 0})
    assert counts["dropped"] == {"drop_ids": 3} == counts["by_source"][""]["dropped"]
    assert {sample["id"] for sample in counts["samples"]["drop_ids"]} == names
    reason = "its id is in the list of drop_ids"
    assert {line["id"] for line in rejected(tmp_path / "out") if line["reason"] == reason} == names
    report = (tmp_path / "out/report.html").read_text()
    assert report.index("near duplicates") < report.index("dropped by drop_ids") < report.index("documents kept")
    assert manifest.recipe["settings"]["drop_ids"] == "gone.txt"
    assert len(manifest.recipe["definitions"]["drop_ids"]) == 64
    assert list(verify_dataset(tmp_path / "out")) == []


def test_a_dry_run_drops_listed_documents_but_foresees_no_duplicates(tmp_path: Path, source: Path, says: Says) -> None:
    gone = listed(tmp_path, "d3", "d42", "d51", "in.jsonl:60")
    build = [str(source), *FLAGS, "--output", str(tmp_path / "out"), "--drop-ids", gone, "--dry-run"]
    said = says(0, "build", *build).out
    assert re.search(r"\b52 +86\.7%  kept", said)
    assert re.search(r"\b3 +5\.0%  drop_ids", said)
    assert "not foreseen: further duplicates" in said
    assert "nothing was written" in said
    assert "not foreseen" not in says(0, "build", *build, "--no-dedup").out


def test_the_parts_of_a_listed_document_are_dropped(tmp_path: Path, source: Path) -> None:
    settings: dict[str, Any] = {"transforms": [HALVES], "dedup": False, "limits": SMALL}
    run_plain(source, tmp_path / "out", drop_ids=listed(tmp_path, "d3", "d4#2"), **settings)
    assert ids(tmp_path / "out")[4:9] == ["d2#1", "d2#2", "d4#1", "d5#1", "d5#2"]


def test_a_quota_is_filled_by_what_is_left(tmp_path: Path, source: Path) -> None:
    settings: dict[str, Any] = {"max_tokens": "2000", "dedup": False, "limits": SMALL}
    plain = run_plain(source, tmp_path / "plain", **settings)
    names = ids(tmp_path / "plain")
    other = run_plain(source, tmp_path / "out", drop_ids=listed(tmp_path, *names), **settings)
    assert not set(ids(tmp_path / "out")) & set(names)
    assert other.counts["dropped"]["drop_ids"] == plain.counts["kept"] > 0
    assert 0 < other.counts["tokens"] <= 2000


def test_a_list_that_cannot_be_read_is_refused_before_any_work(tmp_path: Path, source: Path) -> None:
    (tmp_path / "utf16.txt").write_text("d3\n", encoding="utf-16")
    for name, said in (("none.txt", "cannot be read: No such file"), ("utf16.txt", "not UTF-8 text")):
        with pytest.raises(ConfigError, match=rf"drop_ids .*{name}: {said}"):
            run_plain(source, tmp_path / "out", drop_ids=str(tmp_path / name))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "frame"])
def test_ids_are_compared_without_spaces_and_fractions_of_zero(tmp_path: Path, kind: str) -> None:
    given: dict[str, list[Any]] = {
        "jsonl": [" spaced ", "7.0", "1.5", "007", "last", 90071992547409930001, 90071992547409930002, 3.0, 4],
        "parquet": [" spaced ", "7.0", "1.5", "007", "last"],
        "frame": [1.0, 7.0, None],
    }
    rows = [{"id": id, "text": english(k, 8)} for k, id in enumerate(given[kind])]
    inputs: Any = write_jsonl(tmp_path / "in.jsonl", rows)
    if kind != "jsonl":
        import pandas as pd

        inputs = pd.DataFrame(rows)
    if kind == "parquet":
        inputs.to_parquet(tmp_path / "in.parquet")
        inputs = tmp_path / "in.parquet"
    gone = listed(tmp_path, "spaced", "7", "1", "7.5", "90071992547409930001", "3", "4.0")
    manifest = run_plain(inputs, tmp_path / "out", drop_ids=gone)
    assert manifest.counts["dropped"] == {"drop_ids": {"jsonl": 5, "parquet": 2, "frame": 2}[kind]}
    left = {"jsonl": ["1.5", "007", "last", "90071992547409930002"], "parquet": ["1.5", "007", "last"]}
    assert kind == "frame" or ids(tmp_path / "out") == left[kind]


def test_listed_ids_that_match_nothing_are_counted_in_terminal_and_report(
    tmp_path: Path, source: Path, says: Says
) -> None:
    flags = [*FLAGS, "--output", tmp_path / "out", "--workers", "1"]
    said = says(0, "build", source, *flags, "--drop-ids", listed(tmp_path, "d3", "d51", "nowhere")).err
    note = "drop_ids: 2 of 4 listed ids match no document that passed the filters: 'nowhere', 'of no document'"
    assert note in " ".join(said.split())
    assert Manifest.read(tmp_path / "out").counts["notes"] == [note]
    assert "drop_ids: 2 of 4 listed ids match no document" in (tmp_path / "out/report.html").read_text()
