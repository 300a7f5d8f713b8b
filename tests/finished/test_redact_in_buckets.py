"""A dataset in a bucket is redacted as one in a directory is, whatever ends the command or reads meanwhile."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import pipeline
from pipeline.errors import BuildError, ConfigError
from pipeline.finished.redaction.redact import redact
from pipeline.shards.manifest import OWNER_NAME, REDACTING_NAME
from pipeline.shards.verify.dataset import verify_dataset
from tests.helpers.builds import Built, contents_of
from tests.helpers.corpus import english
from tests.helpers.faulty_bucket import kill_at_put, objects_below, run_through

IDS, REASON = ["d1", "d9", "d17"], "order 17"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of three shards, which are more than stays in memory."""
    texts = [english(k, 400) for k in range(18)]
    return Built.of(tmp_path_factory.mktemp("redact"), texts, "set", tokens_per_shard=130_000, keep_texts="parquet")


@pytest.fixture(scope="module")
def expected(built: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a redaction gives in a directory."""
    folder = Path(shutil.copytree(built, tmp_path_factory.mktemp("local") / "set"))
    redact(folder, IDS, REASON, texts=True)
    return comparable(contents_of(folder))


def comparable(files: dict[str, bytes]) -> dict[str, Any]:
    """Return files without their dates, and without what a certificate says of place and search."""
    certificate = json.loads(files["redaction-1.json"])
    manifest = json.loads(files["manifest.json"])
    del manifest["checksum"], manifest["redactions"][0]["date"]
    plain = {name: data for name, data in files.items() if not name.startswith(("redaction-", "manifest", "run"))}
    return plain | {"manifest": manifest, "hashes": certificate["files"], "found": certificate["search"]["found"]}


def upload(built: Path, url: str, **options: Any) -> str:
    files = fsspec.filesystem(url.partition(":")[0], **options)
    for name, data in contents_of(built).items():
        files.pipe_file(f"{url}/{name}", data)
    return url


@pytest.fixture
def memory(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The url of the dataset in the memory of this process."""
    monkeypatch.chdir(tmp_path)
    yield upload(built, "memory://redacted/set")
    fsspec.filesystem("memory").rm("/redacted", recursive=True)


def test_a_bucket_gets_what_a_directory_gets_and_nothing_is_left_here(
    memory: str, built: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    certificate = redact(memory, IDS, REASON, texts=True)
    assert certificate is not None
    assert comparable(objects_below(memory)) == expected
    searched = len(certificate["files"]) + 1 - ("signatures" in str(certificate["files"])) * 2
    assert certificate["search"]["files"] == searched
    whole = pipeline.Manifest.read(built)
    parts = [info for info in (*whole.shards, *whole.files) if info.name.startswith(("train", "texts", "report"))]
    unsearched = [info.bytes for info in parts if info.name not in certificate["files"]]
    assert certificate["search"]["unsearched"] == {"files": len(unsearched), "bytes": sum(unsearched)}
    assert [*tmp_path.iterdir()] == []
    assert list(verify_dataset(memory)) == []


def test_a_bucket_in_which_another_writes_is_refused(memory: str) -> None:
    with pytest.raises(ConfigError, match=r"1 of 2 names .* 'd99'"):
        redact(memory, ["d1", "d99"], REASON, texts=True)
    assert OWNER_NAME not in objects_below(memory)
    fsspec.filesystem("memory").pipe_file(f"{memory}/{OWNER_NAME}", b'{"id": "other", "by": "process 7"}')
    with pytest.raises(BuildError, match=r"\(process 7\); wait"):
        redact(memory, ["d1"], REASON, texts=True)
    assert REDACTING_NAME not in objects_below(memory)


def test_a_redaction_of_a_bucket_that_did_not_finish_is_a_problem(memory: str) -> None:
    fsspec.filesystem("memory").pipe_file(f"{memory}/{REDACTING_NAME}", b"{}")
    [problem] = verify_dataset(memory, quick=True)
    assert problem.message == "a redaction has not finished; run its command again"


def test_notes_that_a_killed_redaction_of_another_bucket_left_are_not_used(
    memory: str, built: Path, expected: dict[str, Any], tmp_path: Path
) -> None:
    store, other = fsspec.filesystem("memory"), upload(built, "memory://redacted/other/set")
    redact(other, IDS, REASON, texts=True)
    store.copy(f"{other}/manifest.json", f"{memory}/{REDACTING_NAME}")  # killed before the first file was replaced
    notes = tmp_path / "set.redaction" / "redaction" / "removed.json"
    notes.parent.mkdir(parents=True)
    noted = dict.fromkeys(("key", "id", "hash", "source", "language", "tokens", "text"), "")
    notes.write_text(json.dumps({"of": f"{other} 1", "documents": [noted]}))
    certificate = redact(memory, IDS, REASON, texts=True)
    assert certificate is not None
    assert comparable(objects_below(memory)) == expected
    assert certificate["search"]["not_searched"] == []


def test_a_stream_from_a_bucket_goes_on_after_a_redaction(memory: str, caplog: pytest.LogCaptureFixture) -> None:
    def stream() -> Any:
        return pipeline.ShardDataset(memory, epochs=3, cache_dir=None).shuffle(seed=0).pack(64).batch(8)

    batches = iter(running := stream())
    read = list(islice(batches, 2))
    redact(memory, IDS, REASON, texts=True)
    read += batches
    running.state_dict()
    fresh = list(stream())
    for one, other in list(zip(read, fresh, strict=True))[-len(fresh) // 3 :]:
        assert np.array_equal(one["input_ids"], other["input_ids"])
        assert np.array_equal(one["labels"], other["labels"])
    assert len([record for record in caplog.records if "3 documents were redacted" in record.message]) == 1


@pytest.mark.stacks
@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])])
def test_a_kill_at_any_upload_is_read_on_and_a_re_run_continues(
    s3: dict[str, Any], built: Path, expected: dict[str, Any], tmp_path: Path, kills: int
) -> None:
    store = fsspec.filesystem("s3", **s3)
    (tmp_path / "ids.txt").write_text("\n".join(IDS))

    def run(name: str, kill_at: int = -1, applied: bool = False) -> tuple[int, int]:
        """Return the exit status of the command, and how many objects were put."""
        arguments = ["redact", f"s3://{name}/set", "--ids", tmp_path / "ids.txt", "--reason", REASON, "--texts"]
        status, _, requests = run_through(s3, kill_at_put(kill_at, applied), *arguments, cwd=tmp_path)
        store.invalidate_cache()
        return status, requests["PUT"]

    def make(name: str) -> str:
        store.mkdir(name)  # the server has the buckets of the other case too
        return upload(built, f"s3://{name}/set", **s3)

    def epoch(url: str) -> Any:
        data = pipeline.ShardDataset(url, epochs=1, cache_dir=None, storage_options=s3)
        return np.concatenate([item["input_ids"] for item in data.pack(500)])

    whole = make(name := f"whole-{kills}")
    before = epoch(whole)
    status, puts = run(name)
    assert (status, comparable(objects_below(whole, **s3))) == (0, expected)
    after = epoch(whole)
    moments = [(at, applied) for at in range(puts) for applied in (False, True)]
    for at, applied in random.Random(47).sample(moments, kills):
        url = make(name := f"killed-{kills}-{at}-{applied}".lower())
        assert run(name, at, applied)[0] == -signal.SIGKILL
        read = epoch(url)
        assert ((read == before) | (read == after)).all()
        assert run(name)[0] == 0
        assert comparable(objects_below(url, **s3)) == expected
        assert not list(tmp_path.glob("*.redaction"))
