"""``shardwright card``: a README for the hub, which finds the shards of each split."""

from __future__ import annotations

from fnmatch import filter as matching
from pathlib import Path

import pytest
import yaml

import pipeline
from pipeline.cli.card_command import size_category
from pipeline.cli.main import main
from tests.helpers.builds import run_plain
from tests.helpers.corpus import write_inputs


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    write_inputs(folder / "in", 60)
    run_plain([f"web={folder / 'in'}"], folder / "set", val_fraction=0.2)
    return folder / "set"


def test_a_card_names_shards_counts_sources_and_command(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["card", str(built)]) == 0
    _, front, text = capsys.readouterr().out.split("---\n", 2)
    head, manifest = yaml.safe_load(front), pipeline.Manifest.read(built)
    [config] = head["configs"]
    names = [path.name for path in built.iterdir()]
    for files in config["data_files"]:
        infos = manifest.splits[files["split"]].shards
        assert sorted(matching(names, files["path"])) == sorted(info.name for info in infos)
    documents = sum(split.documents for split in manifest.splits.values())
    assert head["size_categories"] == [size_category(documents)]
    train = manifest.splits["train"]
    assert f"| train | {train.documents:,} | {train.tokens:,} |" in text
    assert f"- web: {len(manifest.inputs)} files" in text
    assert "shardwright build web=INPUT" in text


def test_a_card_is_written_beside_the_shards_with_the_line_that_uploads_them(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "README.md"
    assert main(["card", str(built), "--output", str(file)]) == 0
    assert f"hf upload set {built} --repo-type dataset" in capsys.readouterr().out
    assert file.read_text().startswith("---\nlicense: unknown\n")
    assert main(["card", str(tmp_path)]) == 2
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        main(["card", str(built), "--output", "s3://bucket/README.md"])
    assert "--output: s3://bucket/README.md is a url; name a file of this machine" in capsys.readouterr().err


def test_the_card_of_the_working_directory_has_its_name(
    built: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(built)
    assert main(["card", "."]) == 0
    assert "\n# set\n" in capsys.readouterr().out
