"""The command: one line a problem, a summary, and exit codes that a pipeline can act on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.shards.tar import scan_tar
from scripts.verify_shards import main
from tests.shard_samples import make_documents, write_dataset

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data", [make_documents(20, seed=seed) for seed in range(3)])
    return tmp_path / "data"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/verify_shards.py", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_a_sound_dataset_ends_with_0_and_a_summary(dataset: Path) -> None:
    result = run(dataset, "--workers", 2)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("no problem in 0.")
    assert result.stderr == ""


def test_damage_ends_with_1_and_names_shard_member_and_byte(dataset: Path) -> None:
    path = dataset / "train-000001.tar"
    member = scan_tar(path)[5]
    raw = bytearray(path.read_bytes())
    raw[member.data + 128] ^= 1
    path.write_bytes(raw)
    result = run(dataset)
    assert result.returncode == 1
    assert f"{path}, member {member.name}, byte {member.data + 128}: " in result.stdout
    assert "2 problems in" in result.stdout.splitlines()[-1]


def test_json_gives_one_object_a_problem_and_nothing_else(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dataset / "train-000002.tar").unlink()
    assert main([str(dataset), "--json", "--workers", "1"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    problem = json.loads(line)
    assert problem["shard"].endswith("train-000002.tar")
    assert set(problem) == {"shard", "member", "offset", "message"}


def test_single_shards_are_held_to_the_manifest_beside_them(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = dataset / "train-000000.tar", dataset / "train-000001.tar"
    assert main([f"{dataset}/train-{{000000..000002}}.tar"]) == 0
    first.write_bytes(second.read_bytes())
    assert main([str(first)]) == 1
    assert "the manifest says" in capsys.readouterr().out
    second.rename(dataset / "other.tar")
    assert main([str(dataset / "other.tar")]) == 1
    assert "does not name this shard" in capsys.readouterr().out


def test_a_shard_without_a_manifest_is_held_to_itself(dataset: Path) -> None:
    (dataset / "manifest.json").unlink()
    path = dataset / "train-000000.tar"
    assert main([str(path)]) == 0
    path.write_bytes(path.read_bytes()[:-1])
    assert main([str(path)]) == 1


def test_quick_looks_at_structure_alone(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(dataset), "--quick", "--workers", "1"]) == 0
    assert "(quick)" in capsys.readouterr().out


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
