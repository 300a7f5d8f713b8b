"""``shardwright verify``: one line a problem, a summary, and exit codes that a pipeline can act on."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from pipeline.cli.main import run_command
from tests.helpers.commands import Says
from tests.helpers.shard_samples import make_documents, scan_tar, write_dataset

main = partial(run_command, "verify")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data", [make_documents(20, seed=seed) for seed in range(3)])
    return tmp_path / "data"


def test_a_sound_dataset_ends_with_0_and_a_summary(dataset: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([str(dataset), "--workers", "2"]) == 0
    whole = capfd.readouterr()
    assert whole.out.startswith("no problem in 0.")
    assert whole.err == ""
    assert main([str(dataset), "--quick", "--workers", "1"]) == 0
    assert "(quick)" in capfd.readouterr().out


def test_damage_ends_with_1_and_names_shard_member_and_byte(dataset: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = dataset / "train-000001.tar"
    member = scan_tar(path)[5]
    raw = bytearray(path.read_bytes())
    raw[member.data + 128] ^= 1
    path.write_bytes(raw)
    assert main([str(dataset), "--workers", "1"]) == 1
    said = capfd.readouterr().out
    assert f"{path}, member {member.name}, byte {member.data + 128}: " in said
    assert "2 problems in" in said.splitlines()[-1]


def test_json_gives_one_object_a_problem_and_nothing_else(dataset: Path, says: Says) -> None:
    (dataset / "train-000002.tar").unlink()
    (line,) = says(1, "verify", dataset, "--json", "--workers", "1").out.splitlines()
    problem = json.loads(line)
    assert problem["shard"].endswith("train-000002.tar")
    assert set(problem) == {"shard", "member", "offset", "message"}


def test_single_shards_are_held_to_a_manifest_beside(dataset: Path, says: Says) -> None:
    first, second = dataset / "train-000000.tar", dataset / "train-000001.tar"
    assert main([f"{dataset}/train-{{000000..000002}}.tar"]) == 0
    first.write_bytes(second.read_bytes())
    assert "the manifest says" in says(1, "verify", first).out
    second.rename(dataset / "other.tar")
    assert "does not name this shard" in says(1, "verify", dataset / "other.tar").out
    (dataset / "manifest.json").write_text("{")
    said = says(1, "verify", first).out
    assert said.startswith(f"{dataset}/manifest.json: ")
    assert said.splitlines()[-1].startswith("1 problem in 0.0 MB")
    (dataset / "manifest.json").unlink()
    assert main([str(first)]) == 0
    first.write_bytes(first.read_bytes()[:-1])
    assert main([str(first)]) == 1


@pytest.mark.parametrize(
    "arguments", [[], ["nowhere.tar"], ["s3://b/data"], ["x", "--workers", "0"], ["--wokers", "2", "x"]]
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 2
    assert capsys.readouterr().err
