"""What the benches make of two commits in turn, and of what only one of them has."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts._against import ROOT, Comparison, compare, show, worktree
from scripts._report import Report
from scripts._stream_against import PROCESS_START, in_turn, run, units
from scripts._stream_child import STREAMS
from scripts.bench_stream import main
from tests.shard_samples import make_documents, write_dataset
from tests.text_samples import make_texts, write_texts


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path / "repository"
    folder.mkdir()

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)

    git("init", "--quiet")
    for text in ("old", "new"):
        (folder / "file").write_text(text)
        git("add", "file")
        git("commit", "--quiet", "--message", text)
    return folder


def worktrees(repository: Path) -> list[str]:
    command = ["git", "-C", str(repository), "worktree", "list"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_a_worktree_holds_the_files_of_its_commit_and_is_gone_afterwards(repository: Path) -> None:
    with worktree("HEAD~1", repository) as tree:
        assert (tree / "file").read_text() == "old"
        assert len(worktrees(repository)) == 2
    assert (repository / "file").read_text() == "new"
    assert not tree.exists()
    assert len(worktrees(repository)) == 1


def test_a_worktree_is_gone_after_an_interrupt_too(repository: Path) -> None:
    with pytest.raises(KeyboardInterrupt), worktree("HEAD", repository) as tree:
        raise KeyboardInterrupt
    assert not tree.exists()
    assert len(worktrees(repository)) == 1


def test_a_commit_that_is_not_there_is_named(repository: Path) -> None:
    with pytest.raises(SystemExit, match="no-such-commit"), worktree("no-such-commit", repository):
        pytest.fail("there is no such commit")
    assert len(worktrees(repository)) == 1


def test_ratios_are_taken_within_rounds_so_that_a_slow_round_does_not_count() -> None:
    rounds = [({"x": 1.0}, {"x": 1.1}), ({"x": 10.0}, {"x": 11.0}), ({"x": 1.0}, {"x": 1.1})]
    (found,) = compare(rounds, {"x": "s", "never measured": "s"})
    assert found.as_json()["ratio"] == pytest.approx(1.1)
    assert found.as_json()["before"] == 1.0


def test_what_one_commit_lacks_has_no_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = compare([({}, {"x": 2.0})], {"x": "s"})
    assert found == Comparison("x", "s", [None], [2.0])
    assert found.cells() == ("x", "s", "-", "2", "-", "-")
    show({"against": "HEAD", "comparisons": [found]}, [], as_json=True)
    (shown,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert shown == {"name": "x", "unit": "s", "before": None, "now": 2.0, "ratio": None, "ratios": None}


def test_two_trees_are_timed_each_with_its_own_library(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [make_documents(200, seed=seed, longest=300) for seed in range(2)])
    texts = write_texts(tmp_path / "a.jsonl", make_texts(300))
    shards = str(tmp_path / "data")
    data = {"shards": shards, "sources": [shards] * 4, "texts": [str(texts)], "tokenizer": "bytes"}
    data |= {"seq_len": 32, "rounds": 1, "batches": 1}
    other = tmp_path / "other"
    other.mkdir()
    (other / "pipeline.py").write_text("ShardDataset = TextDataset = mix = None\n")
    found = in_turn(ROOT, ROOT, data, rounds=1)
    short = {"documents of 60 tokens"}  # `data` does not name its dataset
    assert found["same_batches"] == dict.fromkeys(set(STREAMS) - short, True)
    assert set(found["missing"]["now"]) == short
    measured = {each.name for each in found["comparisons"] if each.ratios}
    assert measured == {name for name in units() if not name.startswith(tuple(short))}
    assert PROCESS_START in measured
    missing = run(other, data)["missing"]
    assert set(missing) == set(STREAMS)
    assert missing["packed"].startswith("TypeError: 'NoneType'")


def test_tables_become_one_json_object_with_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["order", "--json", "--directory", str(tmp_path)]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert table["title"] == "The order alone"
    assert [row["shards"] for row in table["rows"]] == [10, 1_000, 10_000]
    report = Report()
    report.table("title", ("name", "share"), [("a", "50%")])
    assert "| a    | 50%   |" in capsys.readouterr().out


def test_parts_and_another_commit_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["speed", "--against", "HEAD"])
    assert "--against takes no parts" in capsys.readouterr().err
