"""The benches run, on little data."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import bench_build, bench_stream
from scripts.bench import child
from scripts.bench.commits import ROOT, worktree
from scripts.bench.remote import certificate, run_child, serving
from scripts.bench.report import Report
from tests.corpus import english
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


def test_a_child_measures_every_stream_by_public_names(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "a.jsonl", make_texts(3_000))
    data = str(tmp_path / "data")
    assert child.main({"build": [str(texts)], "data": data}) == {}
    for name in child.STREAMS:
        measured = child.main({"stream": name, "data": data, "seconds": 0.01, "warm": 0.0})
        assert measured["batches"] > 0, name
        assert min(measured[key] for key in ("first", "seconds", "memory")) > 0
        assert len(measured["digest"]) == 64
    again = [child.main({"data": data, "seconds": 0.0, "warm": 0.0})["digest"] for _ in range(2)]
    assert again[0] == again[1]


def test_a_child_that_fails_gives_its_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=str(tmp_path)):
        run_child({"data": str(tmp_path / "none")}, ROOT)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_server_is_read_over_https_and_counts_its_bytes(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [make_documents(3_000, longest=300)])
    for tls in (False, True):
        with serving(tmp_path / "data", tls=tls) as url:
            request = {"data": url, "counts": url, "seconds": 0.1, "warm": 0.0, "stream": "stored width"}
            measured = run_child(request, ROOT, SSL_CERT_FILE=str(certificate()))
        size = (tmp_path / "data" / "train-000000.tar").stat().st_size
        assert size / 2 < measured["before_first"]["bytes"] + measured["after"]["bytes"] < 2 * size


@pytest.mark.nightly
def test_the_bench_of_builds_shows_ratios_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": english(k)}) + "\n" for k in range(60)))
    flags = ["--rounds", "1", "--workers", "1", "--vocab-size", "300", "--json"]
    assert bench_build.main([str(tmp_path / "in.jsonl"), *flags]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert table["rows"][0][""].startswith("x the CPU of reading")
    assert table["rows"][0]["median"] > 1


def test_tables_become_one_json_object_with_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (True, False):
        report = Report(as_json=as_json)
        report.table("title", ("name", "share"), [("a", "50%")])
        report.end()
    shown = capsys.readouterr().out
    assert '"share": 0.5' in shown
    assert "| a    | 50%   |" in shown


def test_parts_and_another_commit_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench_stream.main(["speed", "--against", "HEAD"])
    assert "--against takes no parts" in capsys.readouterr().err
