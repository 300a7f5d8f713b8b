"""Folders of repositories: path, language and repository of each file are fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pipeline
from tests.builds import run_plain, table
from tests.text_samples import write_tar

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


def test_the_members_of_a_tar_have_these_fields_too(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"one/a.txt": b"A text.", "b.txt": b"Another."})
    run_plain(tmp_path / "a.tar", tmp_path / "out", keep_fields=KEPT)
    assert rows(tmp_path / "out") == {("a.tar/one/a.txt", "a.tar", "Text"), ("a.tar/b.txt", "a.tar", "Text")}
