"""What a command writes replaces no input, no link, no device and no earlier dataset that it reads."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.cli.main import run_command
from tests.builds import digests
from tests.text_samples import jsonl, sentences


@pytest.mark.parametrize("given", ["in.jsonl", ".", "*.jsonl", "link.jsonl"])
@pytest.mark.parametrize("output", ["in.jsonl", "link.jsonl"])
def test_texts_replaces_none_of_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str, output: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = jsonl(tmp_path / "in.jsonl", sentences(3)).read_bytes()
    os.symlink("in.jsonl", "link.jsonl")
    assert run_command("texts", [given, "--output", output]) == 2
    assert "it is an input, which would be replaced; choose another name" in capsys.readouterr().err
    assert sorted(os.listdir()) == ["in.jsonl", "link.jsonl"]
    assert Path("in.jsonl").read_bytes() == before


def test_texts_writes_through_a_link(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "in.jsonl", sentences(3))
    (tmp_path / "there").mkdir()
    link = tmp_path / "texts.parquet"
    for _ in range(2):  # the file is not there yet, then it is
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / "there" / "real.parquet")
        assert run_command("texts", [str(source), "--output", str(link)]) == 0
        assert link.is_symlink()
        assert pq.read_table(tmp_path / "there" / "real.parquet").num_rows == 3
    assert len(list((tmp_path / "there").iterdir())) == 1


@pytest.mark.parametrize(("name", "kind"), [("pipe", "a FIFO"), ("folder", "a directory"), ("none/x", "no directory")])
def test_texts_touches_regular_files_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    source = jsonl(tmp_path / "in.jsonl", sentences(3))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert run_command("texts", [str(source), "--output", str(tmp_path / name)]) == 2
    assert kind in capsys.readouterr().err
    assert special_names(tmp_path) == ["folder", "in.jsonl", "pipe"]


def special_names(folder: Path) -> list[str]:
    assert (folder / "pipe").is_fifo()
    return sorted(path.name for path in folder.rglob("*"))


@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
def test_a_build_does_not_discard_the_earlier_dataset_that_it_compares_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    source, output = jsonl(tmp_path / "in.jsonl", sentences(9)), tmp_path / "out"
    build = [str(source), "--output", str(output), "--tokenizer", "bytes", "--rules", "none", "--workers", "1"]
    assert run_command("build", build) == 0
    before = digests(output)
    (tmp_path / "link").symlink_to(output)
    capsys.readouterr()
    assert run_command("build", [*build, "--against", str(tmp_path / "link"), *flags]) == 2
    assert "link': it is the output too; choose another output" in capsys.readouterr().err
    assert digests(output) == before
