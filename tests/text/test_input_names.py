"""The paths, patterns and folders that a user names: which files are found, left out or refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

import pipeline
from pipeline.errors import InputError
from pipeline.text.readers.document_reader import find_inputs


def names(specs: Any) -> list[str]:
    return [file.name for file in find_inputs(specs)]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("part-10.jsonl", "part-2.jsonl", "b/x.txt", "a/y.CSV", "a/z.parquet"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    return tmp_path


def test_directories_are_in_natural_order_and_lists_in_their_own(tree: Path, monkeypatch: Any) -> None:
    assert names(tree) == TEXTS
    assert names([str(tree / "part-10.jsonl"), tree / "a"]) == ["part-10.jsonl", "y.CSV", "z.parquet"]
    assert names(f"{tree}/part-*.jsonl") == ["part-2.jsonl", "part-10.jsonl"]
    assert names(f"{tree}/part-{{10,2}}.jsonl") == ["part-10.jsonl", "part-2.jsonl"]
    assert names(f"{tree}/part-{{2..2}}.jsonl") == ["part-2.jsonl"]
    assert names(f"{tree}/**/*.[Ctp]*") == ["a/y.CSV", "a/z.parquet", "b/x.txt"]
    assert names(f"{tree}/?") == ["a/y.CSV", "a/z.parquet", "b/x.txt"]
    assert {file.source for file in find_inputs([f"web-1={tree}/part-*.jsonl"])} == {"web-1"}
    monkeypatch.chdir(tree)
    for name in ("odd{1}[2].txt", "a=b.txt", "d.jsonl/x.txt"):  # names that exist mean nothing else
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(b"")
        assert [(file.source, file.name) for file in find_inputs(name.partition("/")[0])] == [("", Path(name).name)]


@pytest.fixture
def partitions(tmp_path: Path, monkeypatch: Any) -> Path:
    """A folder partitioned as Hive does it, with others beside."""
    for name in ("date=2024-01/x.jsonl", "date=2024-02/x.jsonl", "other/x.jsonl", "2024-01/x.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("spec", ["date=*/x.jsonl", "date=2024-*", "date={2024-01,2024-02}/x.jsonl", "{root}/date=*"])
def test_the_folders_of_a_partition_are_no_source(partitions: Path, spec: str) -> None:
    found = find_inputs(spec.replace("{root}", str(partitions)))
    paths = sorted(os.path.relpath(file.path, partitions) for file in found)
    assert paths == ["date=2024-01/x.jsonl", "date=2024-02/x.jsonl"]
    assert {file.source for file in found} == {""}


def test_partitions_take_a_source_of_their_own_and_keep_their_names(partitions: Path) -> None:
    for spec in ("web=date=*/x.jsonl", f"web={partitions}/date=*/x.jsonl"):
        found = [(file.source, file.name) for file in find_inputs(spec)]
        assert found == [("web", "date=2024-01/x.jsonl"), ("web", "date=2024-02/x.jsonl")]
    assert [file.name for file in find_inputs("date=2024-02/x.jsonl")] == ["x.jsonl"]
    found = [(file.source, file.name) for file in find_inputs("day=*/x.jsonl")]
    assert found == [("day", f"{folder}/x.jsonl") for folder in ("2024-01", "date=2024-01", "date=2024-02", "other")]


def test_a_path_that_reads_as_a_source_too_is_refused(partitions: Path) -> None:
    message = r"date=2024-01: both this and 2024-01 are paths; write \./date=2024-01 .* or date=\./2024-01 "
    with pytest.raises(InputError, match=message):
        find_inputs("date=2024-01")
    assert [file.source for file in find_inputs(["./date=2024-01", "date=./2024-01"])] == ["", "date"]
    for spec, message in {
        "date=2025/x.jsonl": r"2025/x\.jsonl: no such file or directory.*, nor is there date=2025/x\.jsonl",
        "date=2025*": r"2025\*: no file matches, nor does any match date=2025\*",
    }.items():
        with pytest.raises(InputError, match=message):
            find_inputs(spec)


@pytest.fixture
def folder_with_datasets(tree: Path) -> Path:
    """A folder of text that holds a complete dataset, one begun, and what is neither."""
    for name in ("old/shards", "begun/.build", "plain"):
        (tree / name).mkdir(parents=True)
    (tree / "old/shards/manifest.json").write_text('{"counts": {}, "format": "shardwright"}')
    (tree / "begun/.build/plan.json").write_text("{}")
    (tree / "plain/manifest.json").write_text('{"format": "another"}')
    for name in ("old/shards/train-000000.tar", "old/shards/rejected.jsonl", "begun/val-000000.tar", "plain/a.tar"):
        (tree / name).write_bytes(b"")
    return tree


TEXTS = ["a/y.CSV", "a/z.parquet", "b/x.txt", "part-2.jsonl", "part-10.jsonl"]


@pytest.mark.parametrize("pattern", ["", "/*", "/**"])
def test_datasets_below_an_input_folder_are_left_out_and_counted(folder_with_datasets: Path, pattern: str) -> None:
    with pytest.warns(UserWarning, match="2 datasets of shards left out: ") as caught:
        found = find_inputs(f"{folder_with_datasets}{pattern}")
    paths = {os.path.relpath(file.path, folder_with_datasets) for file in found}
    assert paths == {*TEXTS, "plain/a.tar", "plain/manifest.json"}
    said = " ".join(str(warning.message) for warning in caught)
    assert "old/shards" in said
    assert "begun" in said


@pytest.mark.parametrize("spec", ["old/shards", "begun", "old/shards/train-000000.tar"])
def test_a_dataset_named_itself_is_refused_with_the_cure(folder_with_datasets: Path, spec: str) -> None:
    with pytest.raises(InputError, match=r"belongs to a dataset of shards.* name the text .*made from"):
        find_inputs(folder_with_datasets / spec)
    [file] = find_inputs(folder_with_datasets / "old/shards/rejected.jsonl")
    assert file.name == "rejected.jsonl"
    with pytest.raises(InputError, match=r"nothing to read.*1 dataset of shards left out: .*old/shards\)"):
        find_inputs(f"{folder_with_datasets}/old/shards/*.tar")


def test_the_output_is_never_read(tree: Path) -> None:
    with pytest.warns(UserWarning, match=r"the output, .*/a, is never read"):
        assert [file.name for file in find_inputs(tree, outputs=[str(tree / "a")])] == ["b/x.txt", *TEXTS[3:]]
    for spec in (tree, tree / "part-2.jsonl", tree / "a"):
        with pytest.raises(InputError, match=r"is in the output, .*; choose another --output, or move"):
            find_inputs(spec, outputs=[str(tree)])
    (tree / "link").symlink_to(tree / "a")
    with pytest.raises(InputError, match="is in the output"):
        find_inputs(tree / "a" / "y.CSV", outputs=[str(tree / "link")])
    assert len(find_inputs(tree / "b", outputs=[str(tree / "bb")])) == 1


def test_files_left_out_of_a_directory_are_named(tree: Path) -> None:
    for name in ("README.md", ".hidden.jsonl", "a/_SUCCESS", ".snapshot/part-2.jsonl", "a/.ipynb_checkpoints/y.csv"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_bytes(b"")
    with pytest.warns(UserWarning, match="5 of 10 files left out") as caught:
        assert names(tree) == TEXTS
    for name in ("README.md", ".hidden.jsonl", "a/_SUCCESS", ".snapshot/", "a/.ipynb_checkpoints/"):
        assert name in str(caught[0].message)


def test_a_folder_of_other_endings_names_the_format_to_give(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    for number in range(1, 21):
        (tmp_path / f"{number}.md").write_text("# A title")
        if number == 19:  # not more than 95 %
            with pytest.warns(UserWarning, match=r"19 of 20 files left out .*; --format text .*of any ending"):
                assert names(tmp_path) == ["a.jsonl"]
    said = r"20 of 21 files left out .*--format text .*by a pattern, as in '.*/\*\*/\*\.jsonl'$"
    with pytest.raises(InputError, match=said) as caught:
        find_inputs(tmp_path)
    assert names(str(caught.value).rpartition("as in ")[2].strip("'")) == ["a.jsonl"]
    assert len(find_inputs(tmp_path, format="text")) == 21


def test_hidden_files_are_read_where_they_are_named(tree: Path) -> None:
    for name in (".notes.jsonl", ".snapshot/part-2.jsonl"):
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_bytes(b"")
    for spec, wanted in (
        (".notes.jsonl", [".notes.jsonl"]),
        (".n*.jsonl", [".notes.jsonl"]),
        (".snapshot", ["part-2.jsonl"]),
        (".snapshot/*", ["part-2.jsonl"]),
        ("*.jsonl", ["part-2.jsonl", "part-10.jsonl"]),
        ("**/*.jsonl", ["part-2.jsonl", "part-10.jsonl"]),
    ):
        assert names(tree / spec) == wanted


@pytest.mark.parametrize(
    "specs",
    [
        ("a/y.CSV", "a/y.CSV"),
        ("a/y.CSV", "a/../a/y.CSV"),
        ("part-*.jsonl", "part-2.jsonl"),
        ("a", "a/y.CSV"),
        ("{root}/a", "a"),
        ("link.csv", "a/y.CSV"),
        ("one=a", "two=a"),
        ("{{part-2,part-2}}.jsonl",),
    ],
)
def test_a_file_that_is_named_twice_is_refused(tree: Path, monkeypatch: Any, specs: tuple[str, ...]) -> None:
    (tree / "link.csv").symlink_to("a/y.CSV")
    monkeypatch.chdir(tree)
    given = [spec.format(root=tree) for spec in specs]
    message = "is named twice.*; its documents would be read twice; name it once"
    with pytest.raises(InputError, match=message):
        pipeline.TextDataset(given, tokenizer="bytes")
    with pytest.raises(InputError, match=message):
        pipeline.build(given, tree / "out", tokenizer="bytes")


def test_a_warning_names_the_line_of_the_user_whatever_was_called(tree: Path) -> None:
    (tree / "notes.bin").write_bytes(b"")
    for call in (find_inputs, lambda folder: pipeline.TextDataset(folder, tokenizer="bytes")):
        with pytest.warns(UserWarning, match="1 of 6 files left out") as caught:
            call(tree)
        assert caught[0].filename == __file__


def test_links_are_followed_once(tree: Path) -> None:
    (tree / "a" / "loop").symlink_to(tree)
    (tree / "linked.txt").symlink_to(tree / "b" / "x.txt")
    with pytest.warns(UserWarning, match=r"1 of 6 files left out \(.*links to files that are read.*\): linked\.txt"):
        assert names(tree) == TEXTS


def missing_inputs(tree: Path) -> Iterator[tuple[str, str]]:
    (tree / "empty").mkdir()
    (tree / "unknown.xyz").write_bytes(b"")
    (tree / "dangling.jsonl").symlink_to("nowhere")
    os.mkfifo(tree / "fifo.jsonl")
    yield "part-3.jsonl", r"no such file .*did you mean 'part-2.jsonl'"
    yield "none-*.jsonl", "no file matches"
    yield "part-{2,3}.jsonl", "part-3.jsonl: no such file"
    yield "part-{2", "braces"
    yield "empty", "nothing to read, no file; readable are"
    yield "unknown.xyz", r"unknown ending \(.xyz\); readable are .jsonl .*\.parquet"
    yield "unkn*", r"only unknown.xyz; readable are"
    yield "dangling.jsonl", "a link to nowhere, which is not there"
    yield "fifo.jsonl", "a FIFO"


def test_what_cannot_be_read_is_refused_with_its_name(tree: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tree)
    for spec, message in missing_inputs(tree):
        with pytest.raises(InputError, match=message) as caught:
            find_inputs(spec)
        assert spec.split("{")[0].split("*")[0] in str(caught.value)
    with pytest.raises(InputError, match=r"^'a.x00b': no file .*this name: embedded null byte$"):
        find_inputs("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"")
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(InputError, match="no permission"):
        find_inputs(tmp_path / "a.txt")


def test_hidden_objects_of_a_store_are_skipped_and_counted() -> None:
    files = fsspec.filesystem("memory")
    for name in ("a.jsonl", "._a.jsonl", ".snapshot/a.jsonl", "b/.ipynb_checkpoints/c.jsonl", "b/c.jsonl"):
        files.pipe(f"/hidden-texts/{name}", b'{"text": "to be"}\n')
    for spec in ("", "/", "/**/*.jsonl"):
        with pytest.warns(UserWarning, match=r"3 of 5 files left out .*\.snapshot/a\.jsonl"):
            assert names(f"memory://hidden-texts{spec}") == ["a.jsonl", "b/c.jsonl"]
    assert names("memory://hidden-texts/.snapshot/*.jsonl") == ["a.jsonl"]
    assert names("memory://hidden-texts/._a.jsonl") == names("memory://hidden-texts/._*.jsonl") == ["._a.jsonl"]
