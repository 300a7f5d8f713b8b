"""Datasets at urls are verified and looked into where they lie, however badly they are served."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.objects.request_options import RequestOptions
from pipeline.progress import Progress
from pipeline.shards.verify.dataset import Problem, verify_dataset, verify_shard
from scripts.inspect_shards import main as inspect_main
from scripts.verify_shards import main as verify_main
from tests.helpers.builds import Built
from tests.helpers.corpus import english
from tests.helpers.faulty_bucket import credentials
from tests.helpers.faulty_server import FaultyServer, running_server
from tests.helpers.shard_samples import flipped, make_documents, scan_tar, write_dataset

ROOT = Path(__file__).resolve().parents[2]
QUICK = RequestOptions(tries=6, first_delay=0.001, timeout=10)
SHARDS = [f"train-{number:06d}.tar" for number in range(3)]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "data", [make_documents(60, seed=seed) for seed in range(3)])
    return tmp_path / "data"


@pytest.fixture
def server(server: FaultyServer, dataset: Path) -> FaultyServer:
    server.serve(dataset)
    return server


@pytest.fixture(autouse=True)
def no_copies_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    assert list((tmp_path / "temporary").iterdir()) == []


def problems(server: FaultyServer, **options: Any) -> list[Problem]:
    return list(verify_dataset(server.url("data"), requests=QUICK, **options))


def test_a_quick_check_reads_little_and_reports_all(server: FaultyServer) -> None:
    progress = Progress(quiet=True)
    assert problems(server, quick=True, progress=progress) == []
    total = sum(len(server.files[f"data/{name}"]) for name in SHARDS)
    assert progress.bytes == total
    assert server.sent < total / 2


def test_damage_is_named_by_url_member_and_byte(server: FaultyServer, dataset: Path) -> None:
    member = scan_tar(dataset / SHARDS[1])[5]
    name = f"data/{SHARDS[1]}"
    server.files[name] = flipped(server.files[name], member.data + 128)
    found = problems(server)
    assert (found[0].shard, found[0].member, found[0].offset) == (server.url(name), member.name, member.data + 128)
    assert "shardwright-" not in " ".join(map(str, found))  # no name of the copy
    assert problems(server, quick=True) == []


@pytest.mark.parametrize("quick", [False, True])
def test_missing_cut_and_swapped_shards_are_named(server: FaultyServer, quick: bool) -> None:
    objects = server.files
    objects[f"data/{SHARDS[0]}"] = objects[f"data/{SHARDS[0]}"][:-600]
    del objects[f"data/{SHARDS[1]}"]
    said = "\n".join(map(str, problems(server, quick=quick)))
    assert f"{server.url(f'data/{SHARDS[1]}')}: the manifest names this shard, but it is not there" in said
    assert server.url(f"data/{SHARDS[0]}") in said
    assert SHARDS[2] not in said
    objects[f"data/{SHARDS[0]}"] = objects[f"data/{SHARDS[1]}"] = objects[f"data/{SHARDS[2]}"]
    said = "\n".join(map(str, problems(server, quick=quick)))
    for name in SHARDS[:2]:
        assert server.url(f"data/{name}") in said
    del objects["data/manifest.json"]
    assert "no such object" in problems(server)[0].message
    if not quick:
        assert f"it holds what the manifest calls {SHARDS[2]}" in said
        assert f"is also in {server.url(f'data/{SHARDS[0]}')}" in said  # a key


def test_a_server_that_gives_up_on_one_shard_is_a_problem_of_that_shard(server: FaultyServer) -> None:
    server.busy.add(f"data/{SHARDS[1]}")
    (found,) = problems(server)
    assert found.shard == server.url(f"data/{SHARDS[1]}")
    assert "gave up after 6 tries" in found.message


def test_single_urls_are_held_to_their_manifest(server: FaultyServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify_main([server.url("data/train-{000000..000002}.tar")]) == 0
    server.files[f"data/{SHARDS[0]}"] = server.files[f"data/{SHARDS[1]}"]
    assert verify_main([server.url(f"data/{SHARDS[0]}")]) == 1
    assert "the manifest says" in capsys.readouterr().out
    del server.files["data/manifest.json"]
    assert verify_main([server.url(f"data/{SHARDS[0]}")]) == 0
    server.files[f"data/{SHARDS[0]}?signature=secret"] = server.files[f"data/{SHARDS[0]}"][:-600]
    assert verify_main([server.url(f"data/{SHARDS[0]}?signature=secret")]) == 1
    assert verify_shard(server.url("data/none.tar"), requests=QUICK)[0].message.startswith("404")
    assert "secret" not in capsys.readouterr().out


def test_shards_that_no_manifest_names_are_found_where_a_server_lists(dataset: Path) -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    for path in [*dataset.iterdir(), dataset / SHARDS[0]]:
        files.pipe(f"/verify/{path.name}", path.read_bytes())
    assert list(verify_dataset("memory://verify")) == []
    files.pipe("/verify/train-000009.tar", (dataset / SHARDS[0]).read_bytes())
    (found,) = verify_dataset("memory://verify")
    assert found.shard.endswith("train-000009.tar")
    assert "does not name this shard" in found.message


@pytest.mark.stacks
def test_the_commands_work_on_s3_in_processes_of_their_own(tmp_path: Path, s3: dict[str, Any]) -> None:
    import s3fs

    texts = [english(k) for k in range(80)]
    manifest = Built.of(tmp_path, texts, "data", tokenizer="train:300", tokens_per_shard=8_000).manifest
    files = s3fs.S3FileSystem(**s3)
    files.mkdir("bucket-v")
    files.put(f"{tmp_path}/data", "bucket-v/data", recursive=True)
    variables = {**credentials(s3["client_kwargs"]["endpoint_url"]), "SHARDWRIGHT_CACHE": str(tmp_path / "cache")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        options: dict[str, Any] = {"cwd": ROOT, "env": {**os.environ, **variables}, "timeout": 120}
        return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, **options)

    verified = run("scripts/verify_shards.py", "s3://bucket-v/data", "--workers", "2")
    assert (verified.returncode, verified.stdout[:10]) == (0, "no problem"), verified.stderr
    shown = run("scripts/inspect_shards.py", "s3://bucket-v/data", "--document", "70")
    assert texts[70][:40] in shown.stdout.replace("\n", " "), shown.stderr
    assert "in.jsonl" in shown.stdout
    assert manifest.fingerprint[:16] in run("scripts/inspect_shards.py", "s3://bucket-v/data").stdout
    missing = run("scripts/verify_shards.py", "s3://bucket-v/none")
    assert missing.returncode == 1
    assert "no such object" in missing.stdout


def test_a_document_at_a_url_is_shown_by_number_and_by_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "cache"))
    built = Built.of(tmp_path, [english(k, 3) for k in range(9)], "built", tokens_per_shard=500)
    with running_server() as server:
        server.serve(built)
        for asked in (["--document", "7"], ["--key", "000000000007"]):
            assert inspect_main([server.url("data"), *asked]) == 0
            assert english(7, 3) in capsys.readouterr().out
        assert inspect_main([server.url("data"), "--key", "nobody"]) == 2
        assert "no key 'nobody'" in capsys.readouterr().err
        assert inspect_main([server.url("elsewhere")]) == 2
        assert "elsewhere/manifest.json: no such object" in capsys.readouterr().err
