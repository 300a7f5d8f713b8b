"""The paths, patterns and folders that a user names: which files are found, left out or refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

import pipeline
from pipeline.cli.main import run_command
from pipeline.errors import InputError, ShardwrightError
from pipeline.text.readers.document_reader import find_inputs
from tests.helpers.builds import ROOT, run_plain, table
from tests.helpers.text_samples import write_tar


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


# A FIFO that nobody writes to makes whoever opens it wait for ever: it is refused at once, wherever a file is named.


@pytest.fixture
def alarm() -> Iterator[None]:
    """End a test that waits."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("build {fifo} --output {out}", "x.jsonl"),
        ("build web={fifo} --output {out}", "x.parquet"),
        ("build {folder} --output {out}", "x.jsonl.gz"),
        ("build {fifo} --output {out} --dry-run", "x.csv"),
        ("build {file} --output {out} --config {fifo}", "x.yaml"),
        ("build {file} --output {out} --lid-model {fifo}", "x.ftz"),
        ("build {file} --output {out} --decontaminate {fifo}", "x.jsonl"),
        ("build {file} --output {out} --against {folder}", "manifest.json"),
        ("build {file} --output {folder}", "manifest.json"),
        ("verify {fifo}", "x.tar"),
        ("verify {folder}", "manifest.json"),
        ("try-rules {fifo}", "x.jsonl"),
    ],
)
def test_commands_refuse_a_fifo(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, name: str) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "some words"}\n')
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "data" / name)
    if "--against" in command:
        (tmp_path / "data" / "signatures").mkdir()
        os.mkfifo(tmp_path / "data" / "signatures" / "scheme.json")
    places = {"file": tmp_path / "in.jsonl", "fifo": tmp_path / "data" / name}
    places |= {"folder": tmp_path / "data", "out": tmp_path / "out"}
    which, *flags = command.format(**places).split(" ")
    flags += ["--tokenizer", "bytes", "--workers", "1"] if which == "build" else []
    assert run_command(which, flags) in (1, 2)
    assert "FIFO" in "".join(capsys.readouterr())


@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda path: pipeline.ShardDataset(path), "x.tar"),
        (lambda path: pipeline.ShardDataset(path.parent), "manifest.json"),
        (lambda path: pipeline.TextDataset(path, "bytes"), "x.jsonl"),
    ],
    ids=["shard", "dataset", "text"],
)
def test_a_stream_refuses_a_fifo_at_once(tmp_path: Path, make: Callable[[Path], pipeline.Stream], name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ShardwrightError, match="FIFO"):
        next(iter(make(tmp_path / name).pack(4).batch(1)))


def test_what_is_piped_in_is_refused_with_the_cure(tmp_path: Path) -> None:
    code = "import sys; from scripts.build_shards import main\n"
    code += "print([main([name, '--output', sys.argv[1]]) for name in ('/dev/stdin', '-')])"
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        out, error = process.communicate()
    assert out == "[1, 1]\n"
    assert error.count("a build reads its input more than once, so write it to a file first") == 2


# Folders of repositories: path, language and repository of each file are fields.


FILES = {
    "one/src/main.py": "print('one')\n",
    "one/README.md": "# One\n",
    "two/src/main.rs": "fn main() {}\n",
    "two/Makefile": "all:\n\techo two\n",
    "notes.unknown": "Notes\n",
}
ROWS = {
    ("one/src/main.py", "one", "Python"),
    ("one/README.md", "one", "Markdown"),
    ("two/src/main.rs", "two", "Rust"),
    ("two/Makefile", "two", "Makefile"),
    ("notes.unknown", None, None),
}
KEPT = "path:str,repository:str,language:str"


def write(folder: Path) -> Path:
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def rows(output: Path) -> set[tuple[Any, ...]]:
    held = table(output)
    return set(zip(*(held[f"column:{name}"] for name in ("path", "repository", "language")), strict=True))


@pytest.mark.parametrize("source", ["", "code="])
def test_path_repository_and_language_of_a_file_are_fields(tmp_path: Path, source: str) -> None:
    write(tmp_path / "in")
    spec = f"{source}{tmp_path / 'in'}"
    run_plain(spec, tmp_path / "out", format="text", keep_fields=KEPT, id_key="path")
    assert rows(tmp_path / "out") == ROWS
    assert {*table(tmp_path / "out")["id"]} == {*FILES}
    where = 'language in ["Python", "Rust"]'
    manifest = run_plain(spec, tmp_path / "some", format="text", where=where)
    assert (manifest.counts["kept"], manifest.counts["dropped"]) == (2, {"where": 3})
    stream = pipeline.TextDataset(tmp_path / "in", "bytes", format="text", epochs=1, where='repository == "two"')
    assert len(list(stream.documents())) == 2


def test_a_field_of_a_file_that_does_not_fit_its_type_makes_a_bad_record(tmp_path: Path) -> None:
    (tmp_path / "in.py").write_text("x = 1")
    bad = run_plain(
        tmp_path / "in.py", tmp_path / "out", keep_fields="language:int", on_error="skip", format="text"
    ).counts["bad"]
    assert bad == {"'language' is of type str, not a whole number": 1}


def test_the_members_of_a_tar_have_these_fields_too(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"one/a.txt": b"A text.", "b.txt": b"Another."})
    run_plain(tmp_path / "a.tar", tmp_path / "out", keep_fields=KEPT)
    assert rows(tmp_path / "out") == {("a.tar/one/a.txt", "a.tar", "Text"), ("a.tar/b.txt", "a.tar", "Text")}


def test_code_files_holds_programs_to_short_lines_and_documentation_not(tmp_path: Path) -> None:
    folder = write(tmp_path / "in")
    statement = "let value = compute(value, other);"
    (folder / "one" / "min.js").write_text(statement * 40 + "\n" + f"{statement}\n" * 100)
    (folder / "one" / "wide.js").write_text(f"{statement * 3}\n" * 9)
    (folder / "one" / "LONG.md").write_text("A paragraph is one line here. " * 50 + "\n")
    (folder / "one" / "messages.py").write_text("# Generated by a tool.\n# This file is GENERATED.\nx = one\n")
    (folder / "one" / "numbers.txt").write_text("0.125 0.25 0.5\n" * 10)
    manifest = run_plain(folder, tmp_path / "out", format="text", id_key="path", rules="code_files")
    assert manifest.counts["dropped"] == {
        "longest_code_line": 1, "mean_code_line": 1, "generated_marks": 1, "letter_ratio": 1
    }  # fmt: skip
    assert {*table(tmp_path / "out")["id"]} == {*FILES, "one/LONG.md"}
