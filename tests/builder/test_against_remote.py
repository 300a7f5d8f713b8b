"""Datasets at urls: their manifests are read, and builds are held against them, where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, ManifestError, MissingObjectError
from pipeline.objects.request_options import RequestOptions
from pipeline.shards.manifest import Manifest
from tests.helpers.builds import digests, rejected, run_plain, write_jsonl
from tests.helpers.corpus import english
from tests.helpers.faulty_bucket import credentials
from tests.helpers.faulty_server import FaultyServer, running_server

pytestmark = pytest.mark.stacks


def run(inputs: Any, output: Any, **options: Any) -> Manifest:
    return run_plain(inputs, output, keep_rejected=True, **options)


def write(path: Path, first: int) -> Path:
    return write_jsonl(path, [english(k) for k in range(first, first + 40)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``first`` is a dataset, ``more.jsonl`` holds half of its documents and as many others, ``held`` is what is left."""
    folder = tmp_path_factory.mktemp("remote")
    run(write(folder / "first.jsonl", 0), folder / "first")
    run(write(folder / "more.jsonl", 20), folder / "held", against=[str(folder / "first")])
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[FaultyServer]:
    with running_server() as running:
        for path in (path for path in (folder / "first").rglob("*") if path.is_file()):
            running.files[f"data/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
        yield running


@pytest.mark.parametrize("ending", ["", "/", "/manifest.json"])
def test_a_manifest_is_read_at_a_url_as_it_is_here(folder: Path, server: FaultyServer, ending: str) -> None:
    assert Manifest.read(server.url(f"data/first{ending}")) == Manifest.read(folder / "first")
    assert Manifest.read(f"file://{folder}/first{ending}") == Manifest.read(folder / "first")


def test_a_manifest_in_a_bucket_is_read(folder: Path, s3: dict[str, Any]) -> None:
    import s3fs

    s3fs.S3FileSystem(**s3).mkdir("manifests")
    s3fs.S3FileSystem(**s3).put(str(folder / "first"), "manifests/first", recursive=True)
    requests = RequestOptions(tries=2, first_delay=0.01, options=s3)
    assert Manifest.read("s3://manifests/first", requests) == Manifest.read(folder / "first")
    with pytest.raises(MissingObjectError, match=r"s3://manifests/none/manifest\.json: no such object; give the url"):
        Manifest.read("s3://manifests/none", requests)


def test_a_manifest_at_a_url_is_told_from_none_and_from_a_damaged_one(server: FaultyServer) -> None:
    with pytest.raises(MissingObjectError, match=r"data/none/manifest\.json: no such object; give the url"):
        Manifest.read(server.url("data/none"))
    server.files["data/first/manifest.json"] = server.files["data/first/manifest.json"][:100]
    with pytest.raises(ManifestError, match=r"http://.*/data/first/manifest\.json: not JSON"):
        Manifest.read(server.url("data/first"))


@pytest.mark.parametrize("read", [Manifest.read, lambda path: run("in.jsonl", path)])
def test_a_url_that_became_a_path_is_refused_with_the_cure(read: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"s3:/bucket/data': this url has lost a slash, .* give it as text, s3://"):
        read(Path("s3://bucket/data"))
    assert list(tmp_path.iterdir()) == []


def test_a_build_is_held_against_a_dataset_at_a_url(folder: Path, server: FaultyServer, tmp_path: Path) -> None:
    manifest = run(folder / "more.jsonl", tmp_path / "held", against=[server.url("data/first")])
    assert manifest.counts["duplicates"] == {"exact": 20, "near": 0}
    assert manifest.recipe["settings"]["against"] == ["first"]
    assert digests(tmp_path / "held") == digests(folder / "held")  # where it lies says nothing of what it holds
    assert rejected(tmp_path / "held")[0]["reason"] == "exact duplicate of first:000000000020"


def test_a_build_is_held_against_a_dataset_in_a_bucket(
    folder: Path, s3: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    files = s3fs.S3FileSystem(**s3)
    files.mkdir("earlier")
    files.put(str(folder / "first"), "earlier/first", recursive=True)
    for name, value in credentials(s3["client_kwargs"]["endpoint_url"]).items():
        monkeypatch.setenv(name, value)
    run(folder / "more.jsonl", tmp_path / "held", against=["s3://earlier/first"])
    assert digests(tmp_path / "held") == digests(folder / "held")


def test_signatures_at_a_url_must_be_comparable(folder: Path, server: FaultyServer, tmp_path: Path) -> None:
    url = server.url("data/first")
    with pytest.raises(ConfigError, match=r"/data/first: .*dedup_ngram 5, this build has 6"):
        run(folder / "more.jsonl", tmp_path / "out", against=[url], dedup_ngram=6)
    assert not (tmp_path / "out").exists()
